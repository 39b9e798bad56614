"""Text generation: autoregressive DeBERTa and DeBERTa-D, with transformers' ``generate()``."""
