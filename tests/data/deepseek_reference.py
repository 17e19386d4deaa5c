#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2's forward pass in NumPy, for what transformers leaves out: norm_topk_prob.

Written after the formulas of arXiv 2405.04434 and the rule of the models' own code: the weights of the chosen
experts are normalised, or scaled by routed_scaling_factor, not both. It first computes deepseek-v2/, whose golden
outputs are of transformers, and stops where it differs; then it writes deepseek-v2-norm/golden.safetensors, of the
same weights under that folder's config.json.
"""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).resolve().parent
STEPS = 16


def Weights(folder: Path) -> dict[str, np.ndarray]:
    """The stored BF16 values as float64."""
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    weights = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            assert entry["dtype"] == "BF16", name
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            bits = np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16
            weights[name] = bits.view(np.float32).astype(np.float64).reshape(entry["shape"])
    return weights


def Softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def Silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class Model:
    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = Weights(folder)
        self.border = np.inf  # the least by which logits of the router decided
        assert self.config["q_lora_rank"] is None and self.config["rope_scaling"] is None

    def Norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weights[name + ".weight"]

    def Linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[name + ".weight"].T

    def Rotate(self, x: np.ndarray) -> np.ndarray:
        """x [tokens, ..., rope_dim], by adjacent pairs."""
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[0])[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        turn = np.exp(1j * angles).reshape(x.shape[0], *[1] * (x.ndim - 2), half)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def Attention(self, x: np.ndarray, at: str) -> np.ndarray:
        c = self.config
        tokens, heads, nope, rank = x.shape[0], c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]
        q = self.Linear(x, at + "q_proj").reshape(tokens, heads, -1)
        compressed = self.Linear(x, at + "kv_a_proj_with_mqa")
        latent = self.Norm(compressed[:, :rank], at + "kv_a_layernorm")
        kv = self.Linear(latent, at + "kv_b_proj").reshape(tokens, heads, -1)
        scores = np.einsum("qhd,khd->hqk", q[..., :nope], kv[..., :nope])
        scores += np.einsum("qhd,kd->hqk", self.Rotate(q[..., nope:]), self.Rotate(compressed[:, rank:]))
        scores = scores / np.sqrt(q.shape[-1]) + np.triu(np.full((tokens, tokens), -np.inf), 1)
        return self.Linear(np.einsum("hqk,khd->qhd", Softmax(scores), kv[..., nope:]).reshape(tokens, -1), at + "o_proj")

    def Ffn(self, x: np.ndarray, at: str) -> np.ndarray:
        return self.Linear(Silu(self.Linear(x, at + "gate_proj")) * self.Linear(x, at + "up_proj"), at + "down_proj")

    def Route(self, logits: np.ndarray) -> dict[int, float]:
        """The weights of the experts of one token."""
        c = self.config
        scores = Softmax(logits)
        groups = scores.reshape(c["n_group"], -1)
        best = np.argsort(-groups.max(-1))[:c["topk_group"]]
        open_to = np.zeros_like(groups)
        open_to[best] = 1
        order = np.argsort(-(scores * open_to.reshape(-1)))
        chosen = order[:c["num_experts_per_tok"]]
        borders = np.sort(groups.max(-1))[::-1][c["topk_group"] - 1:][:2], scores[order[len(chosen) - 1:][:2]]
        self.border = min(self.border, *(float(np.log(above / below)) for above, below in borders))
        weights = scores[chosen]
        if c["norm_topk_prob"] and len(chosen) > 1:
            weights = weights / weights.sum()
        else:
            weights = weights * c["routed_scaling_factor"]
        return dict(zip(chosen.tolist(), weights.tolist()))

    def Moe(self, x: np.ndarray, at: str) -> np.ndarray:
        y = self.Ffn(x, at + "shared_experts.")
        for row, logits in enumerate(self.Linear(x, at + "gate")):
            for expert, weight in self.Route(logits).items():
                y[row] += weight * self.Ffn(x[row:row + 1], f"{at}experts.{expert}.")[0]
        return y

    def Logits(self, ids: list[int]) -> np.ndarray:
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = x + self.Attention(self.Norm(x, at + "input_layernorm"), at + "self_attn.")
            h = self.Norm(x, at + "post_attention_layernorm")
            dense = layer < self.config["first_k_dense_replace"]
            x = x + (self.Ffn(h, at + "mlp.") if dense else self.Moe(h, at + "mlp."))
        return self.Linear(self.Norm(x, "model.norm"), "lm_head")


def Continue(prompt: np.ndarray) -> dict[str, np.ndarray] | None:
    """Golden outputs of a prompt whose choices, of experts and tokens, are none of them close."""
    model = Model(DATA / "deepseek-v2-norm")
    ids = prompt.tolist()
    logits = model.Logits(ids)
    greedy, logprobs, gaps = [], [], []
    while len(greedy) < STEPS and model.border >= 0.02:
        last = model.Logits(ids + greedy)[-1]
        best, next_best = np.argsort(-last)[:2]
        greedy.append(int(best))
        logprobs.append(np.log(Softmax(last))[best])
        gaps.append(last[best] - last[next_best])
        if gaps[-1] < 0.05:
            return None
    if model.border < 0.02:
        return None
    print(f"smallest gap {min(gaps):.3f}, of router logits {model.border:.3f}")
    return {"input_ids": prompt.astype(np.int32), "logits": logits.astype(np.float32), "greedy_ids": np.array(greedy, np.int32),
            "greedy_logprobs": np.array(logprobs, np.float32), "greedy_gaps": np.array(gaps, np.float32)}


def main() -> None:
    golden = load_file(DATA / "deepseek-v2/golden.safetensors")
    worst = np.abs(Model(DATA / "deepseek-v2").Logits(golden["input_ids"].tolist()) - golden["logits"]).max()
    print(f"deepseek-v2: {worst:.1e} from transformers")
    assert worst < 1e-4

    made = next(found for seed in range(1000) if (found := Continue(np.random.default_rng(seed).integers(0, 280, 40))))
    with safe_open(DATA / "deepseek-v2/golden.safetensors", "numpy") as file:
        save_file(made, DATA / "deepseek-v2-norm/golden.safetensors", file.metadata())


if __name__ == "__main__":
    main()
