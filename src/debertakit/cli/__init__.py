"""The ``deberta`` command: thin, one function a verb. Heavy imports stand inside the functions."""

from debertakit.cli import checkpoints, training, using
from debertakit.cli.base import app, main

__all__ = ["app", "checkpoints", "main", "training", "using"]
