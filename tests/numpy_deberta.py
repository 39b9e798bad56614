"""Independent DeBERTa in numpy, written from the equations without package code, to check the models against."""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def gelu(x):
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


class NumpyDeberta:
    """A v2/v3 model from a state dict and its config."""

    def __init__(self, state, config):
        self.w = {key: value.detach().double().numpy() for key, value in state.items()}
        self.config = config

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdims=True)
        centred /= np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.layer_norm_eps)
        return centred * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def row(self, distance):
        k, mid, top = self.config.position_buckets, self.config.position_buckets // 2, 511
        size = min(abs(distance), top)
        if size > mid:
            size = mid + math.ceil(math.log(size / mid) / math.log(top / mid) * (mid - 1))
        return min(max((size if distance > 0 else -size) + k, 0), 2 * k - 1)

    def layer(self, index, memory, query, query_positions=None, seen=None):
        """Run one layer with keys and values from ``memory``, and queries and residual from ``query``.

        ``index``: number of the layer, or its name. ``seen`` [queries, keys]: the keys of each query; None: all.
        """
        at = f"deberta.encoder.layer.{index}" if isinstance(index, int) else index
        heads = self.config.num_attention_heads
        table = self.norm("deberta.encoder.LayerNorm", self.w["deberta.encoder.rel_embeddings.weight"])
        split = lambda x: x.reshape(len(x), heads, -1)  # noqa: E731
        q, qr = (split(self.linear(f"{at}.attention.self.query_proj", x)) for x in (query, table))
        k, kr = (split(self.linear(f"{at}.attention.self.key_proj", x)) for x in (memory, table))
        v = split(self.linear(f"{at}.attention.self.value_proj", memory))
        positions = range(len(query)) if query_positions is None else query_positions
        mixed = np.zeros_like(q)
        for h in range(heads):
            for row, i in enumerate(positions):
                scores = np.array(
                    [
                        q[row, h] @ k[j, h] + q[row, h] @ kr[self.row(i - j), h] + k[j, h] @ qr[self.row(i - j), h]
                        for j in range(len(memory))
                    ]
                ) / math.sqrt(3 * q.shape[-1])
                if seen is not None:
                    scores[~seen[row]] = -np.inf
                weights = np.exp(scores - scores.max())
                mixed[row, h] = weights / weights.sum() @ v[:, h]
        attended = self.linear(f"{at}.attention.output.dense", mixed.reshape(len(query), -1))
        attended = self.norm(f"{at}.attention.output.LayerNorm", attended + query)
        inner = gelu(self.linear(f"{at}.intermediate.dense", attended))
        return self.norm(f"{at}.output.LayerNorm", self.linear(f"{at}.output.dense", inner) + attended)

    def embed(self, ids):
        return self.norm("deberta.embeddings.LayerNorm", self.w["deberta.embeddings.word_embeddings.weight"][ids])

    def hidden(self, ids, depth):
        x = self.embed(ids)
        for index in range(depth):
            x = self.layer(index, x, x)
        return x

    def masked_lm(self, ids, steps=2):
        """Return the logits of every token, computed with the mask decoder."""
        last = self.config.num_hidden_layers - 1
        below = query = self.hidden(ids, last)
        if self.config.emd_information == "positions":
            query = below + self.w["deberta.embeddings.position_embeddings.weight"][: len(ids)]
        elif self.config.emd_information == "embeddings":
            query = below + self.embed(ids)
        own = [] if self.config.share_emd_layers else [f"deberta.mask_decoder.{i}" for i in range(steps - 1)]
        for layer in [last, *own] if own else [last] * steps:
            query = self.layer(layer, below, query)
        return self.words(query)

    def words(self, query):
        """Return the language-model head's logits of these rows."""
        inner = gelu(self.linear("lm_predictions.lm_head.dense", query))
        inner = self.norm("lm_predictions.lm_head.LayerNorm", inner)
        words = self.w["deberta.embeddings.word_embeddings.weight"]
        return inner @ words.T + self.w["lm_predictions.lm_head.bias"]

    def replaced(self, ids):
        """Return the replaced-token logits."""
        hidden = self.hidden(ids, self.config.num_hidden_layers)
        x = self.norm("mask_predictions.LayerNorm", hidden[:1] + hidden)
        return self.linear("mask_predictions.classifier", gelu(self.linear("mask_predictions.dense", x)))[:, 0]
