"""Writing: autoregressive DeBERTa, DeBERTa-D, and what stands on transformers' ``generate()``."""
