from tests.pretraining.conftest import corpus, material, tokenizer

__all__ = ["corpus", "material", "tokenizer"]
