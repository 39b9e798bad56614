import shutil
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from debertakit.finetuning.parameters import add_lora
from debertakit.finetuning.sift import Sift
from debertakit.finetuning.trainer import FinetuneTrainer, sift_overhead
from debertakit.loading import load_for_training
from debertakit.tasks.batches import Collator
from debertakit.tasks.features import ExampleEncoder, find_labels
from tests import tiny

OWN = ("weights", "sift", "layer_decay", "precision", "callbacks")
SIFT = Sift(strength=5.0, step=1e-4, init=1e-2)
KINDS = ["single-label", "multi-label", "regression", "tagging", "qa", "choice"]


def arguments(folder, **fields):
    return TrainingArguments(
        output_dir=str(folder / "out"),
        **{
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "max_steps": 3,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "remove_unused_columns": False,
            "dataloader_pin_memory": False,
            "use_cpu": True,
            **fields,
        },
    )


def trainer(
    folder, kind="single-label", make=tiny.deberta, dropout=None, count=12, evaluator=dict, lora=False, **settings
):
    examples = tiny.examples(kind, count)
    labels = find_labels(kind, examples)
    torch.manual_seed(0)
    model = load_for_training(make(folder / "model"), kind, labels)
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
    if lora:
        model = add_lora(model, 4)
    rows = ExampleEncoder(kind, tiny.tokenizer(), labels, 64).encode(examples).rows
    own = {name: settings.pop(name) for name in OWN if name in settings}
    return FinetuneTrainer(
        model, arguments(folder, **settings), kind, rows, Collator(tiny.tokenizer(), kind), evaluator, **own
    )


def weights_after(folder, **settings):
    made = trainer(folder, **settings)
    made.train()
    return {name: value.detach().clone() for name, value in made.model.state_dict().items()}


def same(a, b, **tolerance):
    for name in a:
        torch.testing.assert_close(a[name], b[name], **tolerance, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tagging", "qa", "choice"])
def test_accumulating_gradients_changes_nothing(kind, tmp_path):
    """The parts have different numbers of labels, so a mean of means would be wrong."""
    plain = {"kind": kind, "dropout": 0.0, "max_steps": 2, "optim": "sgd", "learning_rate": 0.1}
    whole = weights_after(tmp_path, **plain)
    parts = weights_after(tmp_path, **plain, per_device_train_batch_size=1, gradient_accumulation_steps=4)
    same(whole, parts, atol=1e-6, rtol=1e-4)


def test_the_loss_is_transformers_own(tmp_path):
    made = trainer(tmp_path, dropout=0.0)
    batch = made.data_collator(made.train_dataset[:4])
    torch.testing.assert_close(made.compute_loss(made.model, batch), made.model(**batch).loss)


@pytest.mark.slow
def test_sift_of_strength_nothing_is_plain_training(tmp_path):
    same(weights_after(tmp_path), weights_after(tmp_path, sift=replace(SIFT, strength=0.0)), rtol=0, atol=0)


@pytest.mark.parametrize("make", [tiny.deberta, tiny.bert])
@pytest.mark.parametrize("kind", KINDS)
def test_sift_adds_a_divergence_to_every_kind_of_loss(kind, make, tmp_path):
    made = trainer(tmp_path, kind, make, dropout=0.0, count=4, sift=Sift(strength=1e4, step=0.1, init=0.3))
    batch = made.data_collator(made.train_dataset)
    loss = made.compute_loss(made.model, dict(batch))
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.model.parameters())
    sift, made.sift = made.sift, None
    plain = made.compute_loss(made.model, dict(batch))
    assert loss.item() > plain.item() * 1.001
    made.sift = sift


@pytest.mark.slow
def test_sift_trains_with_accumulation_and_in_bf16(tmp_path):
    before = weights_after(tmp_path, max_steps=1, learning_rate=0.0)
    after = weights_after(
        tmp_path,
        sift=replace(SIFT, strength=1.0),
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        precision="bf16",
        max_steps=2,
    )
    assert all(value.isfinite().all() and value.dtype == torch.float32 for value in after.values())
    assert not torch.equal(before["classifier.weight"], after["classifier.weight"])


def test_what_sift_costs_is_measured(tmp_path):
    made = trainer(tmp_path, sift=SIFT)
    made.train()
    assert sift_overhead(made, batches=2) > 1
    assert made.sift == SIFT
    assert all(p.grad is None or not p.grad.any() for p in made.model.parameters())


