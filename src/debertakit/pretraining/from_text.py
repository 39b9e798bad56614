"""``deberta pretrain``: from raw text to a model. A repeated run reuses the existing tokenizer and corpus."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from debertakit.loading import describe
from debertakit.objectives import DISTILLATION
from debertakit.objectives.teacher import same_pieces
from debertakit.pretraining import settings
from debertakit.pretraining.continued import absolute, adopt, tokenizer_of
from debertakit.pretraining.loop import pretrain, start
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import PretrainConfig
from debertakit.pretraining.tagger import PREFIX, Tagger
from debertakit.protocols import Tokenizer
from debertakit.text.corpus import Corpus, prepare, tokenizer_hash
from debertakit.text.documents import open_documents, split_weight
from debertakit.text.manifest import MANIFEST
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer, save_tokenizer
from debertakit.training.ranks import naming_lost_ranks


def pretrain_from_text(
    name: str,
    corpus: str | Sequence[str],
    out: str | Path,
    *,
    assignments: Sequence[str] = (),
    tokenizer: str | None = None,
    resume: bool = False,
    minutes: float | None = None,
    init: str | None = None,
    init_generator: str | None = None,
    teacher: str | None = None,
    tagger: str | None = None,
) -> dict[str, float]:
    """Pretrain a model from raw text with a recipe. Returns the metrics of the last evaluation.

    ``name``: a recipe, or the run.json of an earlier run. ``corpus``: a source, or several; "a.txt=0.7" gives a source
    its share of the tokens of every step. ``assignments``: changed settings, as "optimizer.lr=1e-3".
    ``init``: continue from this checkpoint. ``tokenizer``: a folder or hub name; default: the tokenizer of ``init``, or
    a new one trained on the corpus. ``teacher``: distil this model (a folder or hub name). ``tagger``: mask the
    entities that this model finds. The model, its log and its checkpoints are written to ``out``.
    """
    out = Path(out)
    sources, mixture = parse_sources([corpus] if isinstance(corpus, str) else corpus)
    if mixture is not None:
        assignments = [*assignments, f"data.mixture={mixture}"]
    resumed = resume and (out / "run.json").exists()
    config = settings.load(out / "run.json") if resumed else recipe(name)
    if resumed and recipe(name).name != config.name:
        raise ValueError(
            f"{out} is a run of {config.name}, not of {name}; resume it with {config.name}, or choose another --out"
        )
    if minutes is not None:
        assignments = [*assignments, f"minutes={minutes}"]
    if teacher is not None:
        assignments = [*assignments, f"teacher={absolute(teacher)}"]
    if tagger is not None:
        assignments = [*assignments, f"data.entities={PREFIX}{absolute(tagger)}"]
    config = settings.override(config, list(assignments))
    if resumed and init is not None and config.init not in (init, str(Path(init).resolve())):
        raise ValueError(f"{out} started from {config.init or 'random weights'}, not from --init {init}")
    if init is not None and not resumed:
        config = adopt(config, init, init_generator)
        config = settings.override(config, [each for each in assignments if each.strip().startswith("model.")])
    if tagger is not None and not config.masking.masks_entities:
        raise ValueError(
            f"--tagger finds entities, but {config.name} masks by {config.masking.strategy}: use the recipe "
            "tiny-entities, or --set masking.strategy=entity or entity-or-token"
        )
    if config.minutes is None and config.optimizer.warmup_steps >= config.steps:
        warmup = f"optimizer.warmup_steps={config.optimizer.warmup_steps:,}"
        print(f"{warmup} is not less than steps={config.steps:,}: the learning rate will stay low", file=sys.stderr)
    if not config.model:
        raise ValueError(f"the recipe {config.name} continues from a checkpoint: pass --init MODEL")
    if init_generator is not None and init is None:
        raise ValueError("--init-generator needs --init")
    with naming_lost_ranks():
        world = start(config, out, resume)
        if world.main:  # the other ranks wait, then open the result
            get_corpus(config, sources, get_tokenizer(config, tokenizer, sources, out), out)
        world.barrier()
        loaded = get_tokenizer(config, tokenizer, sources, out)
        loaded.model_max_length = max(loaded.model_max_length, config.data.max_length)
        opened = Corpus.open(sources[0] if is_prepared(sources) else out / "corpus")
    config = add_distillation(config, loaded, announce=world.main)
    return pretrain(config, opened, loaded, out, resume=resume, world=world)


def add_distillation(config: PretrainConfig, tokenizer: Tokenizer, *, announce: bool = True) -> PretrainConfig:
    """Choose the objective of a run with a teacher, unless the config has one already."""
    if config.teacher is None or any(name in config.objectives.weights for name in DISTILLATION):
        return config
    if not same_pieces(tokenizer, describe(config.teacher).tokenizer()):
        name, reason = "vectors", "the teacher has another vocabulary"
    else:
        name, reason = "relations" if config.family == "deberta" else "hidden", "the teacher has the same vocabulary"
    if announce:
        print(f"teacher: {config.teacher}, objectives.{name}=1 because {reason}", file=sys.stderr)
    return settings.override(config, [f"objectives.{name}=1"])


def get_tokenizer(config: PretrainConfig, given: str | None, sources: Sequence[str], out: Path) -> Tokenizer:
    """Load the given tokenizer, the one in ``out``, or the checkpoint's; otherwise train one on the corpus."""
    folder = out / "tokenizer"
    if given is not None:
        return load_tokenizer(given)
    if not (folder / "tokenizer.json").exists():
        made = _train_tokenizer(config, sources) if config.init is None else tokenizer_of(config.init)
        save_tokenizer(made, folder)
    return load_tokenizer(folder)


