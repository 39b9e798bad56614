"""Limits of the HTTP server. Light to import: the command line reads its defaults from here."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    wait: float = 0.003
    """Seconds that the first request of a batch waits for more requests."""
    queue: int = 1 << 16
    """Maximum tokens in work for a model, waiting or running. More gives 429; a request larger than this gives 413."""
    timeout: float = 30.0
    """Seconds until an unanswered request gives 504."""
    receive: float = 10.0
    """Seconds in which the headers of a request, and then its body (408), must arrive, and an answer must be read."""
    connections: int = 512
    """Maximum open connections. One more gives 503 and is closed."""
    body: int = 1 << 20
    """Maximum bytes in a request body."""
    inputs: int = 128
    """Maximum inputs in a request."""
    characters: int = 100_000
    """Maximum characters in one field of an input."""
    choices: int = 128
    """Maximum labels or options per text: the model reads the text once for each."""
    masks: int = 64
    """Maximum masks in a fill request."""
    explained: int = 64
    """Tokens that /explain reads. Longer texts are truncated."""

    def __post_init__(self) -> None:
        for name in ("timeout", "receive"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name}={getattr(self, name):g} must be finite and > 0")
        if not (math.isfinite(self.wait) and self.wait >= 0):
            raise ValueError(f"wait={self.wait:g} must be finite and >= 0")
        for name in ("queue", "connections", "body", "inputs", "characters", "choices", "masks", "explained"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be >= 1")
