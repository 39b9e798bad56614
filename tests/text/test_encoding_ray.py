"""A corpus that Ray tokenised has the same shards as the local one, byte by byte."""

import pytest

from debertakit.text.corpus import prepare
from tests.text.material import ARTICLES, CHINESE, byte_level

pytestmark = pytest.mark.slow


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.npy")}


def test_ray_writes_the_shards_of_the_local_path(tmp_path):
    ray = pytest.importorskip("ray")
    (tmp_path / "a.txt").write_text("\n\n".join([*ARTICLES, *CHINESE]))
    (tmp_path / "names.txt").write_text("mountain\nhistory\n")  # entities: a second kind of mark, found in Python
    try:
        for options in ({}, {"entities": tmp_path / "names.txt"}):
            made = {}
            for engine in ("local", "ray"):
                folder = tmp_path / f"{engine}-{len(options)}"
                corpus = prepare(
                    tmp_path / "a.txt", byte_level(), folder, max_shard_tokens=400, engine=engine, workers=2, **options
                )
                made[engine] = (files(folder), corpus.manifest["shards"])
            assert len(made["local"][1]) > 3
            assert made["local"] == made["ray"]
    finally:
        ray.shutdown()
