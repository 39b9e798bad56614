from tests.pretraining.fixtures import corpus, exact_sums, material, tokenizer

__all__ = ["corpus", "exact_sums", "material", "tokenizer"]
