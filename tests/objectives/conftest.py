from tests.pretraining.fixtures import corpus, material, tokenizer

__all__ = ["corpus", "material", "tokenizer"]
