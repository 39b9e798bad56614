"""The ``deberta`` command, one thin function per subcommand. Heavy imports are inside the functions."""

# isort: off
# The order of deberta --help: use a model, train and evaluate, checkpoints.
from debertakit.cli import prediction, using, training, evaluation, suites, lab, corpus, checkpoints

# isort: on
from debertakit.cli.base import app, main

__all__ = ["app", "checkpoints", "corpus", "evaluation", "lab", "main", "prediction", "suites", "training", "using"]
