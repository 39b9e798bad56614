import pytest

from debertakit.config import PRESETS
from debertakit.finetuning.hyperparameters import DEFAULT, LIKE, MAX_LENGTHS, hyperparameters, model_size
from debertakit.tasks.suites import BENCHMARKS


def test_microsofts_cells_are_as_written():
    mnli = hyperparameters("mnli", "v3-large")
    assert (mnli.epochs, mnli.warmup, mnli.lr, mnli.batch_size, mnli.cls_dropout, mnli.max_length) == (
        2,
        500,
        7e-6,
        64,
        0.3,
        256,
    )
    cola = hyperparameters("cola", "base")
    assert (cola.epochs, cola.warmup, cola.lr, cola.batch_size, cola.cls_dropout, cola.max_length) == (
        6,
        100,
        2e-5,
        32,
        0.15,
        64,
    )


def test_sift_recipes_of_mnli():
    assert hyperparameters("mnli", "v3-xsmall", sift=True).sift_lambda == 3
    assert hyperparameters("mnli", "v3-xsmall", sift=True).epochs == 10
    assert hyperparameters("rte", "v3-xsmall", sift=True).sift_lambda == 5
    assert hyperparameters("mnli", "v3-xsmall").epochs == 3


def test_sizes_without_a_script_keep_a_rate_of_their_own():
    assert hyperparameters("rte", "v3-small").lr == 4.5e-5
    assert hyperparameters("rte", "v3-small").batch_size == hyperparameters("rte", "base").batch_size
    rates = [hyperparameters("my data", size).lr for size in ("tiny", "v3-small", "v3-base", "v3-large", "v2-xxlarge")]
    assert rates == sorted(rates, reverse=True)
    assert hyperparameters("my data", "base") == DEFAULT


def test_only_a_script_of_its_own_gives_a_task_its_length():
    assert hyperparameters("sst2", "base").max_length == 128
    assert hyperparameters("chnsenticorp", "base").max_length is None  # reviews of hotels, not sentences
    assert hyperparameters("chnsenticorp", "base").lr == hyperparameters("sst2", "base").lr


def test_every_task_and_size():
    for name in BENCHMARKS:
        for size in ("tiny", *(preset.removeprefix("m").removeprefix("deberta-") for preset in PRESETS)):
            found = hyperparameters(name, size)
            assert 1e-6 <= found.lr <= 1e-4
            assert found.epochs >= 2
    assert {*MAX_LENGTHS, *LIKE, *LIKE.values()} <= set(BENCHMARKS)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "size"),
    [
        ("microsoft/deberta-v3-small", 6, 768, "v3-small"),
        ("microsoft/mdeberta-v3-base/", 12, 768, "v3-base"),
        ("microsoft/deberta-base-mnli", 12, 768, "base"),
        ("runs/mine", 4, 256, "tiny"),
        ("all-MiniLM-L6-v2", 6, 384, "tiny"),
        ("bert-base-uncased", 12, 768, "v3-base"),
        ("roberta-large", 24, 1024, "v3-large"),
    ],
)
def test_size_of_a_model(name, layers, hidden, size):
    assert model_size(name, layers, hidden) == size


def test_released_shapes_by_weights_alone():
    for preset, shape in PRESETS.items():
        size = model_size("unnamed", shape["num_hidden_layers"], shape["hidden_size"])
        if "-v3-" in preset:
            assert size == preset.removeprefix("m").removeprefix("deberta-")


def test_unknown_size():
    with pytest.raises(ValueError, match="unknown size 'huge'; choose from tiny"):
        hyperparameters("rte", "huge")
