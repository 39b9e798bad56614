"""HTTP server for models: ``deberta serve``."""
