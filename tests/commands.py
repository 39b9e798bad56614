"""Check the commands that documentation shows: deberta, make, pip and torchrun, without running them."""

import fnmatch
import re
import shlex
from pathlib import Path

import typer

from debertakit.cli import app

ROOT = Path(__file__).parents[1]


def leaves(command):
    """All subcommands without subcommands of their own."""
    for child in getattr(command, "commands", {}).values():
        yield from leaves(child) if hasattr(child, "commands") else (child,)


def check(words: list[str]) -> None:
    """Raise if the command has an unknown subcommand, option, target or extra."""
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([\w%-]+):(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for target in (word for word in arguments if "=" not in word):
            given = [needs for pattern, needs in targets if fnmatch.fnmatch(target, pattern.replace("%", "*"))]
            assert given, f"no target {target} in the Makefile"
    elif program == "pip":
        known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
        for extras in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= known, f"no such extra in pyproject.toml: {extras}"
    else:
        if program == "torchrun":
            arguments = arguments[arguments.index("debertakit.cli") + 1 :]
        command = typer.main.get_command(app)
        for leaf in leaves(command):
            leaf.callback = None
        try:
            command.main([word for word in arguments if word != "..."], prog_name="deberta", standalone_mode=False)
        except Exception as error:  # typer may bring its own copy of click, with its own classes
            if type(error).__name__ != "MissingParameter" or "..." not in arguments:
                message = error.format_message() if hasattr(error, "format_message") else error
                raise AssertionError(f"{shlex.join(words)}: {message}") from error
