"""The ``deberta`` command, one thin function per subcommand. Heavy imports are inside the functions."""

from debertakit.cli import checkpoints, evaluation, prediction, training, using
from debertakit.cli.base import app, main

__all__ = ["app", "checkpoints", "evaluation", "main", "prediction", "training", "using"]
