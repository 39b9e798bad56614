"""Compare each predictor with a direct call of its model."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel, XLNetConfig, XLNetModel

from debertakit.inference import predictor
from debertakit.inference.answer import QuestionAnswerer
from debertakit.inference.choose import OptionChooser
from debertakit.inference.classify import Classification, PairScorer, Score, TextClassifier, ZeroShotClassifier
from debertakit.inference.fill import MaskFiller
from debertakit.inference.tag import EntityTagger, entities
from debertakit.inference.tasks import load
from debertakit.loading import longest_input
from tests.inference import material
from tests.inference.material import LABELS, NLI, TEXTS


@pytest.fixture(scope="module")
def tokenizer():
    return material.tokenizer()


def logits(model, tokenizer, text, pair=None):
    with torch.inference_mode():
        return model(**tokenizer(text, pair, return_tensors="pt")).logits[0].double().numpy()


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def test_classification(tokenizer):
    model = material.model("SequenceClassification", **LABELS)
    predict = TextClassifier(model, tokenizer)
    results = predict(TEXTS)
    for text, result in zip(TEXTS, results, strict=True):
        chances = softmax(logits(model, tokenizer, text))
        found = {label.label: label.score for label in result.scores}
        assert [found[name] for name in ("bad", "good", "so")] == pytest.approx(chances.tolist(), abs=1e-5)
        assert result.labels == [max(found, key=found.get)]
        assert predict(text).scores[0].score == pytest.approx(result.scores[0].score, abs=1e-6)
    pair = predict({"text": TEXTS[0], "pair": TEXTS[1]})
    expected = softmax(logits(model, tokenizer, TEXTS[0], TEXTS[1]))
    assert pair.scores[0].score == pytest.approx(expected.max(), abs=1e-5)


def test_several_labels_and_a_value(tokenizer):
    model = material.model("SequenceClassification", problem_type="multi_label_classification", **LABELS)
    result = TextClassifier(model, tokenizer)(TEXTS[0])
    chances = 1 / (1 + np.exp(-logits(model, tokenizer, TEXTS[0])))
    assert set(result.labels) == {LABELS["id2label"][i] for i in range(3) if chances[i] >= 0.5}
    assert sorted(label.score for label in result.scores) == pytest.approx(sorted(chances), abs=1e-5)
    model = material.model("SequenceClassification", num_labels=1)
    assert TextClassifier(model, tokenizer)(TEXTS[0]) == Score(
        pytest.approx(logits(model, tokenizer, TEXTS[0])[0], abs=1e-5)
    )


LONG = " ".join(TEXTS[i % 3] for i in range(40))


def test_long_texts(tokenizer):
    model = material.model("SequenceClassification", **LABELS)
    ids = tokenizer(LONG)["input_ids"]
    assert len(ids) > 100
    inner, room, step = ids[1:-1], 62, 62 - 16
    windows = [[1, *inner[i : i + room], 2] for i in range(0, len(inner), step)]
    windows = windows[
        : next(n for n, window in enumerate(windows) if window[-2] is inner[-1] or n * step + room >= len(inner)) + 1
    ]
    with torch.inference_mode():
        each = [model(torch.tensor([window])).logits[0].double().numpy() for window in windows]
    found = TextClassifier(model, tokenizer)(LONG)
    assert found.scores[0].score == pytest.approx(softmax(np.mean(each, axis=0)).max(), abs=1e-5)
    whole = TextClassifier(model, tokenizer, long="whole")(LONG)
    assert whole.scores[0].score == pytest.approx(softmax(logits(model, tokenizer, LONG)).max(), abs=1e-5)
    cut = TextClassifier(model, tokenizer, long="cut")(LONG)
    assert cut.scores[0].score == pytest.approx(softmax(each[0]).max(), abs=1e-5)
    with pytest.raises(ValueError, match="windows, whole, cut"):
        TextClassifier(model, tokenizer, long="short")


@pytest.mark.parametrize(
    ("cls", "head"),
    [(EntityTagger, "TokenClassification"), (QuestionAnswerer, "QuestionAnswering"), (MaskFiller, "MaskedLM")],
)
def test_tasks_that_cannot_cut_say_so(cls, head, tokenizer):
    with pytest.raises(ValueError, match="long='cut'"):
        cls(material.model(head), tokenizer, long="cut")


def test_long_texts_are_read_in_parts_of_bounded_size(tokenizer, monkeypatch):
    """Without the bound, 4,096 texts of 100,000 characters are tokens at the same time, in many gigabytes."""
    predict = ZeroShotClassifier(material.model("SequenceClassification", id2label=NLI, num_labels=3), tokenizer)
    items = [{"text": text, "labels": ["good", "bad"]} for text in [*TEXTS, "the cat " * 60, *TEXTS]]
    expected = predict(items)
    sizes = []

    def encode(part):
        sizes.append([len(item["text"]) for item in part])
        return ZeroShotClassifier.encode(predict, part)

    monkeypatch.setattr(predictor, "CHARACTERS", 120)
    monkeypatch.setattr(predict, "encode", encode)
    found = predict(items)
    assert [length for part in sizes for length in part] == [len(item["text"]) for item in items]
    assert all(2 * sum(part) <= 120 or len(part) == 1 for part in sizes)
    assert any(len(part) > 1 for part in sizes)
    for one, other in zip(found, expected, strict=True):
        assert one.labels == other.labels
        assert [label.score for label in one.scores] == pytest.approx([label.score for label in other.scores], abs=1e-5)


def test_a_long_pair_keeps_the_short_text_in_every_window(tokenizer):
    model = material.model("SequenceClassification", **LABELS)
    predict = TextClassifier(model, tokenizer)
    question = tokenizer("who likes the film ?", add_special_tokens=False)["input_ids"]
    for text, pair in (("who likes the film ?", LONG), (LONG, "who likes the film ?")):
        rows = predict.encode([{"text": text, "pair": pair}])
        assert len(rows) > 2
        assert all(len(row.ids[0]) <= 64 for row in rows)
        assert all(str(question)[1:-1] in str(row.ids[0]) for row in rows)
    both = predict.encode([{"text": LONG, "pair": LONG}])
    assert all(len(row.ids[0]) <= 64 for row in both)


def test_zero_shot(tokenizer):
    model = material.model("SequenceClassification", id2label=NLI, label2id={v: k for k, v in NLI.items()})
    labels = ["film", "river", "dog"]
    each = np.stack([logits(model, tokenizer, TEXTS[1], f"the film is {label}") for label in labels])
    one = ZeroShotClassifier(model, tokenizer, labels=labels, template="the film is {}")(TEXTS[1])
    found = {label.label: label.score for label in one.scores}
    assert [found[name] for name in labels] == pytest.approx(softmax(each[:, 2]).tolist(), abs=1e-5)
    several = ZeroShotClassifier(model, tokenizer, template="the film is {}", multi_label=True)
    result = several({"text": TEXTS[1], "labels": labels})
    found = {label.label: label.score for label in result.scores}
    assert [found[x] for x in labels] == pytest.approx([softmax(row[[0, 2]])[1] for row in each], abs=1e-5)
    with pytest.raises(ValueError, match="needs labels"):
        several("a text")
    with pytest.raises(ValueError, match="labels must be a list of texts, not str"):
        several({"text": "a", "labels": "film"})
    braces = ZeroShotClassifier(model, tokenizer, labels=["film {0}", "river"], template="the {film} is {}")
    expected = [tokenizer(TEXTS[1], f"the {{film}} is {x}")["input_ids"] for x in ("film {0}", "river")]
    assert [row.ids[0] for row in braces.encode([braces.check(TEXTS[1])])] == expected
    with pytest.raises(ValueError, match="needs an NLI model"):
        ZeroShotClassifier(material.model("SequenceClassification", **LABELS), tokenizer)


def test_entities_of_tags():
    text = "Ann Lee lives in Rome,Italy"
    places = [(0, 3), (4, 7), (8, 13), (14, 16), (17, 21), (21, 22), (22, 27)]
    tags = ["B-PER", "I-PER", "O", "O", "B-LOC", "O", "I-LOC"]
    found = entities(text, places, tags, [0.8, 0.6, 1, 1, 0.9, 1, 0.5])
    assert [(e.type, e.text, e.start, e.end) for e in found] == [
        ("PER", "Ann Lee", 0, 7),
        ("LOC", "Rome", 17, 21),
        ("LOC", "Italy", 22, 27),
    ]
    assert found[0].score == pytest.approx(0.7)
    split = entities("ab", [(0, 1), (1, 2)], ["B-PER", "B-PER"], [1, 1])
    assert [e.text for e in split] == ["a", "b"]
    plain = entities(text, places, ["PER", "PER", "O", "O", "LOC", "PER", "PER"], [1] * 7)
    assert [(e.type, e.text) for e in plain] == [("PER", "Ann Lee"), ("LOC", "Rome"), ("PER", ",Italy")]


def test_parts_of_speech_of_every_word(tokenizer):
    """Neighbours with the same tag stay apart, and no tag is left out."""
    tags = {0: "NOUN", 1: "VERB"}
    model = material.model("TokenClassification", num_labels=2, id2label=tags, label2id={v: k for k, v in tags.items()})
    text = "Ann lives in Paris"
    found = EntityTagger(model, tokenizer)(text)
    best = [tags[int(i)] for i in logits(model, tokenizer, text).argmax(-1)[1:-1]]
    places = [("Ann", 0, 3), ("lives", 4, 9), ("in", 10, 12), ("Paris", 13, 18)]
    assert [(e.type, e.text, e.start, e.end) for e in found.entities] == [
        (tag, *place) for tag, place in zip(best, places, strict=True)
    ]
    assert found.headline() == ";".join(f"{tag}:{word}" for tag, (word, *_) in zip(best, places, strict=True))


def test_tagging_a_text_with_its_places(tokenizer):
    tags = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    model = material.model("TokenClassification", num_labels=4, id2label=tags, label2id={v: k for k, v in tags.items()})
    for text in ("Ann lives in Paris,Rome", "北京大学在中国", LONG, " , "):
        result = EntityTagger(model, tokenizer)(text)
        assert all(text[e.start : e.end] == e.text for e in result.entities)
    text = "Ann lives in Paris"
    best = [tags[int(i)] for i in logits(model, tokenizer, text).argmax(-1)[1:-1]]
    places = [(0, 3), (4, 9), (10, 12), (13, 18)]
    expected = [(e.type, e.start, e.end) for e in entities(text, places, best, [1] * 4)]
    assert [(e.type, e.start, e.end) for e in EntityTagger(model, tokenizer)(text).entities] == expected


def test_answers(tokenizer):
    model = material.model("QuestionAnswering")
    context = "Ann lives in Paris . Bob lives in Rome ."
    predict = QuestionAnswerer(model, tokenizer, no_answer=False)
    result = predict({"question": "where is Bob ?", "context": context})
    assert result.answer == result.answers[0].text != ""
    assert all(context[a.start : a.end] == a.text for a in result.answers)
    scores = [a.score for a in result.answers]
    assert scores == sorted(scores, reverse=True)
    assert result.no_answer == 0
    encoded = tokenizer("where is Bob ?", context, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        output = model(**encoded)
    start, end = output.start_logits[0].numpy(), output.end_logits[0].numpy()
    inside = [i for i, which in enumerate(encoded.sequence_ids()) if which == 1]
    best = max(((start[i] + end[j], i, j) for i in inside for j in inside if i <= j), key=lambda found: found[0])
    assert (result.answers[0].start, result.answers[0].end) == (offsets[best[1]][0], offsets[best[2]][1])
    far = predict({"question": "where is Bob ?", "context": LONG})
    assert LONG[far.answers[0].start : far.answers[0].end] == far.answer
    unsure = QuestionAnswerer(model, tokenizer)({"question": "where is Bob ?", "context": context})
    assert 0 < unsure.no_answer < 1


def test_options_of_any_number(tokenizer):
    model = material.model("MultipleChoice")
    predict = OptionChooser(model, tokenizer)
    items = [
        {"text": "Ann sees", "options": ["the cat", "a dog", "the river in Rome"]},
        {"text": "Bob likes", "options": ["the film", "Paris"]},
    ]
    for item, result in zip(items, predict(items), strict=True):
        pairs = tokenizer([item["text"]] * len(item["options"]), item["options"], padding=True, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**{key: value[None] for key, value in pairs.items()}).logits[0].softmax(-1)
        assert result.scores == pytest.approx(expected.tolist(), abs=1e-5)
        assert result.option == item["options"][int(expected.argmax())]
    with pytest.raises(ValueError, match="at least 2 texts"):
        predict({"text": "a", "options": ["one"]})


def test_ranking(tokenizer):
    model = material.model("SequenceClassification", num_labels=1)
    predict = PairScorer(model, tokenizer)
    ranked = predict.rank("who ?", TEXTS, top=3)
    values = [logits(model, tokenizer, "who ?", text)[0] for text in TEXTS]
    assert [index for index, _ in ranked] == sorted(range(5), key=lambda i: -values[i])[:3]
    assert ranked[0][1] == pytest.approx(max(values), abs=1e-5)


def test_embeddings(tmp_path):
    folder = material.saved(tmp_path / "m", "")
    predict = load(folder, "embed")
    model, tokenizer = material.model(""), material.tokenizer()
    vectors = np.array([result.embedding for result in predict(TEXTS)])
    with torch.inference_mode():
        each = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in TEXTS]
    expected = torch.nn.functional.normalize(torch.stack(each), dim=-1).numpy()
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_pooling_goes_by_the_folder(tmp_path):
    from debertakit.inference.onnx import export_onnx

    folder = material.saved(tmp_path / "m", "")
    stored = folder / "1_Pooling" / "config.json"
    stored.parent.mkdir()
    (folder / "modules.json").write_text("[]")
    for mode in ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"}):
        stored.write_text(json.dumps(mode))
        assert load(folder).pooling == "cls"
    export_onnx(folder, tmp_path / "onnx")
    exported = load(tmp_path / "onnx", backend="onnx")
    assert exported.pooling == "cls"
    assert exported(TEXTS[0]).embedding == pytest.approx(load(folder)(TEXTS[0]).embedding, abs=1e-4)
    assert (tmp_path / "onnx" / "modules.json").is_file()
    export_onnx(material.saved(tmp_path / "plain", ""), tmp_path / "onnx")
    assert load(tmp_path / "onnx", backend="onnx").pooling == "mean"
    for mode in ("max_tokens", "weightedmean_tokens", "lasttoken"):
        stored.write_text(json.dumps({"pooling_mode_mean_tokens": False, f"pooling_mode_{mode}": True}))
        with pytest.raises(ValueError, match=f"pools by {mode}; only mean and cls are supported"):
            load(folder)
    assert load(folder, pooling="mean").pooling == "mean"


def test_a_graph_of_logits_gives_no_vectors(tmp_path):
    from debertakit.inference.onnx import export_onnx

    export_onnx(material.saved(tmp_path / "m", "SequenceClassification", **LABELS), tmp_path / "onnx")
    with pytest.raises(ValueError, match="needs the graph of a bare encoder; this graph outputs logits"):
        load(tmp_path / "onnx", "embed", backend="onnx")


def test_a_head_without_trained_weights_is_refused(tmp_path):
    folder = material.saved(tmp_path / "m", "SequenceClassification", **LABELS)
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file({name: value for name, value in weights.items() if name != "classifier.bias"}, file)
    with pytest.raises(ValueError, match=r"missing or have another size, for example classifier"):
        load(folder)
    save_file({**weights, "classifier.weight": torch.zeros(5, 32), "classifier.bias": torch.zeros(5)}, file)
    with pytest.raises(ValueError, match=r"missing or have another size, for example classifier"):
        load(folder)
    save_file({name: value for name, value in weights.items() if "layer.1.output.dense" not in name}, file)
    with pytest.raises(ValueError, match=r"2 weights .* for example deberta\.encoder\.layer\.1"):
        load(folder)


def test_another_encoder_with_and_without_its_head(tmp_path, tokenizer):
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=64, architectures=["BertForMaskedLM"], **shape
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "whole")
    tokenizer.save_pretrained(tmp_path / "whole")
    assert len(load(tmp_path / "whole")("the [MASK]").masks[0]) == 5
    BertModel(config).save_pretrained(tmp_path / "bare")
    written = json.loads((tmp_path / "bare" / "config.json").read_text())
    (tmp_path / "bare" / "config.json").write_text(json.dumps({**written, "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ValueError, match=r"are missing or have another size, for example cls\."):
        load(tmp_path / "bare", "fill")


def test_an_encoder_without_a_longest_text(tokenizer):
    model = XLNetModel(XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16))
    assert longest_input(model, tokenizer) == (64, False)
    endless = material.tokenizer()
    endless.model_max_length = int(1e30)
    assert longest_input(model, endless) == (512, False)


def test_the_head_chooses_the_task(tmp_path):
    folder = material.saved(tmp_path / "m", "SequenceClassification", **LABELS)
    assert isinstance(load(folder)("the cat"), Classification)
    with pytest.raises(ValueError, match="ner needs a TokenClassification head"):
        load(folder, "ner")
    with pytest.raises(ValueError, match="did you mean classify"):
        load(folder, "clasify")


@pytest.mark.parametrize(
    "item",
    ["", "  ", {"txt": "a"}, 3, {"text": 5}, None, {"text": None}, {"text": ["a", "b"]}, {"text": "a", "pair": ["b"]}],
)
def test_inputs_that_cannot_be_read(item, tokenizer):
    predict = TextClassifier(material.model("SequenceClassification", **LABELS), tokenizer)
    with pytest.raises(ValueError, match=r"empty|missing|needs|text"):
        predict([item])


@pytest.mark.parametrize("head", ["SequenceClassification", "QuestionAnswering", "MaskedLM", ""])
def test_onnx_says_what_torch_says(head, tmp_path):
    from debertakit.inference.onnx import export_onnx

    folder = material.saved(tmp_path / "m", head, **(LABELS if head.startswith("Seq") else {}))
    export_onnx(folder, tmp_path / "onnx")
    item = {
        "QuestionAnswering": {"question": "where is Bob ?", "context": "Ann lives in Paris . Bob lives in Rome ."},
        "MaskedLM": "the [MASK] sees a dog in [MASK]",
    }.get(head, TEXTS[4])
    ours, onnx = load(folder)(item), load(tmp_path / "onnx", backend="onnx")(item)
    assert numbers(onnx) == pytest.approx(numbers(ours), abs=1e-4)


def numbers(result):
    """List all scores of a result, in order."""
    if isinstance(result, float):
        return [result]
    if isinstance(result, list):
        return [number for part in result for number in numbers(part)]
    return [number for part in vars(result).values() for number in numbers(part)] if hasattr(result, "__dict__") else []
