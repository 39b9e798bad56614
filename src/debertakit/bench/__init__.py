"""Side-by-side measurements against peers: ``deberta bench``."""
