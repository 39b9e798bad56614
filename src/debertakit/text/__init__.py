"""Text: tokenizers, word and entity boundaries, corpora to shards, packing, masking."""
