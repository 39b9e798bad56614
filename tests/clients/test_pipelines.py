"""transformers pipelines with our classes, with accelerated models, and accelerated as a whole."""

import pytest
from transformers import pipeline

import debertakit
from debertakit import accelerate, undo
from tests.clients.material import NO_DROPOUT, TEXTS
from tests.stock import VARIANTS, pair
from tests.tiny import tokenizer

TASKS = {
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "fill-mask": "ForMaskedLM",
    "feature-extraction": "Model",
    "zero-shot-classification": "ForSequenceClassification",
}
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
NLI["label2id"] = {name: number for number, name in NLI["id2label"].items()}


def pipelines(variant, task):
    fields = {"vocab_size": len(tokenizer()), "max_position_embeddings": 64, "position_buckets": 16, **NO_DROPOUT}
    if task == "zero-shot-classification":
        fields.update(NLI)
    models = pair(variant, TASKS[task], **fields)
    return [pipeline(task, model=model, tokenizer=tokenizer(), device="cpu") for model in models]


def run(task, pipe, **options):
    if task == "fill-mask":
        return pipe(["the film was [MASK]", "[MASK] lives in paris and bob saw it"], **options)
    if task == "zero-shot-classification":
        return pipe(TEXTS[:2], candidate_labels=["good", "bad film"], **options)
    if task == "feature-extraction":  # in a batch it also returns the rows at padding
        return [
            rows[0][: len(tokenizer()(text).input_ids)]
            for rows, text in zip(pipe(TEXTS, **options), TEXTS, strict=True)
        ]
    if task == "text-classification":
        options["top_k"] = None
    return pipe(TEXTS, **options)


def assert_equal(found, expected):
    """Nested lists and dicts, numbers up to rounding."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, e in zip(found, expected, strict=True):
            assert_equal(a, e)
    elif isinstance(expected, str) or expected is None:
        assert found == expected
    else:
        assert float(found) == pytest.approx(float(expected), abs=2e-5)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_equal_stock(variant, task, batch_size):
    model, stock = pipelines(variant, task)
    assert_equal(run(task, model, batch_size=batch_size), run(task, stock, batch_size=batch_size))


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities_of_every_strategy_equal_stock(strategy):
    model, stock = pipelines("own", "token-classification")
    assert_equal(model(TEXTS, aggregation_strategy=strategy), stock(TEXTS, aggregation_strategy=strategy))


@pytest.mark.parametrize("task", TASKS)
def test_a_whole_pipeline_is_accelerated_in_place(task):
    """A pipeline is not an nn.Module but contains one, which accelerate() must find."""
    _, pipe = pipelines("own", task)
    before = run(task, pipe)
    assert accelerate(pipe) is pipe
    assert "forward" in vars(pipe.model.base_model.encoder)
    assert_equal(run(task, pipe), before)
    assert undo(pipe) is pipe
    assert "forward" not in vars(pipe.model.base_model.encoder)


def test_an_object_without_a_model_is_refused():
    for thing in (tokenizer(), object(), {"model": None}, "deberta"):
        with pytest.raises(ValueError, match="DeBERTa"):
            accelerate(thing)


def test_a_pipeline_built_from_a_folder(tmp_path):
    model, stock = pair("own", vocab_size=len(tokenizer()))
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded = debertakit.DebertaForSequenceClassification.from_pretrained(tmp_path)
    pipe = pipeline("text-classification", model=loaded, tokenizer=tokenizer(), device="cpu")
    by_name = pipeline("text-classification", model=str(tmp_path), device="cpu")
    assert type(by_name.model) is type(stock)
    assert_equal(run("text-classification", pipe), run("text-classification", by_name))
