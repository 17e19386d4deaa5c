#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes quants/quants.safetensors: for each GGUF type, raw blocks and what they decode to.

<TYPE>.raw U8 [rows, row bytes] and <TYPE>.f32 F32 [rows, columns], both by the gguf package.
Types it can only decode get random blocks whose scale fields are small, finite F16 numbers.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from safetensors.numpy import save_file

ROWS, COLUMNS = 4, 512
QUANTISED = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4]
# Byte offsets of the F16 scales inside one block.
RANDOM = {
    T.Q2_K: (80, 82),
    T.Q3_K: (108,),
    T.Q4_K: (0, 2),
    T.Q5_K: (0, 2),
    T.Q6_K: (208,),
    T.IQ4_NL: (0,),
    T.IQ4_XS: (0,),
}


def RandomBlocks(rng: np.random.Generator, kind: T, scale_offsets: tuple[int, ...]) -> np.ndarray:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // block_size, block_bytes), dtype=np.uint8)
    for offset in scale_offsets:
        scales = rng.uniform(0.001, 0.05, blocks.shape[:2]).astype(np.float16)
        scales *= rng.choice(np.array([-1, 1], np.float16), scales.shape)
        blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def main() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    tensors: dict[str, np.ndarray] = {}
    for kind in [*QUANTISED, *RANDOM]:
        if kind in RANDOM:
            raw = RandomBlocks(rng, kind, RANDOM[kind])
        else:
            spread = np.exp(rng.normal(0, 1.5, (ROWS, COLUMNS // 32, 1)))
            values = (rng.standard_normal((ROWS, COLUMNS // 32, 32)) * spread).astype(np.float32)
            raw = quants.quantize(values.reshape(ROWS, COLUMNS), kind)
        raw = np.ascontiguousarray(raw).view(np.uint8).reshape(ROWS, -1)
        view = raw.view(np.float16) if kind == T.F16 else raw
        decoded = quants.dequantize(view, kind).astype(np.float32).reshape(ROWS, COLUMNS)
        if not np.isfinite(decoded).all():
            raise ValueError(f"{kind.name}: not finite")
        tensors[f"{kind.name}.raw"] = raw
        tensors[f"{kind.name}.f32"] = decoded
        print(f"{kind.name}: {raw.shape[1]} bytes a row, largest {np.abs(decoded).max():.3f}")
    folder = Path(__file__).resolve().parent / "quants"
    folder.mkdir(exist_ok=True)
    path = folder / "quants.safetensors"
    save_file(tensors, path)
    path.chmod(0o644)


if __name__ == "__main__":
    main()
