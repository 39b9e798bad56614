import pydoc_data.topics

import pytest

from debertakit.text.corpus import prepare
from debertakit.text.tokenizer_training import train_tokenizer
from debertakit.text.tokenizers import load_tokenizer


@pytest.fixture(scope="session")
def materials(tmp_path_factory):
    """kind of tokenizer -> (corpus, tokenizer), trained on Python's language reference."""
    folder = tmp_path_factory.mktemp("manual")
    topics = sorted(pydoc_data.topics.topics.items())
    pages = [" ".join(line.strip() for line in text.splitlines()) for _, text in topics]
    (folder / "manual.txt").write_text("\n\n".join(page[:6000] for page in pages), encoding="utf-8")

    made = {}

    def make(kind):
        if kind not in made:
            tokenizer = train_tokenizer(folder / "manual.txt", kind=kind, vocab_size=512, progress=False)
            tokenizer.save_pretrained(folder / kind)
            tokenizer = load_tokenizer(folder / kind)
            made[kind] = prepare(folder / "manual.txt", tokenizer, folder / f"{kind}-corpus"), tokenizer
        return made[kind]

    return make
