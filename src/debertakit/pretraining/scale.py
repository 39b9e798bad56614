"""Cost of a pretraining run: tokens, FLOPs, GPU-days, memory, disk.

    python -m debertakit.pretraining.scale      # the table of docs/scale.md

With hidden size H, feed-forward size F, N layers, sequence length L, k rows on each side of the relative table,
vocabulary size V, and a fraction m = 0.15 of the tokens masked, the forward multiply-adds per token in one layer are

    dense        4 H^2 + 2 H F                    query, key, value, output, and the feed-forward layer
    attention    2 L H                            scores and weighted sum
    positions    2 * min(2k, 2L) * H              content-to-position and position-to-content scores before the gather
    table        (2k / T_batch) * 2 H^2           both projections of the table, once per micro-batch of T_batch tokens

The head adds m (H^2 + H V). The mask decoder replaces the last layer: keys and values of all rows once, the rest twice
for a fraction m of the rows. Training costs 3 x forward, or 4 x with gradient checkpointing (forward runs twice). A
multiply-add is 2 FLOPs.
"""

from dataclasses import dataclass, replace

from debertakit.config import DebertaConfig
from debertakit.pretraining.recipes import recipe
from debertakit.pretraining.settings import PretrainConfig

MASKED_SHARE = 0.15
# Bytes per token, bytes/s: GPT-2's and DeBERTa v3's tokenizers on 2 MB of English Wikipedia, one busy core.
TOKENIZERS = {"bpe": (4.56, 0.83e6), "unigram": (4.86, 0.44e6)}
GPUS = {"V100": (125e12, 0.30, 32), "A100": (312e12, 0.40, 80), "H100": (989e12, 0.40, 80)}
"""Peak half-precision FLOP/s, assumed utilisation in training, memory in GB."""
GPUS_IN_RUN = 64
CORES = 64
PAPER_V100_DAYS = {"deberta-base": 64 * 10, "deberta-large": 96 * 20, "deberta-1.5b": 256 * 30}
"""Table 8: number of GPUs (DGX-2 nodes of 16) times days."""


@dataclass(frozen=True)
class Cost:
    recipe: str
    corpus_gb: int
    parameters: int
    corpus_tokens: float
    steps: int
    tokens: float
    epochs: float
    flops_per_token: float
    flops: float
    gpu_days: dict[str, float]
    memory_gb: float
    """On one GPU, with FSDP2 over GPUS_IN_RUN GPUs."""
    checkpoint_gb: float
    preparation_hours: float
    """Tokenisation on CORES cores."""
    paper_utilisation: float
    """V100 utilisation implied by the published days, assuming our FLOP count without gradient checkpointing."""


def parameters(config: DebertaConfig) -> int:
    """Count the parameters of a model on the meta device."""
    import torch

    from debertakit.heads import DebertaForMaskedLM

    with torch.device("meta"):
        return sum(p.numel() for p in DebertaForMaskedLM(config).parameters())


def forward_macs(config: DebertaConfig, length: int, micro_tokens: int) -> float:
    """Multiply-adds per token in the forward pass."""
    hidden, wide = config.hidden_size, config.intermediate_size
    rows = 2 * config.relative_positions.span
    terms = len(config.pos_att_type)
    per_row = 2 * hidden**2 + 2 * hidden * wide + 2 * length * hidden + min(rows, 2 * length) * hidden
    memory = 2 * hidden**2 + (terms - 1) * min(rows, 2 * length) * hidden
    table = terms * rows * hidden**2 / micro_tokens
    layer = per_row + memory + table
    decoder = config.emd_steps * MASKED_SHARE * per_row + memory + table if config.emd_steps > 0 else layer
    convolution = config.conv_kernel_size * hidden**2
    head = MASKED_SHARE * (hidden**2 + hidden * config.vocab_size)
    return (config.num_hidden_layers - 1) * layer + decoder + convolution + head


