#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tiny models of tests/data and their golden outputs. Run by hand, see README.md.

    python make_fixtures.py            # all
    python make_fixtures.py qwen3 phi3 # some
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from fixtures import golden, gguf_twin, tiny_tokenizer
from fixtures.families import FIXTURES, Fixture
from fixtures.weights import Maker

HERE = Path(__file__).resolve().parent
MAX_TRIES = 400


def WriteConfig(fixture: Fixture, folder: Path) -> None:
    dtype = "float32" if fixture.dtype == "F32" else "bfloat16"
    config = fixture.config | {"dtype" if fixture.new_keys else "torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    spec = tiny_tokenizer.TOKENIZERS[fixture.tokenizer]["gguf"]
    generation = dict(eos_token_id=fixture.config["eos_token_id"], do_sample=False)
    if "bos" in spec:
        generation["bos_token_id"] = spec["bos"]
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def LinkTokenizer(fixture: Fixture, folder: Path) -> None:
    shared = HERE / "tokenizers" / fixture.tokenizer
    tiny_tokenizer.WriteHf(fixture.tokenizer, shared)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Link(folder / name, shared / name)


def Link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def Rounded(fixture: Fixture, hub: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    dtype = torch.float32 if fixture.dtype == "F32" else torch.bfloat16
    return {name: torch.from_numpy(value).to(dtype) for name, value in hub.items()}


def WriteSafetensors(fixture: Fixture, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    metadata = {"format": "pt"}
    if fixture.shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata)
        return
    total = sum(t.nbytes for t in tensors.values())
    shards, shard_of, done = [{} for _ in range(fixture.shards)], {}, 0
    for name, tensor in tensors.items():
        index = min(done * fixture.shards // total, fixture.shards - 1)
        shards[index][name] = tensor
        shard_of[name] = f"model-{index + 1:05d}-of-{fixture.shards:05d}.safetensors"
        done += tensor.nbytes
    for index, shard in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{fixture.shards:05d}.safetensors"
        save_file(shard, folder / file, metadata)
    index = dict(metadata=dict(total_size=total), weight_map=shard_of)
    text = json.dumps(index, indent=1, sort_keys=True)
    (folder / "model.safetensors.index.json").write_text(text + "\n")


def Prompt(fixture: Fixture, seed: int) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(1000 + seed))
    low, high = (3, 288) if fixture.tokenizer == "spm" else (0, 280)
    return rng.integers(low, high, golden.PROMPT_TOKENS).astype(np.int32)


def MakeOne(fixture: Fixture, folder: Path) -> str:
    """Tries seeds until the random model is a good test. The order of seeds is fixed."""
    folder.mkdir(parents=True, exist_ok=True)
    WriteConfig(fixture, folder)
    LinkTokenizer(fixture, folder)
    for seed in range(fixture.seed, fixture.seed + MAX_TRIES):
        if fixture.weights_of:
            source = HERE / fixture.weights_of / "model.safetensors"
            Link(folder / "model.safetensors", source)
            hub = None
        else:
            tensors = Rounded(fixture, Maker(fixture.config, seed).Make())
            WriteSafetensors(fixture, tensors, folder)
            hub = {name: t.float().numpy() for name, t in tensors.items()}
        result, router_gap = golden.Compute(fixture, folder, Prompt(fixture, seed))
        refusal = golden.Acceptable(fixture, result, router_gap)
        if not refusal:
            break
        print(f"  seed {seed}: {refusal}", flush=True)
    else:
        raise RuntimeError(f"{fixture.name}: no good seed in {MAX_TRIES}")
    golden.Save(fixture, result, folder / "golden.safetensors")
    for file in folder.glob("*.safetensors"):
        if not file.is_symlink():
            file.chmod(0o644)
    if fixture.gguf:
        gguf_twin.WriteTwin(fixture, hub, folder)
    gaps = result["greedy_gaps"]
    return f"seed {seed}, |logit| {np.abs(result['logits']).max():.1f}, min gap {gaps.min():.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="fixtures to make (default: all)")
    parser.add_argument("--seed", type=int, help="first seed to try")
    args = parser.parse_args()
    known = {f.name for f in FIXTURES}
    if unknown := set(args.names) - known:
        parser.error(f"unknown fixtures {sorted(unknown)}; known: {sorted(known)}")
    torch.set_num_threads(1)
    for fixture in FIXTURES:
        if args.names and fixture.name not in args.names:
            continue
        if args.seed is not None:
            fixture = dataclasses.replace(fixture, seed=args.seed)
        print(f"{fixture.name}: {MakeOne(fixture, HERE / fixture.name)}", flush=True)


if __name__ == "__main__":
    main()
