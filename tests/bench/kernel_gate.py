#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CPU products beside this machine's limits, measured around them: `./dev bench gate`, and a stage of CI.

A round is `roofline`, every case of `kernels_bench` once, and `roofline` again; the larger of both is the limit. A case's figure is its
best share of the limit in any round, so that a neighbour's noise cannot fail it; what fails is a kernel that never comes near what it does
elsewhere (a spilled accumulator, a lost prefetch, a wrong instruction set). Ends as soon as every case is above its floor. One token:
bytes of weights against memory read. 16 and 512 tokens: operations against the peak of `vpdpbusd`, or of `vdpbf16ps` (where inferd uses
that: `--dtype`). Exit status 1: below a floor; 0 with a line of why: nothing to compare with here.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROUNDS = 8  # at most; one is enough on a quiet machine
SHAPE = "896/4864"  # rows x columns of the matrix in kernels_bench
# Shares of the limit below which a kernel is broken, by tokens: about half of what a Zen 4 does when nothing else runs (one token 55 to
# 95 %, 16 tokens 62 to 81 %, 512 tokens 56 to 93 %), because a shared host's memory is the half of itself at times.
FLOORS = {
    "Q8_0": {1: 0.30, 16: 0.35, 512: 0.40},
    "Q5_0": {1: 0.30, 16: 0.35, 512: 0.40},
    "Q4_0": {1: 0.30, 16: 0.35, 512: 0.40},
    "Q4_K": {1: 0.30, 16: 0.35, 512: 0.35},
    "Q6_K": {1: 0.30, 16: 0.30, 512: 0.35},
    "BF16": {1: 0.30, 16: 0.40, 512: 0.50},
}


def run(*command, **variables):
    return json.loads(subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     timeout=300, env={**os.environ, **variables}).stdout)


def limits(build):
    """Of all cores together."""
    return max(run(build / "roofline")["roofline"], key=lambda row: row["threads"])


def cases(build, bf16):
    """{(format, tokens): {"weight_bytes", "ops"}} per second; bf16: BF16 weights meet bf16 inputs."""
    tokens = "|".join(str(count) for count in next(iter(FLOORS.values())))
    rows = run(build / "kernels_bench", f"--benchmark_filter=^BM_MatMul/[0-9]+/{SHAPE}/({tokens})/",
               "--benchmark_format=json", **({"INFERD_BENCH_BF16_DOT": "1"} if bf16 else {}))["benchmarks"]
    return {(row["label"], int(row["name"].split("/")[4])): row for row in rows if row["label"] in FLOORS}


def share(row, form, tokens, peaks):
    if tokens == 1:
        return row["weight_bytes"] / 1e9 / peaks["read_gb_per_s"]
    return row["ops"] / 1e9 / peaks["bf16_gflop_per_s" if form == "BF16" else "int8_gop_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the folder of roofline and kernels_bench")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()

    peaks = limits(arguments.build)
    if "int8_gop_per_s" not in peaks:
        print("no AVX-512 VNNI on this machine: the kernels' floors are shares of its peak, nothing was compared")
        return 0
    # vdpbf16ps is used where it beats an FMA (ADR 0010); elsewhere BF16 weights meet float inputs.
    bf16 = peaks.get("bf16_gflop_per_s", 0) > 1.5 * peaks["fp32_gflop_per_s"]
    floors = {(form, tokens): floor for form, row in FLOORS.items() for tokens, floor in row.items() if form != "BF16" or bf16}
    best = {}
    for number in range(arguments.rounds):
        rows, before, peaks = cases(arguments.build, bf16), peaks, limits(arguments.build)
        limit = {key: max(before[key], peaks[key]) for key in peaks}
        for case in floors:
            reached = share(rows[case], *case, limit)
            best[case] = max(best.get(case, 0), reached)
        if all(best[case] >= floor for case, floor in floors.items()):
            break
    print(f"{number + 1} rounds; limits {json.dumps(limit)}")
    for (form, tokens), floor in floors.items():
        reached = best[form, tokens]
        print(f"{form:5} {tokens:3} tokens  {reached:4.0%} of the limit, floor {floor:.0%}{'' if reached >= floor else '  BELOW'}")
    return int(any(best[case] < floor for case, floor in floors.items()))


if __name__ == "__main__":
    sys.exit(main())
