"""Shared CLI setup: the Typer app, error handling, and log silencing."""

import difflib
import io
import os
import re
import sys

import typer

from debertakit import __version__
from debertakit.text.progress import working
from debertakit.training.signals import Stopped, let_signals_end_the_process

app = typer.Typer(
    name="deberta",
    help="DeBERTa: exact, fast and complete, on a laptop or a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

USE, TRAIN, CONVERT = "Use a model", "Train and evaluate", "Checkpoints and benchmarks"
"""Panels of ``deberta --help``."""


def _version(requested: bool) -> None:
    if requested:
        print(f"debertakit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command. A user error prints one line and exits with code 2, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for file names that are not UTF-8, and for ASCII terminals
    try:
        # click's own handling would print a box of several lines
        code = app(prog_name="deberta", standalone_mode=False)
    except (ValueError, OSError, ImportError) as error:
        print(f"deberta: {_line(error)}", file=sys.stderr)
        sys.exit(2)
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":
            print(f"deberta: {stopped}", file=sys.stderr)
        sys.exit(stopped.code)
    except KeyboardInterrupt:
        print("deberta: stopped", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sys.exit(_click_error(error))
    finally:
        let_signals_end_the_process()
    sys.exit(code if isinstance(code, int) else 0)


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error).strip().partition("\n")[0] or type(error).__name__


def require_unicode(*texts: str | None) -> None:
    """Raise if a text of the command line is not UTF-8. Python passes such bytes on as lone surrogates."""
    for text in texts:
        if text is not None and not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{ascii(text)[:60]} is not valid Unicode: bytes that are not UTF-8, or a lone surrogate")


def _click_error(error: Exception) -> int:
    """Report a wrong command or option in one line. Other errors are raised again.

    Typer may bring its own copy of click, so click's classes are recognised by what they have.
    """
    if type(error).__name__ == "Abort":
        print("deberta: stopped", file=sys.stderr)
        return 130
    if not hasattr(error, "format_message"):
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "deberta"
    message = " ".join(error.format_message().split()).rstrip(".")
    if possible := re.search(r" ?\(Possible options: (.*?)\)", message):
        (nearest,) = difflib.get_close_matches(str(getattr(error, "option_name", "")), possible[1].split(", "), 1, 0)
        message = message.replace(possible[0], f"; did you mean {nearest}?")
    for kind, plain in (("integer", "a whole number"), ("number", "a number")):
        message = re.sub(f"Input should be a valid {kind}, unable .*", f"not {plain}", message)
    message = re.sub("Input should be (less|greater) than or equal to", _bound, message)
    message = re.sub(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"unexpected argument: \1", message)
    print(f"deberta: {message[0].lower()}{message[1:]} ({command} --help lists all)", file=sys.stderr)
    return getattr(error, "exit_code", 2)


def _bound(match: re.Match[str]) -> str:
    return "must be at most" if match[1] == "less" else "must be at least"


def quiet() -> None:
    """Silence transformers' load reports and progress bars."""
    with working("starting"):  # importing torch takes seconds
        import torch  # noqa: F401
        from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
