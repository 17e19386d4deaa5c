#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes quantised/<name>: one tiny Llama as the public quantising tools write it.

Layouts: AutoAWQ (gemm), GPTQModel (gptq with and without act-order, gptq_v2, 8 bits), FP8 of vLLM
and DeepSeek (one scale, one per row, blocks of 128 x 128), compressed-tensors (pack-quantized
symmetric and with zero points, int-quantized, and with activations quantised per token). fp8-kv: fp8-tensor with KV scales, as
llm-compressor writes them. expected.safetensors holds every fourth row of each layer's values, from the numbers before they were
packed; plain/ is the model unquantised.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 128, 192, 4, 2, 32, 288
GROUP = 32
FOLDER = Path(__file__).resolve().parent / "quantised"
SHAPES = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "torch_dtype": "float16",
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def Pack(values: np.ndarray, bits: int, axis: int, order: list[int] | None = None) -> np.ndarray:
    """Groups of 32 / bits values along `axis` become one int32, the first in the lowest bits."""
    pack = 32 // bits
    moved = np.moveaxis(values.astype(np.uint32), axis, -1)
    moved = moved.reshape(*moved.shape[:-1], moved.shape[-1] // pack, pack)
    words = np.zeros(moved.shape[:-1], np.uint32)
    for place in range(pack):
        words |= moved[..., order[place] if order else place] << np.uint32(bits * place)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def Integers(weight: np.ndarray, bits: int, group: np.ndarray, symmetric: bool):
    """q [out, in], scale and zero [out, groups], value [out, in]."""
    top = 2**bits - 1
    groups = int(group.max()) + 1
    scale = np.empty((weight.shape[0], groups), np.float16)
    zero = np.empty((weight.shape[0], groups), np.int64)
    for g in range(groups):
        part = weight[:, group == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scale[:, g] = np.maximum((high - low) / top, 1e-4).astype(np.float16)
        # The first GPTQ format cannot store a zero of 0.
        zero[:, g] = (top + 1) // 2 if symmetric else np.clip(np.rint(-low / scale[:, g].astype(np.float32)), 1, top)
    wide_scale, wide_zero = scale.astype(np.float32)[:, group], zero[:, group]
    q = np.clip(np.rint(weight / wide_scale) + wide_zero, 0, top).astype(np.int64)
    return q, scale, zero, (q - wide_zero).astype(np.float32) * wide_scale


def Awq(name, weight, rng):
    group = np.arange(weight.shape[1]) // GROUP
    q, scale, zero, value = Integers(weight, 4, group, False)
    return {
        f"{name}.qweight": Pack(q.T, 4, 1, AWQ_ORDER),
        f"{name}.qzeros": Pack(zero.T, 4, 1, AWQ_ORDER),
        f"{name}.scales": np.ascontiguousarray(scale.T),
    }, value


def Gptq(bits, act_order, plus_one, symmetric=False):
    def quantise(name, weight, rng):
        group = np.arange(weight.shape[1]) // GROUP
        if act_order:
            rng.shuffle(group)
        q, scale, zero, value = Integers(weight, bits, group, symmetric)
        return {
            f"{name}.qweight": Pack(q.T, bits, 0),
            f"{name}.qzeros": Pack(zero.T - (1 if plus_one else 0), bits, 1),
            f"{name}.scales": np.ascontiguousarray(scale.T),
            f"{name}.g_idx": group.astype(np.int32),
            f"{name}.bias": np.zeros(weight.shape[0], np.float16),
        }, value

    return quantise


E4M3 = np.array(
    [(m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) for e in range(16) for m in range(8)][:127],
    np.float32,
)


def ToE4M3(values: np.ndarray):
    """Bits and the values they stand for; to the nearest, of two the smaller."""
    size = np.minimum(np.abs(values), 448)
    index = np.searchsorted(E4M3, size)
    lower = np.maximum(index - 1, 0)
    upper = np.minimum(index, 126)
    code = np.where(size - E4M3[lower] <= E4M3[upper] - size, lower, upper)
    bits = code.astype(np.uint8) | np.where(values < 0, 128, 0).astype(np.uint8)
    return bits, np.where(values < 0, -E4M3[code], E4M3[code]).astype(np.float32)


def Fp8(kind):
    def quantise(name, weight, rng):
        rows, columns = weight.shape
        if kind == "tensor":
            block = (rows, columns)
        else:
            block = (1, columns) if kind == "channel" else (128, 128)
        scale = np.empty((-(-rows // block[0]), -(-columns // block[1])), np.float32)
        wide = np.empty_like(weight)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                at = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
                scale[i, j] = np.abs(weight[at]).max() / 448
                wide[at] = scale[i, j]
        bits, value = ToE4M3(weight / wide)
        end = "weight_scale_inv" if kind == "block" else "weight_scale"
        stored = scale.reshape(()) if kind == "tensor" else scale
        parts = {f"{name}.weight": bits, f"{name}.{end}": np.ascontiguousarray(stored)}
        if kind == "tensor":
            parts[f"{name}.input_scale"] = np.float32(0.5).reshape(())
        return parts, value * wide

    return quantise


# The same model as fp8-tensor with K and V this much larger, so far that E4M3 cannot hold them, and what takes them up as
# much smaller: all by powers of two, so that with these as scales of K and V nothing rounds otherwise.
K_SCALE, V_SCALE = np.float32(1024), np.float32(512)
KV_SIZES = {"q_proj": 1 / K_SCALE, "k_proj": K_SCALE, "v_proj": V_SCALE, "o_proj": 1 / V_SCALE}


def Fp8Kv(name, weight, rng):
    parts, value = Fp8("tensor")(name, weight, rng)
    size = KV_SIZES.get(name.rsplit(".", 1)[1], np.float32(1))
    parts[f"{name}.weight_scale"] = parts[f"{name}.weight_scale"] * size
    attention = name.rsplit(".", 1)[0]
    if name.endswith("k_proj"):
        parts[f"{attention}.k_scale"] = K_SCALE.reshape(1)
    if name.endswith("v_proj"):
        parts[f"{attention}.v_scale"] = V_SCALE.reshape(1)
    return parts, value * size


def Compressed(symmetric):
    def quantise(name, weight, rng):
        group = np.arange(weight.shape[1]) // GROUP
        q, scale, zero, value = Integers(weight, 4, group, symmetric)
        parts = {
            f"{name}.weight_packed": Pack(q, 4, 1),
            f"{name}.weight_scale": scale,
            f"{name}.weight_shape": np.array(weight.shape, np.int64),
        }
        if not symmetric:
            parts[f"{name}.weight_zero_point"] = Pack(zero, 4, 0)
        return parts, value

    return quantise


def Int8(name, weight, rng):
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    q = np.rint(weight / scale).astype(np.int8)
    return {f"{name}.weight": q, f"{name}.weight_scale": scale}, q.astype(np.float32) * scale


def GptqConfig(bits, act_order, version, symmetric=False):
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP,
        "desc_act": act_order,
        "sym": symmetric,
        "checkpoint_format": version,
    }


def Fp8KvConfig():
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": scheme}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": scheme,
    }


def CompressedConfig(form, bits, symmetric, inputs=None):
    weights = {"num_bits": bits, "type": "float" if form == "float-quantized" else "int", "symmetric": symmetric}
    weights |= {"strategy": "group", "group_size": GROUP} if form == "pack-quantized" else {"strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights} | ({"input_activations": inputs} if inputs else {})
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def PerToken(kind):
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}


VARIANTS = {
    "awq": (Awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "gptq": (Gptq(4, False, True), GptqConfig(4, False, "gptq")),
    "gptq-sym": (Gptq(4, False, True, True), GptqConfig(4, False, "gptq", True)),
    "gptq-act-order": (Gptq(4, True, True), GptqConfig(4, True, "gptq")),
    "gptq-v2": (Gptq(4, False, False), GptqConfig(4, False, "gptq_v2")),
    "gptq-8bit": (Gptq(8, False, True), GptqConfig(8, False, "gptq")),
    "fp8-tensor": (Fp8("tensor"), {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8-channel": (Fp8("channel"), {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "fp8-block": (
        Fp8("block"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "compressed-w4": (Compressed(True), CompressedConfig("pack-quantized", 4, True)),
    "compressed-w4-zeros": (Compressed(False), CompressedConfig("pack-quantized", 4, False)),
    "compressed-int8": (Int8, CompressedConfig("int-quantized", 8, True)),
    "fp8-kv": (Fp8Kv, Fp8KvConfig()),
}

# The same files under another config: activations are quantised too.
ALIASES = {
    "compressed-w8a8": ("compressed-int8", CompressedConfig("int-quantized", 8, True, PerToken("int"))),
    "compressed-fp8-dynamic": ("fp8-channel", CompressedConfig("float-quantized", 8, True, PerToken("float"))),
}


def Save(tensors: dict[str, np.ndarray], path: Path, fp8: bool) -> None:
    """safetensors.numpy has no FP8: those are written as U8 and renamed in the header."""
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path, {"format": "pt"})
    if fp8:
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        for entry in header.values():
            if entry.get("dtype") == "U8":
                entry["dtype"] = "F8_E4M3"
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    path.chmod(0o644)


def main() -> None:
    rng = np.random.Generator(np.random.PCG64(67))
    common = {
        "model.embed_tokens.weight": rng.normal(0, 0.6, (VOCAB, HIDDEN)).astype(np.float16),
        "model.norm.weight": np.ones(HIDDEN, np.float16),
        "model.layers.0.input_layernorm.weight": np.ones(HIDDEN, np.float16),
        "model.layers.0.post_attention_layernorm.weight": np.ones(HIDDEN, np.float16),
    }
    weights = {
        f"model.layers.0.{name}": rng.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    shutil.rmtree(FOLDER, ignore_errors=True)
    plain = {f"{name}.weight": weight.astype(np.float16) for name, weight in weights.items()}
    for variant, (quantise, config) in {"plain": (None, None), **VARIANTS}.items():
        folder = FOLDER / variant
        folder.mkdir(parents=True)
        whole = CONFIG | ({"quantization_config": config} if config else {})
        (folder / "config.json").write_text(json.dumps(whole, indent=1) + "\n")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).symlink_to(Path("../../tokenizers/spm") / name)
        tensors, expected = dict(common), {}
        for name, weight in weights.items() if quantise else ():
            parts, value = quantise(name, weight, rng)
            tensors |= parts
            expected[f"{name}.weight"] = np.ascontiguousarray(value[::4])
        Save(tensors if quantise else tensors | plain, folder / "model.safetensors", variant.startswith("fp8"))
        if quantise:
            save_file(expected, folder / "expected.safetensors")
            (folder / "expected.safetensors").chmod(0o644)
    for variant, (original, config) in ALIASES.items():
        folder = FOLDER / variant
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": config}, indent=1) + "\n")
        for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors", "expected.safetensors"):
            (folder / name).symlink_to(Path("..") / original / name)


if __name__ == "__main__":
    main()
