import pytest
import torch
from transformers import Trainer, TrainingArguments

from debertakit import heads
from debertakit.heads import (
    DebertaForMaskedLM,
    DebertaForMultipleChoice,
    DebertaForQuestionAnswering,
    DebertaForReplacedTokenDetection,
    DebertaForSequenceClassification,
    DebertaForTokenClassification,
)
from debertakit.model import DebertaModel
from tests.models import randomise, small
from tests.numpy_deberta import NumpyDeberta


def test_replaced_token_logits_equal_numpy():
    config = small()
    model = randomise(DebertaForReplacedTokenDetection(config))
    ids, mask = torch.randint(1, 101, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, 5:] = 0
    logits = model(ids, attention_mask=mask).logits
    reference = NumpyDeberta(model.state_dict(), config)
    for row, length in ((0, 9), (1, 5)):
        expected = torch.from_numpy(reference.replaced(ids[row, :length].numpy()))
        torch.testing.assert_close(logits[row, :length].double(), expected, atol=5e-5, rtol=1e-5)


def test_replaced_token_loss_counts_every_real_token_once():
    model = randomise(DebertaForReplacedTokenDetection(small()))
    ids, mask = torch.randint(1, 101, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    labels = torch.randint(0, 2, (2, 6))
    output = model(ids, attention_mask=mask, labels=labels)
    p = output.logits.sigmoid()[mask.bool()]
    y = labels[mask.bool()].float()
    by_hand = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    torch.testing.assert_close(output.loss, by_hand, atol=1e-5, rtol=1e-4)


def test_masked_lm_loss_is_the_same_in_training_and_evaluation():
    model = randomise(DebertaForMaskedLM(small(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))
    ids, mask = torch.randint(1, 101, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, 6:] = 0
    labels = torch.full_like(ids, -100)
    labels[0, 1], labels[1, 3], labels[1, 7] = 4, 5, 6
    evaluated, trained = model(ids, mask, labels=labels), model.train()(ids, mask, labels=labels)
    torch.testing.assert_close(evaluated.loss, trained.loss)
    assert evaluated.logits.shape == trained.logits.shape == (2, 8, 101)
    model.config.sparse_prediction = True
    sparse = model(ids, mask, labels=labels)
    torch.testing.assert_close(sparse.loss, trained.loss)
    assert sparse.logits.shape == (3, 101)
    torch.testing.assert_close(sparse.logits[2], evaluated.logits[1, 7], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_labels", [1, 3])
def test_sequence_classification_learns_a_rule(num_labels):
    """The class depends only on the first word."""
    config = small(num_labels=num_labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = DebertaForSequenceClassification(config).train()
    ids = torch.randint(1, 101, (24, 6))
    ids[:, 1] = torch.arange(24) % 3 + 5
    labels = (ids[:, 1] - 5).float() if num_labels == 1 else ids[:, 1] - 5
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimiser.zero_grad()
        loss = model(ids, labels=labels).loss
        loss.backward()
        optimiser.step()
    assert loss < 0.1


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge", "deberta-v3-base"])
@pytest.mark.parametrize("padding", ["none", "right", "left", "empty"])
def test_the_last_layer_computes_first_tokens_alone(name, padding):
    """With output_hidden_states the last layer runs on all tokens: same logits and gradients. Hooks run either way."""
    model = randomise(DebertaForSequenceClassification(small(name, num_hidden_layers=3)))
    ids, mask = torch.randint(5, 101, (4, 9)), torch.ones(4, 9, dtype=torch.long)
    if padding != "none":
        mask[1, 6:], mask[3, 2:] = 0, 0
    if padding == "left":
        mask = mask.flip(1)
    if padding == "empty":
        mask[2] = 0
    found = []
    for whole in (False, True):
        model.zero_grad()
        rows = []
        last = model.deberta.encoder.layer[-1]
        hooks = [
            last.intermediate.register_forward_hook(lambda _, __, output, rows=rows: rows.append(len(output))),
            last.register_forward_hook(lambda _, __, output, rows=rows: rows.append(len(output))),
        ]
        output = model(ids, attention_mask=mask, labels=torch.tensor([0, 1, 1, 0]), output_hidden_states=whole)
        for hook in hooks:
            hook.remove()
        assert rows == [4 if not whole and padding in ("none", "right") else int(mask.sum())] * 2
        output.loss.backward()
        found.append([output.logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_shapes_and_losses_of_the_other_heads():
    ids = torch.randint(1, 101, (2, 5))
    tokens = DebertaForTokenClassification(small())(ids, labels=torch.zeros_like(ids))
    assert tokens.logits.shape == (2, 5, 3)
    assert tokens.loss > 0
    answer = DebertaForQuestionAnswering(small())(
        ids, start_positions=torch.tensor([0, 1]), end_positions=torch.tensor([2, 9])
    )
    assert answer.start_logits.shape == (2, 5)
    assert answer.loss > 0
    choice = DebertaForMultipleChoice(small("deberta-base"))(ids[:, None].repeat(1, 4, 1), labels=torch.tensor([0, 3]))
    assert choice.logits.shape == (2, 4)
    assert choice.loss > 0
    with pytest.raises(ValueError, match="choices"):
        DebertaForMultipleChoice(small())(ids)
    with pytest.raises(ValueError, match="labels should be"):
        DebertaForMaskedLM(small())(ids, labels=torch.zeros(2, 4))


def test_resized_vocabulary_runs_and_keeps_the_old_words():
    model = randomise(DebertaForMaskedLM(small()))
    ids = torch.randint(1, 101, (1, 6))
    before = model(ids).logits
    model.resize_token_embeddings(120)
    after = model(ids).logits
    assert after.shape == (1, 6, 120)
    torch.testing.assert_close(after[..., :101], before, atol=1e-5, rtol=1e-5)
    model.resize_token_embeddings(50)
    assert model(ids.clamp(max=49)).logits.shape == (1, 6, 50)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(1, 101, (7,), generator=g), "labels": torch.tensor(i % 3)}


@pytest.mark.slow
def test_trainer_trains_saves_and_resumes(tmp_path):
    def arguments(steps):
        return TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=2, per_device_train_batch_size=4, report_to=[],
            use_cpu=True, disable_tqdm=True, gradient_accumulation_steps=2,
        )  # fmt: skip

    model = DebertaForSequenceClassification(small("deberta-base"))
    Trainer(model, arguments(2), train_dataset=Rows()).train()
    resumed = DebertaForSequenceClassification(small("deberta-base"))
    Trainer(resumed, arguments(4), train_dataset=Rows()).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert (tmp_path / "checkpoint-4" / "model.safetensors").is_file()
    heads.DebertaForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")


def test_an_adapter_that_is_switched_off_is_off_in_the_positions_too():
    """Cached projections of the relative table must notice an adapter, which does not change the base weights."""
    peft = pytest.importorskip("peft")
    model = randomise(DebertaModel(small()))
    ids = torch.randint(4, 101, (2, 20))
    with torch.no_grad():
        plain = model(ids).last_hidden_state
        config = peft.LoraConfig(target_modules=["query_proj", "key_proj"], r=2, init_lora_weights=False)
        wrapped = peft.get_peft_model(model, config).eval()
        assert (wrapped(ids).last_hidden_state - plain).abs().max() > 1e-3
        with wrapped.disable_adapter():
            torch.testing.assert_close(wrapped(ids).last_hidden_state, plain)


def test_peft_puts_lora_on_the_projections():
    peft = pytest.importorskip("peft")
    model = DebertaForSequenceClassification(small())
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query_proj", "value_proj"], r=2)
    wrapped = peft.get_peft_model(model, config)
    wrapped(input_ids=torch.randint(1, 101, (2, 5)), labels=torch.tensor([0, 1])).loss.backward()
    grads = {n for n, p in wrapped.named_parameters() if p.grad is not None}
    assert any("query_proj.lora_A" in name for name in grads)
    assert not any("intermediate" in name for name in grads)
