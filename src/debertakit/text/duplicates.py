"""Find documents that occur more than once in a corpus, exactly or nearly. The first copy counts, the others are named.

Exact: equal text after cleaning (a hash of each document). Near: the Jaccard similarity of two sets of shingles is at
least ``near``. A shingle is five units in a row; a unit is a word or a Chinese character. MinHash estimates the
similarity from 128 numbers per document, and locality-sensitive hashing finds the candidates (datasketch):

    J(A, B) = |A and B| / |A or B|  ~  share of the 128 permutations with equal minimum

Exact search keeps about 100 bytes per document in memory, near search about 5 kB.
"""

import zlib

from debertakit.files import bytes_hash
from debertakit.installation import install
from debertakit.text.characters import UNIT

SHINGLE = 5
PERMUTATIONS = 128


class Duplicates:
    """``seen(text)`` says whether an earlier text was the same, or nearly."""

    def __init__(self, near: float | None = None):
        if near is not None and not 0.3 <= near < 1:
            raise ValueError(f"near duplicates: a similarity of {near} must be at least 0.3 and less than 1 (0.8)")
        self.hashes: set[str] = set()
        self.sketches = None if near is None else _Sketches(near)

    def seen(self, text: str) -> bool:
        exact = bytes_hash([text.encode()])
        if exact in self.hashes:
            return True
        self.hashes.add(exact)
        return self.sketches is not None and self.sketches.seen(text, exact)


class _Sketches:
    """MinHash sketches of the documents so far, in an index for similar ones."""

    def __init__(self, near: float):
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise ValueError(f"near duplicates need datasketch: {install('dedup')}") from error
        self.near = near
        self.index = MinHashLSH(threshold=near, num_perm=PERMUTATIONS)
        self.empty = MinHash(num_perm=PERMUTATIONS, seed=1, hashfunc=zlib.crc32)
        self.kept: dict[str, MinHash] = {}

    def seen(self, text: str, name: str) -> bool:
        sketch = self.empty.copy()
        sketch.update_batch(shingles(text))
        if any(sketch.jaccard(self.kept[other]) >= self.near for other in self.index.query(sketch)):
            return True
        self.index.insert(name, sketch)
        self.kept[name] = sketch
        return False


def shingles(text: str) -> list[bytes]:
    """The different runs of SHINGLE units, in any order. A shorter text is one shingle."""
    units = UNIT.findall(text.lower())
    runs = {" ".join(units[start : start + SHINGLE]) for start in range(max(len(units) - SHINGLE + 1, 1))}
    return [run.encode() for run in runs]
