"""``deberta pretrain``: from raw text to a model. A repeated run reuses the existing tokenizer and corpus."""

import sys
from collections.abc import Sequence
from pathlib import Path

from debertakit.files import replacing
from debertakit.pretraining import settings
from debertakit.pretraining.continued import adopt, tokenizer_of
from debertakit.pretraining.loop import pretrain, start
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import PretrainConfig
from debertakit.protocols import Tokenizer
from debertakit.text.corpus import Corpus, prepare, tokenizer_hash
from debertakit.text.documents import open_documents
from debertakit.text.manifest import MANIFEST
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer


def pretrain_from_text(
    name: str,
    corpus: str,
    out: str | Path,
    *,
    assignments: Sequence[str] = (),
    tokenizer: str | None = None,
    resume: bool = False,
    minutes: float | None = None,
    init: str | None = None,
    init_generator: str | None = None,
) -> dict[str, float]:
    """Pretrain a model from raw text with a recipe. Returns the metrics of the last evaluation.

    ``name``: a recipe, or the run.json of an earlier run. ``assignments``: changed settings, as "optimizer.lr=1e-3".
    ``init``: continue from this checkpoint. ``tokenizer``: a folder or hub name; default: the tokenizer of ``init``, or
    a new one trained on the corpus. The model, its log and its checkpoints are written to ``out``.
    """
    out = Path(out)
    resumed = resume and (out / "run.json").exists()
    config = settings.load(out / "run.json") if resumed else recipe(name)
    if resumed and recipe(name).name != config.name:
        raise ValueError(
            f"{out} is a run of {config.name}, not of {name}; resume it with {config.name}, or choose another --out"
        )
    if minutes is not None:
        assignments = [*assignments, f"minutes={minutes}"]
    config = settings.override(config, list(assignments))
    if init is not None and not resumed:
        config = adopt(config, init, init_generator)
        config = settings.override(config, [each for each in assignments if each.strip().startswith("model.")])
    if config.minutes is None and config.optimizer.warmup_steps >= config.steps:
        warmup = f"optimizer.warmup_steps={config.optimizer.warmup_steps:,}"
        print(f"{warmup} is not less than steps={config.steps:,}: the learning rate will stay low", file=sys.stderr)
    if not config.model:
        raise ValueError(f"the recipe {config.name} continues from a checkpoint: pass --init MODEL")
    if init_generator is not None and init is None:
        raise ValueError("--init-generator needs --init")
    world = start(config, out, resume)
    if world.main:  # the other ranks wait, then open the result
        get_corpus(config, corpus, get_tokenizer(config, tokenizer, corpus, out), out)
    world.barrier()
    loaded = get_tokenizer(config, tokenizer, corpus, out)
    return pretrain(config, get_corpus(config, corpus, loaded, out), loaded, out, resume=resume, world=world)


def get_tokenizer(config: PretrainConfig, given: str | None, corpus: str, out: Path) -> Tokenizer:
    """Load the given tokenizer, the one in ``out``, or the checkpoint's; otherwise train one on the corpus."""
    folder = out / "tokenizer"
    if given is not None:
        return load_tokenizer(given)
    if not (folder / "tokenizer.json").exists():
        made = _train_tokenizer(config, corpus) if config.init is None else tokenizer_of(config.init)
        with replacing(folder) as temporary:
            made.save_pretrained(temporary)
    return load_tokenizer(folder)


def _train_tokenizer(config: PretrainConfig, corpus: str) -> Tokenizer:
    if (Path(corpus) / MANIFEST).exists():
        raise ValueError(f"{corpus} is already tokenised: pass the --tokenizer that it was prepared with")
    text = Path(corpus) if not corpus.startswith("hf:") else (text for _, text in open_documents(corpus).pieces())
    return train_tokenizer(text, kind=config.data.tokenizer, vocab_size=config.data.vocab_size)


def get_corpus(config: PretrainConfig, corpus: str, tokenizer: Tokenizer, out: Path) -> Corpus:
    """Open a prepared corpus, or prepare the text in ``out``/corpus."""
    if (Path(corpus) / MANIFEST).exists():
        prepared = Corpus.open(corpus)
        if prepared.manifest["tokenizer"] != tokenizer_hash(tokenizer):
            raise ValueError(f"{corpus} was tokenised with another tokenizer: pass that tokenizer, or the text")
        return prepared
    data = config.data
    return prepare(
        corpus,
        tokenizer,
        out / "corpus",
        validation=int(data.validation) if data.validation >= 1 else data.validation,
        language=data.language,
        txt_document=data.txt_document,
        entities=data.entities,
    )
