"""A model folder means one thing: ``evaluate``, ``predict_file``, the server and the ONNX export answer alike."""

import asyncio
import json
from dataclasses import asdict

import httpx
import pytest

import debertakit
from debertakit.data.examples import Question, TextExample
from debertakit.finetuning.evaluation import load_evaluator
from debertakit.inference.files import predict_file
from debertakit.loading import TaskSettings, describe
from debertakit.serving.app import create_app
from debertakit.serving.endpoints import ServedModel
from debertakit.tasks.task import Task
from tests import tiny

LONG = "the film was good and we saw it in paris . it was a sad day there " * 4  # several windows of 16 tokens
KINDS = ("single-label", "multi-label", "regression", "tagging", "qa", "choice")


def rows_of(kind):
    """Dev examples of a kind. One is much longer than the model's maximum length."""
    examples = tiny.examples(kind, 8, seed=2)
    if kind == "qa":
        context = f"{LONG} , anna lives in rome . {LONG}"
        return [*examples, Question("8", " who lives in rome ? ", context, ("anna",), (context.index("anna"),))]
    if kind == "tagging":
        return [*examples, tiny.tagged("8", [*LONG.split(), "anna", "U.S."])]
    if kind == "choice":
        return [*examples, type(examples[0])("8", LONG, "it was", ("good", "bad"), label=0)]
    return [*examples, TextExample("8", f"  {LONG} ", examples[0].pair, examples[0].label)]


@pytest.fixture(scope="module", params=["single-label", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[1:])])
def trained(request, tmp_path_factory):
    """(kind, folder of a run that reads at most 16 tokens)"""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    options = {"epochs": 1, "max_length": 40 if kind == "qa" else 16, "precision": "fp32"}
    debertakit.finetune(tiny.deberta(folder / "base"), folder / "run", task=tiny.task(kind), **options)
    return kind, folder / "run"


def as_input(kind, example):
    if kind == "tagging":
        return {"words": list(example.words)}
    if kind == "qa":
        return {"question": example.question, "context": example.context}
    if kind == "choice":
        return {"text": example.text, "pair": example.pair, "options": list(example.options)}
    return {"text": example.text} if example.pair is None else {"text": example.text, "pair": example.pair}


def as_result(kind, example, prediction):
    """The part of a predictor's result that follows from an evaluator's prediction."""
    if kind == "tagging":
        return [tag[2:] for tag in prediction.value if tag != "O"]
    if kind == "multi-label":
        return sorted(prediction.value)
    return prediction.value


def value_of(kind, result):
    if kind == "tagging":
        return [entity["type"] for entity in result["entities"] for _ in entity["text"].split(" ")]
    if kind == "qa":
        return result["answer"]
    if kind == "choice":
        return result["index"]
    if kind == "regression":
        return result["score"]
    return sorted(result["labels"]) if kind == "multi-label" else result["labels"][0]


def predicted(predictor, folder, kind, examples):
    source = folder.parent / "rows.jsonl"
    source.write_text("".join(json.dumps(as_input(kind, example)) + "\n" for example in examples), encoding="utf-8")
    out = folder.parent / "predictions.jsonl"
    out.unlink(missing_ok=True)
    assert predict_file(predictor, source, out).errors == 0
    return [json.loads(line)["details"] for line in out.read_text(encoding="utf-8").splitlines()]


def served(predictor, kind, examples):
    app = create_app([ServedModel("m", predictor)])

    async def ask():
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        async with app.router.lifespan_context(app), client:
            answer = await client.post(f"/{predictor.task}", json={"inputs": [as_input(kind, e) for e in examples]})
            return answer.json()["results"]

    return asyncio.run(ask())


def test_evaluate_predict_and_serve_give_the_same_answers(trained):
    kind, folder = trained
    examples = rows_of(kind)
    if kind == "qa":  # between the null scores of these questions, so that some are answered and some are not
        scores = sorted(p.no_answer for p in load_evaluator(folder, tiny.task(kind))(examples).predictions)
        threshold = (scores[3] + scores[4]) / 2
        TaskSettings(describe(folder).settings.max_length, threshold).save(folder)
    task = Task("own", kind, lambda _: {"dev": examples}, *tiny.SCORES[kind])
    evaluation = debertakit.evaluate(folder, task=task)
    expected = [as_result(kind, e, p) for e, p in zip(examples, evaluation.predictions, strict=True)]
    if kind == "qa":
        assert "" in expected
        assert any(expected)
    predictor = debertakit.load(folder)
    if kind != "choice":  # options are truncated, other long texts are read in windows
        assert len(predictor.encode([predictor.check(as_input(kind, examples[-1]))])) > 2
    close = (lambda values: pytest.approx(values, abs=1e-5)) if kind == "regression" else (lambda values: values)
    from_file = predicted(predictor, folder, kind, examples)
    assert [value_of(kind, result) for result in from_file] == close(expected)
    assert [value_of(kind, result) for result in served(predictor, kind, examples)] == close(expected)
    if kind in ("single-label", "multi-label"):
        labels = predictor.encoder.labels
        for result, prediction in zip(from_file, evaluation.predictions, strict=True):
            scores = {label["label"]: label["score"] for label in result["scores"]}
            assert [scores[label] for label in labels] == pytest.approx(prediction.probabilities, abs=1e-5)


def test_an_export_answers_like_the_run(trained):
    pytest.importorskip("onnxruntime")
    kind, folder = trained
    out = folder.parent / "onnx"
    debertakit.export_onnx(folder, out)
    assert describe(out).settings == describe(folder).settings
    inputs = [as_input(kind, example) for example in rows_of(kind)]
    predictors = debertakit.load(folder), debertakit.load(out, backend="onnx")
    values = [[value_of(kind, asdict(result)) for result in predict(inputs)] for predict in predictors]
    assert values[1] == (pytest.approx(values[0], abs=1e-5) if kind == "regression" else values[0])


def test_a_run_of_version_1_keeps_its_length_and_threshold(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"max_length": 24}))
    (tmp_path / "metrics.json").write_text(json.dumps({"no_answer_threshold": 1.5}))
    assert TaskSettings.read(tmp_path) == TaskSettings(24, 1.5)
    (tmp_path / "metrics.json").write_text(json.dumps({"no_answer_threshold": None}))
    assert TaskSettings.read(tmp_path) == TaskSettings(24, None)


def test_an_adapter_folder_answers_like_the_merged_model(tmp_path):
    peft = pytest.importorskip("peft")
    from debertakit.finetuning.parameters import add_lora
    from debertakit.loading import load_for_training

    base = tiny.deberta(tmp_path / "base")
    adapted = add_lora(load_for_training(base, "single-label", ("a", "b", "c")), rank=2)
    assert isinstance(adapted, peft.PeftModel)
    adapted.peft_config["default"].task_type = "SEQ_CLS"
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    import torch

    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    merged = adapted.merge_and_unload().eval()
    predict = debertakit.load(tmp_path / "adapter")
    with torch.inference_mode():
        logits = merged(**tiny.tokenizer()("the film was good", return_tensors="pt")).logits[0]
    found = {label.label: label.score for label in predict("the film was good").scores}
    assert [found[f"LABEL_{i}"] for i in range(3)] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)

    with pytest.raises(ValueError, match=r"no model\.onnx in .*adapter;"):
        debertakit.load(tmp_path / "adapter", backend="onnx")
    debertakit.export_onnx(tmp_path / "adapter", tmp_path / "exported")
    exported = debertakit.load(tmp_path / "exported", backend="onnx")
    again = {label.label: label.score for label in exported("the film was good").scores}
    assert again == pytest.approx(found, abs=1e-4)
