"""``deberta compare``: train recipes of one size on one corpus with one budget, measure them, and judge the claims.

    OUT/
      settings.json           the command; a repeated command continues, and may add seeds, tasks and recipes
      data/KIND/              tokenizer and corpus, one for each kind of tokenizer
      words.json              the hidden words of all models
      speed/RECIPE.json       tokens per second, memory
      sweep/RECIPE/ROUND-RATE/  short runs that choose the learning rate
      runs/RECIPE/seed-N/     the runs, with their checkpoints
      tasks/TASK/RECIPE/seed-N/  fine-tuned models
      measures/RECIPE-N.json  hidden words, minimal pairs, learning curve
      logs/                   output of every job
      results.json, report.md, report.html

Each phase is a queue of independent jobs (jobs.py): speed (one at a time), the rounds of the sweep, pretraining,
measures, fine-tuning. A job that is done is not repeated.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from debertakit.files import locked, write_json
from debertakit.lab.floors import ORDERS, NGram
from debertakit.lab.jobs import Job, Show, run_jobs
from debertakit.lab.minimal_pairs import prefer_good, read_pairs
from debertakit.lab.options import CompareOptions, parse_budget
from debertakit.lab.plan import (
    Contestant,
    Entry,
    common_configs,
    equal_sizes,
    rates_to_try,
    share_models,
    with_budget,
    with_rate,
)
from debertakit.lab.words import HiddenWord, choose_words
from debertakit.pretraining.from_text import get_corpus, get_tokenizer, is_prepared
from debertakit.pretraining.settings import PretrainConfig
from debertakit.protocols import Tokenizer
from debertakit.tasks import suites
from debertakit.text.corpus import document_hash
from debertakit.text.documents import open_documents
from debertakit.text.progress import working
from debertakit.text.shards import Corpus

FLOOR_CHARACTERS = 4_000_000
"""Training text of the n-gram floors: the beginning of the corpus."""


@dataclass(frozen=True)
class Prepared:
    """A comparison before its first run."""

    out: Path
    corpus: str
    options: CompareOptions
    contestants: list[Contestant]
    data: dict[str, Path]
    """Recipe -> folder with its tokenizer and corpus."""

    @property
    def hidden_words(self) -> Path:
        return self.out / "words.json"

    def trained_as(self, recipe: str) -> str:
        """The row that trains the model of this one: itself, unless they differ only in fine-tuning."""
        return next(each.trained_as or recipe for each in self.contestants if each.recipe == recipe)

    def run(self, recipe: str, seed: int) -> Path:
        return self.out / "runs" / self.trained_as(recipe) / f"seed-{seed}"

    def task(self, task: str, recipe: str, seed: int) -> Path:
        return self.out / "tasks" / task / recipe / f"seed-{seed}"

    def measures(self, recipe: str, seed: int) -> Path:
        return self.out / "measures" / f"{self.trained_as(recipe)}-{seed}.json"

    def speed(self, recipe: str) -> Path:
        return self.out / "speed" / f"{self.trained_as(recipe)}.json"

    @property
    def trained(self) -> list[Contestant]:
        """The rows with a model of their own."""
        return [each for each in self.contestants if not each.trained_as]


@dataclass(frozen=True)
class Swept:
    """The sweep of one recipe: validation loss of each rate in each round."""

    rate: float
    rounds: list[dict[str, float | None]]
    """Rate -> validation loss; None: the run diverged."""
    tokens: int
    """Cost of the sweep."""

    @property
    def at_the_edge(self) -> bool:
        """Whether the chosen rate is the lowest or highest that was tried: a better one may lie outside."""
        tried = [float(rate) for rate in self.rounds[0]] if self.rounds else []
        return len(tried) > 1 and self.rate in (min(tried), max(tried))


def compare(
    entries: Sequence[Entry], corpus: str, out: Path, options: CompareOptions, show: Show, *, match: bool = True
) -> Prepared:
    """Run everything that is not done yet. Returns the finished comparison, for the report.

    ``match``: make the models equally large (plan.py).
    """
    for task in options.task_names:
        suites.task(task)  # raises on an unknown name
    if is_prepared([corpus]):
        raise ValueError(f"{corpus} is already tokenised; a comparison needs the text, for its words and n-grams")
    if options.pairs:
        read_pairs(options.pairs, options.limit)  # raises before anything is trained
    common_configs(entries, options)  # raises on recipes that cannot be compared
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        settings = _settings(entries, corpus, options, match)
        check_settings(out, settings)
        write_json(out / "settings.json", settings)
        prepared = prepare(entries, corpus, out, options, match=match)
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        run_jobs([speed_job(prepared, each) for each in prepared.trained], show, threads=threads, alone=True)
        swept = sweep(prepared, show, threads)
        write_json(out / "sweep.json", {name: asdict(each) for name, each in swept.items()})
        seeds = range(options.seeds)  # all recipes with seed 0 first: an early look is a fair one
        runs = [run_job(prepared, each, swept[each.recipe].rate, seed) for seed in seeds for each in prepared.trained]
        run_jobs(runs, show, threads=threads)
        pairs = [(each, seed) for seed in seeds for each in prepared.contestants]
        jobs = [finetune_job(prepared, task, each, seed) for task in options.task_names for each, seed in pairs]
        run_jobs(jobs, show, threads=threads)
    return prepared


def reopen(
    entries: Sequence[Entry], corpus: str, out: Path, options: CompareOptions, *, match: bool = True
) -> Prepared:
    """Open a comparison to report what has finished. It may still be running in another process."""
    if not (out / "sweep.json").exists():
        raise ValueError(f"{out} has no finished run to report yet")
    check_settings(out, _settings(entries, corpus, options, match))
    return prepare(entries, corpus, out, options, match=match)


def _settings(entries: Sequence[Entry], corpus: str, options: CompareOptions, match: bool) -> dict[str, Any]:
    recipes = [" ".join([each.name, each.recipe, *each.assignments]) for each in entries]
    plain = json.loads(json.dumps(asdict(options), default=str))
    return {"recipes": recipes, "corpus": corpus, "match": match, **plain}


def check_settings(out: Path, settings: dict[str, Any]) -> None:
    """Raise if the folder contains something else. Seeds and tasks may change, because no other run depends on them."""
    path = out / "settings.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        free = {"seeds", "tasks", "data"}
        if settings["tokenizer"] and before["recipes"][0] == settings["recipes"][0]:
            free.add("recipes")  # otherwise the hidden words depend on the tokenizers of all recipes
        for name, value in settings.items():
            if before.get(name) != value and name not in free:
                raise ValueError(
                    f"{out} contains another comparison, with {name} {before.get(name)!r} instead of {value!r}; "
                    "repeat its command to continue it, or choose another --out"
                )
        return
    if any(path for path in out.iterdir()):
        raise ValueError(f"{out} is not empty and is no comparison; choose another --out")


# -------------------------------------------------------------------------------------------------------------- prepare


def prepare(entries: Sequence[Entry], corpus: str, out: Path, options: CompareOptions, *, match: bool) -> Prepared:
    """Tokenizers, corpora, equal sizes, hidden words and floors."""
    configs = common_configs(entries, options)
    tokenizers: dict[str, Tokenizer] = {}
    data: dict[str, Path] = {}
    for name, config in configs.items():
        folder = out / "data" / (config.data.tokenizer if options.tokenizer is None else "given")
        folder.mkdir(parents=True, exist_ok=True)
        given = options.tokenizer if not (folder / "tokenizer" / "tokenizer.json").exists() else None
        tokenizers[name] = _tokenizer(config, given, corpus, folder)
        if folder not in data.values():
            get_corpus(config, [corpus], tokenizers[name], folder)
        data[name] = folder
    contestants = share_models(equal_sizes(configs, tokenizers, match=match), entries)
    prepared = Prepared(out, corpus, options, contestants, data)
    if not (out / "floors.json").exists():
        with working("hidden words and n-gram floors"):
            _write_words_and_floors(prepared, list(tokenizers.values()))
    return prepared


def _tokenizer(config: PretrainConfig, given: str | None, corpus: str, folder: Path) -> Tokenizer:
    """Train a tokenizer, or copy the given one, once."""
    if given is not None:
        from debertakit.text.tokenizers import load_tokenizer, save_tokenizer

        save_tokenizer(load_tokenizer(given), folder / "tokenizer")
    return get_tokenizer(config, None, [corpus], folder)


def _write_words_and_floors(prepared: Prepared, tokenizers: Sequence[Tokenizer]) -> None:
    config, options = prepared.contestants[0].config, prepared.options
    held_out = Corpus.open(next(iter(prepared.data.values())) / "corpus").held_out_hashes()
    distinct = list({id(each): each for each in tokenizers}.values())
    texts = _documents(prepared, lambda text: document_hash(text) in held_out)
    hidden = choose_words(texts, distinct, options.words, config.data.max_length)
    write_json(prepared.hidden_words, [vars(each) for each in hidden])
    training = list(_beginning(_documents(prepared, lambda text: document_hash(text) not in held_out)))
    model = NGram(training, max(ORDERS.values()))
    found = {name: _floor(model.shortened(order), hidden, options) for name, order in ORDERS.items()}
    write_json(prepared.out / "floors.json", found)


def _floor(model: NGram, hidden: Sequence[HiddenWord], options: CompareOptions) -> dict[str, Any]:
    scores = model.score_words(hidden)
    pairs = None
    if options.pairs:
        chosen = read_pairs(options.pairs, options.limit)
        pairs = prefer_good([model.text_score(text) for pair in chosen for text in (pair.good, pair.bad)])
    return {"bits": [each.bits for each in scores], "right": [each.right for each in scores], "pairs": pairs}


def _documents(prepared: Prepared, wanted: Callable[[str], bool]) -> Iterable[str]:
    """The first piece of each document that is wanted."""
    reader = open_documents(prepared.corpus, txt_document=prepared.contestants[0].config.data.txt_document)
    return (text for begins, text in reader.pieces() if begins and wanted(text))


def _beginning(texts: Iterable[str]) -> Iterable[str]:
    left = FLOOR_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


# ----------------------------------------------------------------------------------------------------------------- jobs


def speed_job(prepared: Prepared, each: Contestant) -> Job:
    name, data = each.recipe, prepared.data[each.recipe]
    config = replace(each.config, minutes=None)
    return _job(prepared, f"speed of {name}", "speed", prepared.speed(name), _data(config, data))


def run_job(prepared: Prepared, each: Contestant, rate: float, seed: int) -> Job:
    """Train and measure one run."""
    options, recipe = prepared.options, each.recipe
    config = replace(with_rate(each.config, rate), seed=seed)
    settings = {
        **_data(config, prepared.data[recipe]),
        "run": str(prepared.run(recipe, seed)),
        "words": str(prepared.hidden_words),
        "pairs": [str(path) for path in options.pairs or []],
        "limit": options.limit,
    }
    done = prepared.measures(recipe, seed)
    job = _job(prepared, f"{recipe}, seed {seed}", "run", done, settings, prepared.run(recipe, seed))
    return replace(job, total=config.steps)


def finetune_job(prepared: Prepared, task: str, each: Contestant, seed: int) -> Job:
    out = prepared.task(task, each.recipe, seed)
    options = {**each.finetuning, **({"epochs": 0.1} if prepared.options.quick else {})}
    settings = {
        "model": str(prepared.run(each.recipe, seed)),
        "task": task,
        "data": str(prepared.options.data),
        "seed": seed,
        "options": options,
    }
    return _job(prepared, f"{task} with {each.recipe}, seed {seed}", "finetune", out / "metrics.json", settings, out)


def _data(config: PretrainConfig, folder: Path) -> dict[str, Any]:
    return {"config": asdict(config), "corpus": str(folder / "corpus"), "tokenizer": str(folder / "tokenizer")}


def _job(
    prepared: Prepared, name: str, kind: str, done: Path, settings: dict[str, Any], out: Path | None = None
) -> Job:
    settings = {**settings, "out": str(out or done), "done": str(done)}
    return Job(name, kind, settings, done, prepared.out / "logs" / f"{name.replace(', ', '-').replace(' ', '-')}.log")


# ---------------------------------------------------------------------------------------------------------------- sweep


def sweep(prepared: Prepared, show: Show, threads: int) -> dict[str, Swept]:
    """Choose each recipe's learning rate by successive halving of the validation loss.

    Round r trains every rate that is left for sweep * 2^r of the budget, from scratch and with its own schedule; the
    better half goes on. The runs have the seed 1000, which no measured run has.
    """
    left = {each.recipe: rates_to_try(each.config, prepared.options.rates) for each in prepared.trained}
    rounds: dict[str, list[dict[str, float | None]]] = {name: [] for name in left}
    spent = dict.fromkeys(left, 0)
    budget, number = parse_budget(prepared.options.budget), 0
    while any(len(rates) > 1 for rates in left.values()):
        share = min(1.0, prepared.options.sweep * 2**number)
        planned: list[tuple[Contestant, float, Job]] = []
        for each in prepared.trained:
            for rate in left[each.recipe] if len(left[each.recipe]) > 1 else []:
                config = replace(with_rate(with_budget(each.config, budget.part(share)), rate), seed=1000)
                config = replace(config, checkpoint_every=config.steps, keep_last=1)
                out = prepared.out / "sweep" / each.recipe / f"{number}-{rate:g}"
                settings = _data(config, prepared.data[each.recipe])
                name = f"{each.recipe}, round {number + 1}, rate {rate:g}"
                job = _job(prepared, name, "pretrain", out / "metrics.json", settings, out)
                planned.append((each, rate, replace(job, total=config.steps, may_fail=True)))
        failed = run_jobs([job for *_, job in planned], show, threads=threads)
        for each in prepared.trained:
            runs = {rate: job for owner, rate, job in planned if owner is each}
            losses = {rate: None if job.name in failed else _loss(job) for rate, job in runs.items()}
            if losses:
                rounds[each.recipe].append({f"{rate:g}": loss for rate, loss in losses.items()})
                spent[each.recipe] += sum(_tokens(job) for job in runs.values())
                left[each.recipe] = better_half(each.recipe, losses)
        number += 1
    return {name: Swept(rates[0], rounds[name], spent[name]) for name, rates in left.items()}


def better_half(recipe: str, losses: Mapping[float, float | None]) -> list[float]:
    """The rates with the lower losses, half of them rounded up. A rate at which the run diverged (None) is out."""
    finite = {rate: loss for rate, loss in losses.items() if loss is not None}
    if not finite:
        raise ValueError(
            f"{recipe} diverges at every learning rate of the sweep: {', '.join(f'{r:g}' for r in losses)}"
        )
    best = sorted(finite, key=lambda rate: finite[rate])
    return sorted(best[: math.ceil(len(losses) / 2)])


def _loss(job: Job) -> float | None:
    loss = json.loads(job.done.read_text(encoding="utf-8"))["loss"]
    return loss if math.isfinite(loss) else None


def _tokens(job: Job) -> int:
    """Tokens of a run of the sweep, from its checkpoint's progress."""
    newest = sorted((job.done.parent / "checkpoints").glob("step-*[0-9]/progress.json"))
    return json.loads(newest[-1].read_text(encoding="utf-8"))["tokens"] if newest else 0