def training_flops(config: DebertaConfig, run: PretrainConfig) -> float:
    """FLOPs per token, including the backward pass."""
    passes = 4 if run.gradient_checkpointing else 3
    return 2 * passes * forward_macs(config, run.data.max_length, run.data.micro_tokens)


def memory(config: DebertaConfig, run: PretrainConfig, count: int, gpus: int) -> float:
    """Bytes on one GPU under FSDP2.

    Sharded: weights, gradients and two Adam moments in fp32. Unsharded: the root group and two layers in fp32 with
    autocast's bf16 copies, the activations of a micro-batch, and the logits of its masked rows.
    """
    hidden = config.hidden_size
    sharded = 16 * count / gpus
    layer = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    whole = 6 * (config.vocab_size * hidden + 3 * layer)
    tokens = run.data.micro_tokens
    # bf16, per layer: input, q, k, v, mixed, two sums and norms, and the feed-forward layer before and after gelu
    activations = tokens * 2 * (10 * hidden + 2 * config.intermediate_size)
    kept = tokens * 2 * hidden * config.num_hidden_layers + activations
    if not run.gradient_checkpointing:
        kept = activations * config.num_hidden_layers
    logits = MASKED_SHARE * tokens * config.vocab_size * (2 + 4 + 4)  # bf16, fp32, and the gradient
    return sharded + whole + kept + logits


def cost(name: str, corpus_gb: int) -> Cost:
    run = recipe(name)
    fields: dict[str, object] = {**run.model, "vocab_size": run.data.vocab_size}
    config = DebertaConfig(**fields)
    count = parameters(config)
    bytes_per_token, bytes_per_second = TOKENIZERS[run.data.tokenizer]
    corpus_tokens = corpus_gb * 1e9 / bytes_per_token
    tokens = float(run.steps) * run.data.step_tokens
    per_token = training_flops(config, run)
    useful = training_flops(config, replace(run, gradient_checkpointing=False))
    days = {gpu: tokens * per_token / (peak * share) / 86400 for gpu, (peak, share, _) in GPUS.items()}
    return Cost(
        recipe=name,
        corpus_gb=corpus_gb,
        parameters=count,
        corpus_tokens=corpus_tokens,
        steps=run.steps,
        tokens=tokens,
        epochs=tokens / corpus_tokens,
        flops_per_token=per_token,
        flops=tokens * per_token,
        gpu_days=days,
        memory_gb=memory(config, run, count, GPUS_IN_RUN) / 1e9,
        checkpoint_gb=3 * 4 * count / 1e9,
        preparation_hours=corpus_gb * 1e9 / (bytes_per_second * CORES) / 3600,
        paper_utilisation=tokens * useful / (PAPER_V100_DAYS[name] * 86400 * GPUS["V100"][0]),
    )


def table() -> str:
    """The table of docs/scale.md, in Markdown."""
    names = ("deberta-base", "deberta-large", "deberta-1.5b")
    head = (
        "| recipe | corpus | parameters | corpus tokens | tokens seen | epochs | FLOPs a token | FLOPs "
        f"| {' | '.join(f'{gpu}-days' for gpu in GPUS)} | paper's V100-days | memory a GPU | checkpoint | preparation |"
    )
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for name in names:
        for corpus_gb in (78, 160):
            c = cost(name, corpus_gb)
            days = " | ".join(f"{value:,.0f}" for value in c.gpu_days.values())
            lines.append(
                f"| {c.recipe} | {c.corpus_gb} GB | {c.parameters / 1e6:,.0f} M | {c.corpus_tokens / 1e9:.1f} G "
                f"| {c.tokens / 1e12:.2f} T | {c.epochs:.0f} | {c.flops_per_token / 1e9:.2f} G | {c.flops:.2e} "
                f"| {days} | {PAPER_V100_DAYS[name]:,} ({c.paper_utilisation:.0%} of peak) "
                f"| {c.memory_gb:.1f} GB | {c.checkpoint_gb:.1f} GB | {c.preparation_hours:.1f} h |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
