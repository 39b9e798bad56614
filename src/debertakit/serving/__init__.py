"""Models over HTTP: ``deberta serve``."""