def _train_tokenizer(config: PretrainConfig, sources: Sequence[str]) -> Tokenizer:
    if is_prepared(sources):
        raise ValueError(f"{sources[0]} is already tokenised: pass the --tokenizer that it was prepared with")
    text: Iterable[str | Path] = [Path(source) for source in sources]
    if any(source.startswith("hf:") for source in sources):
        text = (text for _, text in open_documents(sources).pieces())
    return train_tokenizer(text, kind=config.data.tokenizer, vocab_size=config.data.vocab_size)


def parse_sources(corpus: Sequence[str]) -> tuple[list[str], str | None]:
    """["a.txt=0.7", "b.txt=0.3"] -> (["a.txt", "b.txt"], "0.7,0.3"). Without weights, the second value is None."""
    pairs = [split_weight(each) for each in corpus]
    sources, weights = [name for name, _ in pairs], [weight for _, weight in pairs]
    if any(weights) and not all(weights):
        raise ValueError("give each --corpus a weight (a.txt=0.7), or none of them")
    if len(sources) > 1 and any(is_prepared([source]) for source in sources):
        raise ValueError("a mixture is prepared from text: deberta corpus prepare a.txt b.txt --out CORPUS")
    return sources, ",".join(weights) if len(sources) > 1 and any(weights) else None


def is_prepared(sources: Sequence[str]) -> bool:
    return len(sources) == 1 and (Path(sources[0]) / MANIFEST).exists()


def get_corpus(config: PretrainConfig, sources: Sequence[str], tokenizer: Tokenizer, out: Path) -> Corpus:
    """Open and verify a prepared corpus, or prepare the text in ``out``/corpus."""
    if is_prepared(sources):
        prepared = Corpus.open(sources[0])
        if prepared.manifest["tokenizer"] != tokenizer_hash(tokenizer):
            raise ValueError(f"{sources[0]} was tokenised with another tokenizer: pass that tokenizer, or the text")
        if config.data.entities is not None and prepared.manifest["options"]["entities"] is None:
            raise ValueError(
                f"{sources[0]} was prepared without entities (data.entities={config.data.entities}): pass the text"
            )
        prepared.verify()
        return prepared
    data = config.data
    named = data.entities is not None and data.entities.startswith(PREFIX)
    entities = Tagger(str(data.entities).removeprefix(PREFIX)) if named else data.entities
    return prepare(
        sources,
        tokenizer,
        out / "corpus",
        validation=int(data.validation) if data.validation >= 1 else data.validation,
        language=data.language,
        txt_document=data.txt_document,
        entities=entities,
    )