@pytest.mark.slow
def test_resuming_in_the_middle_of_an_epoch_is_exact(tmp_path):
    steady = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 2, "max_steps": -1, "sift": SIFT}
    whole = trainer(tmp_path, make=tiny.bert, **steady)  # six steps of three an epoch; checkpoints at 2, 4, 6
    fourth = tmp_path / "checkpoint-4"

    class Keep(TrainerCallback):
        """The next checkpoint deletes this one."""

        def on_save(self, args, state, control, **others):
            if state.global_step == 4:
                shutil.copytree(tmp_path / "out" / fourth.name, fourth)

    whole.add_callback(Keep())
    whole.train()
    again = trainer(tmp_path, make=tiny.bert, **steady)
    again.train(resume_from_checkpoint=str(fourth))
    same(whole.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)


def test_the_best_evaluation_is_kept_and_training_stops_when_nothing_improves(tmp_path):
    scores = iter([1.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    kept = []

    def evaluate():
        kept.append(made.model.classifier.weight.detach().clone())
        return {"accuracy": next(scores)}

    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 6}
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "save_total_limit": 1}
    made = trainer(tmp_path, evaluator=evaluate, callbacks=[EarlyStoppingCallback(2)], **settings)
    made.train()
    assert len(kept) == 4
    assert torch.equal(made.model.classifier.weight, kept[1])
    assert not torch.equal(kept[3], kept[1])


def test_weights_of_classes_count(tmp_path):
    heavy = trainer(tmp_path, dropout=0.0, weights=torch.tensor([0.0, 2.0]))
    batch = heavy.data_collator(heavy.train_dataset)
    logits = heavy.model(**{k: v for k, v in batch.items() if k != "labels"}).logits
    chosen = batch["labels"] == 1
    expected = 2 * torch.nn.functional.cross_entropy(logits[chosen], batch["labels"][chosen], reduction="sum")
    torch.testing.assert_close(heavy.compute_loss(heavy.model, batch), expected / len(batch["labels"]))


def test_lora_with_sift_moves_only_what_it_may(tmp_path):
    made = trainer(tmp_path, lora=True, sift=SIFT)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.train()
    moved = {name for name, value in made.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora" in name or "modules_to_save" in name for name in moved)


def test_the_plain_hf_trainer_takes_our_model(tmp_path):
    folder = tiny.deberta(tmp_path / "model")
    examples = tiny.sentences(64)
    data = [{**tiny.tokenizer()(example.text), "labels": int(example.label)} for example in examples]
    model = load_for_training(folder, "single-label", ("0", "1"))
    plain = Trainer(
        model,
        arguments(tmp_path, max_steps=40, per_device_train_batch_size=8, learning_rate=5e-3),
        train_dataset=data,
        eval_dataset=data,
        processing_class=tiny.tokenizer(),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    plain.train()
    assert plain.evaluate()["eval_accuracy"] > 0.9
    plain.save_model(tmp_path / "saved")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    inputs = tiny.tokenizer()("the film was lovely", return_tensors="pt")
    torch.testing.assert_close(stock(**inputs).logits, model.eval()(**inputs).logits, atol=1e-5, rtol=1e-4)


def test_fp16_unscales_the_gradient_before_it_is_clipped(tmp_path):
    """Two steps in fp16 end near those of fp32, with and without clipping."""
    for clip in (0.05, 0.0):
        ends = {
            precision: weights_after(
                tmp_path / f"{precision}-{clip}", precision=precision, dropout=0.0, max_steps=2, max_grad_norm=clip
            )
            for precision in ("fp32", "fp16")
        }
        for name, value in ends["fp32"].items():
            torch.testing.assert_close(ends["fp16"][name], value, atol=3e-3, rtol=0)


def test_the_trainer_saves_and_loads_the_scaler(tmp_path):
    made = trainer(tmp_path, precision="fp16", max_steps=2, save_strategy="steps", save_steps=1)
    made.accelerator.scaler.load_state_dict({**made.accelerator.scaler.state_dict(), "scale": 2.0**8})
    made.train()
    again = trainer(tmp_path / "again", precision="fp16", max_steps=2)
    again.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    assert again.accelerator.scaler.get_scale() == 2.0**8
