"""Options from dataclasses, on a small command of our own."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from debertakit.cli.options import Given, Machine, build, only, takes


@dataclass(frozen=True)
class Paint:
    colour: Literal["red", "blue"] = "red"
    """Colour of the wall."""
    coats: int = 2
    """Number of coats.
    More coats need more ``drying_time``."""
    drying_time: float | None = None
    """Hours between coats. None: as the tin says."""
    matt: bool = False
    """Matt instead of glossy."""


@dataclass(frozen=True)
class Paper:
    coats: int = 1
    """Coats of glue."""
    pattern: list[str] | None = None
    """Pattern; repeatable."""
    sample: Path | None = None

    def __post_init__(self) -> None:
        if self.coats < 1:
            raise ValueError(f"coats={self.coats}: must be >= 1")


@pytest.fixture
def run():
    """Run the command; the result has what the command received."""
    app, received = typer.Typer(), {}

    @app.command()
    @takes({"Paint": Paint, "Paper": Paper})
    def decorate(wall: Annotated[str, typer.Argument(help="Which wall.")], given: Given, papered: bool = False) -> None:
        """Decorate a wall."""
        only(given, "a papered wall" if papered else "a painted wall", Paper if papered else Paint)
        received.update(wall=wall, given=dict(given), built=build(Paper if papered else Paint, given))

    def invoke(*arguments):
        received.clear()
        found = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})
        return found, dict(received)

    return invoke


def test_options_that_are_not_given_have_the_default_of_the_dataclass_that_is_built(run):
    assert run("north")[1] == {"wall": "north", "given": {}, "built": Paint()}
    assert run("north", "--papered")[1]["built"] == Paper(coats=1)


def test_values_have_the_types_of_the_fields(run):
    _, received = run("north", "--colour", "blue", "--coats", "3", "--drying-time", "1.5", "--matt")
    assert received["built"] == Paint("blue", 3, 1.5, True)
    _, received = run("north", "--papered", "--pattern", "dots", "--pattern", "stripes", "--sample", "a.png")
    assert received["built"] == Paper(1, ["dots", "stripes"], Path("a.png"))


def test_a_given_option_is_refused_by_another_mode_even_if_it_has_its_default(run):
    found, received = run("north", "--papered", "--colour", "red")
    assert str(found.exception) == "--colour is not an option of a papered wall"
    assert not received
    found, _ = run("north", "--pattern", "dots")
    assert str(found.exception) == "--pattern is not an option of a painted wall"


def test_the_dataclass_checks_its_values(run):
    found, _ = run("north", "--papered", "--coats", "0")
    assert str(found.exception) == "coats=0: must be >= 1"
    assert run("north", "--coats", "many")[0].exit_code == 2


def test_help(run):
    shown = " ".join(run("--help")[0].output.replace("│", " ").split())
    assert "Decorate a wall." in shown
    for text in (
        "Colour of the wall. Default: red",
        "Number of coats. More coats need more --drying-time. Default: 2; Paper: 1",
        "Hours between coats. Default: as the tin says.",
        "red|blue",
        "Pattern; repeatable.",
    ):
        assert text in shown
    assert "None" not in shown
    assert "─ Paint ─" in shown
    assert "─ Paper ─" in shown


def test_the_number_of_a_gpu_counts_those_that_the_cluster_allows(monkeypatch):
    monkeypatch.setenv("DEBERTAKIT_DEVICE", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ValueError, match="cuda:2: CUDA_VISIBLE_DEVICES=4,5 has only 2"):
        Machine(device="cuda:2").apply()
    Machine(device="cuda:1").apply()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
