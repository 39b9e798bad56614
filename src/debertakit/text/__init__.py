"""Text processing: tokenizers, word and entity boundaries, corpus shards, packing, masking."""
