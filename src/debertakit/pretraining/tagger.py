"""The user's own tagger as the source of entities, for entity masking: ``--tagger FOLDER``.

The entities are found once, while the corpus is prepared, and stored with its tokens. A resumed run therefore masks the
same entities. The corpus records the hash of the tagger, and a corpus of another tagger is refused.
"""

from functools import cached_property

from debertakit.data.examples import Tagged
from debertakit.files import bytes_hash
from debertakit.loading import describe, longest_input
from debertakit.precision import best_device
from debertakit.tasks.batches import Collator
from debertakit.tasks.decisions import decide, row_logits
from debertakit.tasks.features import ExampleEncoder
from debertakit.tasks.tagging import marks_entities, merge_tags, split_words

PREFIX = "tagger:"
"""``data.entities`` is this and the name of a model."""


class Tagger:
    """Finds the entities of a text with a token-classification model (a detector, see text/boundaries.py)."""

    def __init__(self, name: str):
        saved = describe(name)
        if saved.kind != "tagging":
            raise ValueError(f"--tagger {name}: a model that tags words is needed, and this one is for {saved.kind}")
        if not marks_entities(saved.labels):
            raise ValueError(f"--tagger {name}: its tags mark no entities ({', '.join(saved.labels[:5])} ...)")
        self.labels = saved.labels
        self.model = saved.network().to(best_device())
        self.tokenizer = saved.tokenizer()
        self.max_length = saved.settings.max_length or longest_input(self.model, self.tokenizer)[0]

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """Return the (start, end) of each entity, in characters."""
        words = split_words(text)
        if not words:
            return []
        example = Tagged("", tuple(word for word, _ in words))
        rows = ExampleEncoder("tagging", self.tokenizer, self.labels, self.max_length).encode([example]).rows
        logits, _ = row_logits(self.model, rows, "tagging", Collator(self.tokenizer, "tagging"))
        (prediction,) = decide("tagging", [example], rows, logits, self.labels)
        places = [place for _, place in words]
        return [(places[first][0], places[end - 1][1]) for _, first, end in merge_tags(prediction.value)]

    def __str__(self) -> str:
        """Name in the manifest of a corpus."""
        return PREFIX + self._hash

    @cached_property
    def _hash(self) -> str:
        weights = (tensor.cpu().numpy().tobytes() for tensor in self.model.state_dict().values())
        return bytes_hash([self.tokenizer.backend_tokenizer.to_str().encode(), *weights])
