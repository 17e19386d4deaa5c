#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes embeddings.json: the final hidden state of the last of the golden prompt's tokens, by transformers in float32.

    python embedding_reference.py
"""
import json
from pathlib import Path

import torch
from safetensors.numpy import load_file

from fixtures.golden import Load

HERE = Path(__file__).resolve().parent
MODELS = ["llama", "qwen3", "gemma3"]


def main():
    result = {}
    for name in MODELS:
        ids = load_file(HERE / name / "golden.safetensors")["input_ids"].reshape(-1)
        with torch.no_grad():
            hidden = Load(HERE / name).model(torch.tensor(ids[None].astype("int64")), use_cache=False).last_hidden_state
        result[name] = dict(ids=ids.tolist(), embedding=[round(float(v), 6) for v in hidden[0, -1]])
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
    (HERE / "embeddings.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
