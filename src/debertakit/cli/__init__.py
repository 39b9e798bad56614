"""The ``deberta`` command, one thin function per subcommand. Heavy imports are inside the functions."""

from debertakit.cli import checkpoints, corpus, evaluation, lab, prediction, suites, training, using
from debertakit.cli.base import app, main

__all__ = ["app", "checkpoints", "corpus", "evaluation", "lab", "main", "prediction", "suites", "training", "using"]
