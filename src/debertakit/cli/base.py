"""Shared CLI setup: the Typer app, error handling, and log silencing."""

import sys

import typer

app = typer.Typer(
    name="deberta",
    help="DeBERTa: exact, fast and complete, on a laptop or a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

USE, TRAIN, CONVERT = "Use a model", "Train and evaluate", "Checkpoints and benchmarks"
"""Panels of ``deberta --help``."""


def main() -> None:
    """Run the command. A user error prints one line and exits with code 2, without a traceback."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        print(f"deberta: {_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("deberta: stopped", file=sys.stderr)
        sys.exit(130)


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)


def quiet() -> None:
    """Silence transformers' load reports and progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
