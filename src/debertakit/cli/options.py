"""Command-line options from dataclasses. The type, default and help text of an option are written once, on its field:

    @dataclass(frozen=True)
    class Limits:
        wait: float = 0.003
        '''Seconds that the first request of a batch waits for more requests.'''

    @app.command()
    @takes({"Limits": Limits})  # title of the help panel: dataclass
    def serve(models: list[str], given: Given) -> None:
        limits = build(Limits, given)

``given`` holds the options that the user wrote, and only those. A command with several modes has a dataclass per mode
and calls ``only`` to refuse the options of other modes. An option that was not given gets the default of the dataclass
that is built, so two modes can share an option and have different defaults.
"""

import ast
import functools
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from types import MappingProxyType
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

Given = Mapping[str, object]
Built = TypeVar("Built")


@dataclass(frozen=True)
class Machine:
    """Options of every command that computes. ``takes`` adds and applies them."""

    device: str | None = None
    """cpu, cuda or cuda:N. Default: the GPU if there is one."""
    threads: int | None = None
    """CPU threads. Default: torch's choice, usually one per core."""

    def __post_init__(self) -> None:
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"--device {self.device}: choose cpu, cuda or cuda:N")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads {self.threads}: must be >= 1")

    def apply(self) -> None:
        """Set the environment variables that torch and tokenizers read when they are imported."""
        if self.device is not None:
            kind, _, number = self.device.partition(":")
            os.environ["DEBERTAKIT_DEVICE"] = kind
            if number:
                os.environ["CUDA_VISIBLE_DEVICES"] = _visible_gpu(int(number))
        if self.threads is not None:
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
                os.environ[name] = str(self.threads)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self.threads)


def _visible_gpu(number: int) -> str:
    """Name of GPU ``number`` among those that CUDA_VISIBLE_DEVICES allows, as a cluster sets it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if visible == [""]:
        return str(number)
    if number >= len(visible):
        raise ValueError(f"--device cuda:{number}: CUDA_VISIBLE_DEVICES={','.join(visible)} has only {len(visible)}")
    return visible[number]


def takes(panels: Mapping[str, type] = MappingProxyType({})) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of dataclasses, and ``Machine``, to the options of a command, which gets them as ``given``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        takes_given = "given" in inspect.signature(command).parameters
        own = [each for each in inspect.signature(command).parameters.values() if each.name != "given"]
        options = _options({**panels, "Machine": Machine})

        @functools.wraps(command)
        def run(**values: object) -> None:
            given = {name: values.pop(name) for name in options}
            written = {name: value for name, value in given.items() if value not in (None, [])}
            machine = {name: written.pop(name) for name in _names(Machine) if name in written}
            build(Machine, machine).apply()
            if takes_given:
                values["given"] = written
            command(**values)

        # typer reads the signature and the annotations
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *options.values())]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _options(panels: Mapping[str, type]) -> dict[str, Parameter]:
    """If several dataclasses have a field, the first one gives its type, panel and help text."""
    found: dict[str, Parameter] = {}
    for panel, cls in panels.items():
        hints, docs = get_type_hints(cls), _docstrings(cls)
        for name in (each.name for each in fields(cls) if each.name not in found):
            choices = _choices(hints[name])
            option = typer.Option(
                None,
                option_name(name),
                help=_help(docs.get(name, ""), name, panels),
                metavar=choices,
                rich_help_panel=panel,
            )
            annotation = (str if choices else hints[name]) | None
            found[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
    return found


def _docstrings(cls: type) -> dict[str, str]:
    """The string literal after each field of a class and its bases: {field name: text on one line}."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except OSError:  # installed without source files
        return {}
    assert isinstance(tree, ast.ClassDef)
    found = {name: text for base in cls.__bases__ if is_dataclass(base) for name, text in _docstrings(base).items()}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def _choices(hint: object) -> str | None:
    """Literal["a", "b"] | None -> "a|b"; None for other types."""
    literal = next((part for part in (hint, *get_args(hint)) if get_origin(part) is Literal), None)
    return None if literal is None else "|".join(get_args(literal))


def _help(doc: str, name: str, panels: Mapping[str, type]) -> str:
    """The docstring of a field in the words of the command line, with the default.

    If several dataclasses have the field, the defaults after the first follow the title of their panel.
    """
    doc = re.sub(r"``(\w+)``", lambda match: option_name(match[1]), doc.replace("None:", "Default:"))
    holders = {panel: getattr(cls, name) for panel, cls in panels.items() if name in _names(cls)}
    first = next(iter(holders))
    found: dict[str, str] = {}
    for panel, default in holders.items():
        if default is not None and default is not False:
            found.setdefault(str(default), "Default" if panel == first else panel)
    return f"{doc} {'; '.join(f'{title}: {default}' for default, title in found.items())}".strip()


def build(cls: type[Built], given: Given) -> Built:
    """Fill a dataclass with the options that were given."""
    return cls(**{name: value for name, value in given.items() if name in _names(cls)})


def only(given: Given, where: str, *classes: type) -> None:
    """Raise if an option was given that is not a field of one of ``classes``: it would be ignored."""
    known = {name for cls in classes for name in _names(cls)}
    for name in given:
        if name not in known:
            raise ValueError(f"{option_name(name)} is not an option of {where}")


def check_sift(given: Given) -> None:
    """Raise if an option of SiFT was given without --sift."""
    if "sift" not in given:
        only({name: value for name, value in given.items() if name.startswith("sift_")}, "a run without --sift")


def option_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _names(cls: type) -> set[str]:
    return {each.name for each in fields(cls)}
