"""Subcommands, run in this process to save start-up time. tests/test_cli.py tests the process."""

import re

import pytest
from typer.testing import CliRunner

from debertakit.cli import app
from debertakit.finetuning.modes import SEQ2SEQ_TASKS
from debertakit.finetuning.seq2seq import TASKS
from tests import tiny
from tests.material import tsv


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, and RTE in its distributed file format."""
    folder = tmp_path_factory.mktemp("command")
    tiny.deberta(folder / "model")
    for name, count, seed in (("train", 24, 0), ("dev", 10, 1), ("test", 5, 2)):
        labels = {"0": "not_entailment", "1": "entailment"}
        rows = [(e.id, e.text, "it was good", labels[e.label]) for e in tiny.sentences(count, seed)]
        table = [("index", "sentence1", "sentence2", "label"), *rows]
        tsv(folder / "data" / f"{name}.tsv", *(row[: 3 if name == "test" else 4] for row in table))
    return folder


def run(*arguments):
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if found.exception is not None and not isinstance(found.exception, ValueError):
        raise found.exception
    return found


@pytest.fixture(scope="module")
def runs(place):
    """Two runs of a benchmark, made by the command."""
    command = ["finetune", "--model", place / "model", "--task", "rte", "--data", place / "data", "--epochs", 1]
    command += ["--batch-size", 8, "--lr", 5e-3, "--out"]
    first, second = run(*command, place / "a"), run(*command, place / "b", "--seed", 1, "--max-length", 16)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert re.search(r"a: accuracy \d+\.\d\d on the dev set, \d+ s", first.stdout)
    assert re.search(r"^\d+\.\d % accuracy \(majority class: \d+\.\d %\), 95 % interval", first.stdout)
    assert "24 training and 10 dev examples" in first.stderr
    return place / "a", place / "b"


def test_evaluate_prints_what_finetune_found(place, runs):
    shown = run("evaluate", runs[0], "--task", "rte", "--data", place / "data", "--out", place / "kept").output
    assert "% accuracy (majority class: " in shown
    assert shown.splitlines()[-1] in (runs[0] / "report.md").read_text().replace("| dev | accuracy | ", "accuracy ")
    kept, made = (f / "predictions-dev.jsonl" for f in (place / "kept", runs[0]))
    assert kept.read_text() == made.read_text()


def test_two_runs_are_compared(runs):
    shown = run("evaluate", *runs, "--compare", "--resamples", 200).output
    assert re.match(r"no significant difference \(p = |.*/[ab] is better \(p = ", shown)
    for name in ("difference", "95 % interval", "paired bootstrap: p = ", "randomisation: p = ", "McNemar: p = "):
        assert name in shown


def test_robustness_of_a_run(place, runs):
    command = ("evaluate", runs[0], "--task", "rte", "--data", place / "data", "--robustness")
    shown = run(*command, "--out", place / "robust").stdout.splitlines()
    firsts = ["typos", "case", "word", "negation", f"{place / 'robust' / 'robustness.html'}:"]
    assert [line.split()[0] for line in shown[2:]] == firsts
    assert " 10 of 10 " in shown[3]
    assert run(*command).stdout.splitlines() == shown[:-1]


def test_the_leaderboards_file(place, runs):
    out = place / "leaderboard"
    arguments = ("evaluate", runs[0], "--task", "rte", "--data", place / "data", "--predict-test", "--out", out)
    assert "5 predictions" in run(*arguments).output
    rows = (out / "RTE.tsv").read_text().splitlines()
    assert rows[0] == "index\tprediction"
    assert len(rows) == 6
    assert {row.split("\t")[1] for row in rows[1:]} <= {"entailment", "not_entailment"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "{a}", "{b}"), "pass one model, not 2; to compare two runs, add --compare"),
        (("evaluate", "{a}", "{data}/tets.tsv"), r"tets.tsv: no such file .did you mean 'test.tsv'"),
        (("evaluate", "{a}", "--compare"), "--compare needs two runs, not 1"),
        (("evaluate", "{a}"), "pass a file with labels"),
        (("evaluate", "{model}", "--task", "rte", "--data", "{data}"), "fine-tune it first"),
        (("evaluate", "{a}", "{model}", "--compare"), "not a finished run"),
        (("evaluate", "{a}", "--task", "stsb", "--data", "{data}"), "model for single-label, but stsb is a regression"),
        (("evaluate", "{a}", "--task", "sst2", "--data", "{data}"), "has the labels .*entailment.*, but sst2 has"),
        (("evaluate", "{a}", "--task", "rte", "--data", "{data}", "--split", "more"), "no 'more' examples"),
        (("evaluate", "{a}", "--task", "rte", "--data", "{data}", "--predict-test"), "--out"),
        (
            ("finetune", "--model", "{model}", "--out", "{a}", "--task", "rte", "--data", "{data}"),
            "already contains a run",
        ),
        (("finetune", "--model", "{data}", "--out", "{data}/x", "--task", "rte", "--data", "{data}"), "no config.json"),
        (("finetune", "--model", "{model}", "--out", "{data}/x"), "pass a training file"),
        (
            ("finetune", "--model", "{model}", "--task", "rte", "--data", "{data}", "--search", "4", "--seeds", "2"),
            "--search tries one seed",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments, message, place, runs):
    places = {"a": runs[0], "b": runs[1], "model": place / "model", "data": place / "data"}
    found = run(*(argument.format(**places) for argument in arguments))
    assert isinstance(found.exception, ValueError)
    assert re.search(message, str(found.exception))
    assert len(str(found.exception).splitlines()) == 1


RTE = ("--task", "rte", "--data", "d")
FILE = ("--file", "f.csv", "--text", "a", "--label", "y")


@pytest.mark.parametrize(
    ("verb", "arguments", "ignored", "where"),
    [
        ("finetune", (*RTE, "--sift-lambda", 3), "--sift-lambda", "a run without --sift"),
        ("finetune", (*RTE, "--sift-step", 1), "--sift-step", "a run without --sift"),
        ("finetune", (*RTE, "--sift-init", 1), "--sift-init", "a run without --sift"),
        ("finetune", (*RTE, "--dev", "d.csv"), "--dev", "--task rte"),
        ("finetune", (*RTE, "--text", "a"), "--text", "--task rte"),
        ("finetune", (*RTE, "--source", "s.txt"), "--source", "--task rte"),
        ("finetune", (*RTE, "--max-target", 8), "--max-target", "--task rte"),
        ("finetune", ("--train", "t.csv", "--data", "d"), "--data", "a run with --train"),
        ("finetune", ("--train", "t.csv", "--beams", 2), "--beams", "a run with --train"),
        ("finetune", ("--task", "translation", "--batch-size", 8), "--batch-size", "--task translation"),
        ("finetune", ("--task", "summarisation", "--pair", "a"), "--pair", "--task summarisation"),
        ("finetune", ("--task", "translation", "--max-length", 8), "--max-length", "--task translation"),
        ("evaluate", ("m", *RTE, "--text", "a"), "--text", "--task rte"),
        ("evaluate", ("m", *RTE, "--option", "a"), "--option", "--task rte"),
        ("evaluate", ("m", *RTE, "--file", "f.csv"), "--file", "--task rte"),
        ("evaluate", ("m", *RTE, "--window", 8), "--window", "--task rte"),
        ("evaluate", ("m", *FILE, "--data", "d"), "--data", "--file"),
        ("evaluate", ("m", *FILE, "--stride", 8), "--stride", "--file"),
        ("evaluate", ("m", *FILE, "--seed", 1), "--seed", "--file"),
        ("evaluate", ("m", *RTE, "--robustness", "--text", "a"), "--text", "--task rte --robustness"),
        ("evaluate", ("m", *FILE, "--robustness", "--data", "d"), "--data", "--robustness"),
        ("evaluate", ("m", *FILE, "--resamples", 200), "--resamples", "--file"),
        ("evaluate", ("m", *RTE, "--out", "o", "--predict-test", "--split", "dev2"), "--split", "--predict-test"),
        ("evaluate", ("m", *RTE, "--out", "o", "--predict-test", "--file", "f"), "--file", "--predict-test"),
        ("evaluate", ("m", "n", "--compare", *RTE), "--task", "--compare"),
        ("evaluate", ("m", "n", "--compare", "--out", "o"), "--out", "--compare"),
        ("evaluate", ("m", "n", "--compare", "--window", 8), "--window", "--compare"),
        ("evaluate", ("m", "--perplexity", "t.txt", *RTE), "--task", "--perplexity"),
        ("evaluate", ("m", "--perplexity", "t.txt", "--out", "o"), "--out", "--perplexity"),
        ("evaluate", ("m", "n", "--perplexity", "t.txt", "--compare"), "--compare", "--perplexity"),
        ("evaluate", ("m", "--task", "translation", "--split", "test"), "--split", "--task translation"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(verb, arguments, ignored, where):
    found = run(verb, *arguments, *(("--model", "m", "--out", "o") if verb == "finetune" else ()))
    assert isinstance(found.exception, ValueError)
    assert str(found.exception) == f"{ignored} is not an option of {where}"


def test_no_step_between_evaluations():
    found = run("finetune", "--model", "m", "--out", "o", *RTE, "--evaluate-every", "0")
    assert str(found.exception) == "evaluate_every is 0; it must be > 0"


def test_the_tasks_on_text_pairs_are_those_of_seq2seq():
    assert tuple(TASKS) == SEQ2SEQ_TASKS
