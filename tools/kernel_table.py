#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of the device kernels' resources: registers, stack, shared memory, occupancy on paper, traffic.

The first four come from cuobjdump's report on the compiled library, occupancy from the architectures' limits alone, and the
traffic from each kernel's formula at the shape named in its row.
"""
import argparse
import pathlib
import re
import subprocess
import sys

# registers, shared bytes, warps, blocks of one multiprocessor; shared bytes reserved per block
LIMITS = {"sm_80": (65536, 164 << 10, 64, 32, 1024), "sm_90a": (65536, 228 << 10, 64, 32, 1024), "sm_100": (65536, 228 << 10, 64, 32, 1024)}

HIDDEN, FFN, HEADS, KV_HEADS, DIM, CONTEXT, VOCAB = 4096, 14336, 32, 8, 128, 4096, 128256
# Bytes per weight of each stored format.
WEIGHT_BYTES = {"F32": 4, "F16": 2, "Bf16": 2, "F8": 1, "I8": 1, "Int4": 0.5 + 4 / 128, "Q4_0": 18 / 32, "Q4_1": 20 / 32, "Q5_0": 22 / 32,
                "Q5_1": 24 / 32, "Q8_0": 34 / 32, "Mxfp4": 17 / 32, "Q45K<false>": 144 / 256, "Q45K<true>": 176 / 256, "Q6_K": 210 / 256}
KV_BYTES = {"KvF16": 2, "KvBf16": 2, "KvF32": 4, "KvF8": 1, "KvI8": 1 + 4 / DIM}


def product(name, rows):
    size = WEIGHT_BYTES[re.search(r"Weight(Q45K<\w+>|\w+)", name).group(1)]
    return FFN * HIDDEN * size + rows * (FFN + HIDDEN) * 4, 2 * rows * FFN * HIDDEN, f"{rows} x {HIDDEN} by {FFN} x {HIDDEN}"


def shape(name):
    """(threads, dynamic shared bytes, bytes moved, flops, shape in words) of a kernel."""
    norm = HIDDEN * 4
    kv = KV_BYTES.get((re.search(r"Kv\w+", name) or [""])[0], 2)
    if "MatMulSmall" in name:
        tiles = int(re.search(r", \(?(?:int\))?(\d+)>", name).group(1))
        return (128, 0, *product(name, tiles * 8))
    if "MatMulTiled" in name:
        return (128, 0, *product(name, 512))
    if "SplitRows" in name:
        terms = int(re.search(r", \(?(?:int\))?(\d+)>", name).group(1))
        return (256, 0, 512 * HIDDEN * (4 + 2 * terms), 3 * terms * 512 * HIDDEN, f"512 rows of {HIDDEN}")
    if "GatherColumns" in name:
        return (256, 0, norm * 2 + HIDDEN * 4, 0, f"one row of {HIDDEN}")
    if "W8A8" in name:
        tiles = int(re.search(r", \(?(?:int\))?(\d+)>", name).group(1)) if "Small" in name else 0
        rows = tiles * 8 or 512
        moved = FFN * HIDDEN + rows * HIDDEN + 4 * (FFN + rows + rows * FFN)
        return (128, 0, moved, 2 * rows * FFN * HIDDEN, f"{rows} x {HIDDEN} by {FFN} x {HIDDEN}")
    if "GateMulQuantised" in name:
        return (512, 0, FFN * 9 + 4, 10 * FFN, f"one row of {FFN}")
    if "RmsNormQuantised" in name:
        return (256, 0, norm * 4 + HIDDEN + 4, 6 * HIDDEN, f"one row of {HIDDEN}, with a residual")
    if "QuantiseRows" in name:
        return (256, 0, norm + HIDDEN + 4, 2 * HIDDEN, f"one row of {HIDDEN}")
    if "AttentionRows" in name:
        teams, strips = map(int, re.search(r"\(?(?:int\))?(\d+), \(?(?:int\))?(\d+)>", name).groups())
        dim = {2: 64, 4: 128, 8: 256, 16: 512}[strips]
        value = {"KvF32": 4, "KvF16": 2, "KvBf16": 2}.get((re.search(r"Kv\w+", name) or [""])[0], 1)
        heads = 2 * 4 // teams
        pitch = (dim * value + 15) // 16 * 16 + 16
        shared = heads * dim * 4 + max(teams * 2 * 32 * pitch, teams * heads * (dim + 2) * 4)
        return (128, shared, 2 * CONTEXT * KV_HEADS * dim * kv, 4 * CONTEXT * KV_HEADS * heads * dim,
                f"one row, {CONTEXT} tokens, {KV_HEADS} KV heads of {dim}, {heads} query heads each")
    if "LatentRows" in name:
        value = {"KvF32": 4, "KvF16": 2, "KvBf16": 2}.get((re.search(r"Kv\w+", name) or [""])[0], 1)
        rank = {8: 256, 16: 512}[int(re.search(r"(\d+)>", name).group(1))]
        width, heads = rank + 64, 16
        shared = heads * width * 4 + (1 if value == 4 else 2) * 32 * ((width * value + 15) // 16 * 16 + 16)
        return (256, shared, CONTEXT * width * kv, 2 * CONTEXT * heads * (width + rank),
                f"one row, {CONTEXT} tokens, latent of {rank} and key of 64, {heads} query heads")
    if "LatentPost" in name:
        return (128, 0, (576 + 512 + 2 * 64 * 16) * 4 + 576 * kv, 6 * 512 + 3 * 17 * 64, "one row, latent of 512 and key of 64, 16 heads")
    if "AttentionTiles" in name:
        dim = int(re.search(r", \(?(?:int\))?(\d+)>", name).group(1))
        shared = (2 * 64 + 4 * 32) * (dim + 8) * 2 if kv >= 2 else (2 * 64 + 2 * 32) * (dim + 8) * 2 + 4 * 32 * dim
        return (128, shared, 64 * dim * 8 + 2 * CONTEXT * dim * kv, 2 * 4 * 64 * CONTEXT * dim,
                f"64 rows, {CONTEXT} tokens, one head of {dim}")
    if "RmsNorm" in name:
        return (256, 0, norm * (5 if "true" in name else 2), 4 * HIDDEN, f"one row of {HIDDEN}")
    if "LayerNorm" in name:
        return (256, 0, norm * 2, 8 * HIDDEN, f"one row of {HIDDEN}")
    if "GateMul" in name:
        return (256, 0, FFN * 12, 8 * FFN, f"one row of {FFN}")
    if "AddGated" in name:
        return (256, 0, norm * 3 + 4, 2 * HIDDEN, f"one row of {HIDDEN}")
    if "Softcap" in name:
        return (256, 0, VOCAB * 8, 3 * VOCAB, f"one row of {VOCAB}")
    if "SampleKernel" in name:
        return (512, 0, VOCAB * 4, 4 * VOCAB, f"one row of {VOCAB}, greedy")
    if "ScoreKernel" in name:
        return (512, 0, VOCAB * 4 + 184, 25 * VOCAB, f"one row of {VOCAB}, 20 best")
    if "EditKernel" in name:
        return (512, 0, 32 + 8, 5, "one edit")
    if "AllReduce" in name:
        return (256, 0, norm * (5.25 if "true" in name else 7), 3 * HIDDEN, f"one row of {HIDDEN}, 4 ranks")
    if "GatherPeers" in name:
        return (256, 0, norm * 2.5, 0, f"one row of {HIDDEN}, 4 ranks")
    if "PeerNorm" in name:  # true: a sum
        return (256, 0, norm * (9 if "true" in name else 5.5), (8 if "true" in name else 5) * HIDDEN, f"one row of {HIDDEN}, 4 ranks")
    if "AddKernel" in name:
        return (256, 0, norm * 3, HIDDEN, f"one row of {HIDDEN}")
    if "Embed" in name:
        return (128, 0, norm * 1.5, HIDDEN, f"one row of {HIDDEN}")
    if "QkvPost" in name:
        return (128, 0, (2 * HEADS + 2 * KV_HEADS) * DIM * 4 + 2 * KV_HEADS * DIM * kv, 6 * (HEADS + KV_HEADS) * DIM,
                f"one row, {HEADS} and {KV_HEADS} heads of {DIM}")
    if "JoinSplits" in name:
        return (128, 0, HEADS * (CONTEXT // 256) * (DIM + 2) * 4, 4 * HEADS * (CONTEXT // 256) * DIM, f"one row, {CONTEXT} tokens")
    if "MaskPairs" in name:
        return (256, 0, 256 * 4 * 4 + 2 * 128 * 4, 0, "256 pairs, 128 experts")
    if "Combine" in name:
        return (128, 0, 9 * norm, 2 * 8 * HIDDEN, f"one row of {HIDDEN}, 8 experts")
    return (32, 0, 0, 0, "")


def occupancy(arch, registers, shared, threads):
    """Percent of the multiprocessor's warps, and what limits them."""
    all_registers, all_shared, all_warps, all_blocks, reserved = LIMITS[arch]
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    blocks = {"registers": all_registers // 4 // per_warp * 4 // warps, "shared memory": all_shared // (shared + reserved),
              "warps": min(all_blocks, all_warps // warps)}
    least = min(blocks, key=blocks.get)
    return 100 * blocks[least] * warps // all_warps, least


def read(cuobjdump, library):
    """{kernel: {arch: (registers, stack, shared)}}"""
    report = subprocess.run([cuobjdump, "--dump-resource-usage", library], capture_output=True, text=True, check=True).stdout
    report = subprocess.run(["c++filt", "-p"], input=report, capture_output=True, text=True, check=True).stdout
    table, arch, kernel = {}, "", ""
    for line in report.splitlines():
        if found := re.match(r"\s*arch = (\S+)", line):
            arch = found[1]
        elif found := re.match(r"\s*Function (.*):\s*$", line):
            kernel = found[1].replace("inferd::kernels::cuda::", "").replace("(anonymous namespace)::", "").replace("inferd::kernels::", "")
        elif found := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            table.setdefault(kernel, {})[arch] = tuple(map(int, found.groups()))
    return table


def render(table):
    """The page."""
    lines = ["# Device kernels", "",
             "Made by `./dev cuda`; do not edit (`./dev ci` checks that it is current, where a CUDA toolkit is in the cache). Registers,",
             "stack (bytes of local memory per thread: arrays that a kernel indexes), shared memory (static and dynamic) and occupancy on",
             "paper are for sm_80 / sm_90a / sm_100. Registers spilled to memory fail the build (`ptxas -warn-spills`). Bytes and flops are",
             "the formula's at the shape named; intensity is flops per byte.", "",
             "| kernel | registers | stack | shared KiB | occupancy % | limited by | shape | MB moved | intensity |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for kernel in sorted(table):
        threads, dynamic, moved, flops, words = shape(kernel)
        archs = [a for a in LIMITS if a in table[kernel]]
        resources = [table[kernel][a] for a in archs]
        full = [occupancy(a, r[0], max(0, r[2] - 1024 if a != "sm_80" else r[2]) + dynamic, threads) for a, r in zip(archs, resources)]
        lines.append(f"| {kernel} | {' / '.join(str(r[0]) for r in resources)} | {' / '.join(str(r[1]) for r in resources)} | "
                     f"{(resources[0][2] + dynamic) / 1024:.1f} | {' / '.join(str(f[0]) for f in full)} | {full[-1][1]} | "
                     f"{words or '–'} | {f'{moved / 1e6:.3g}' if moved else '–'} | {f'{flops / moved:.2g}' if moved else '–'} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is not what would be written")
    arguments = parser.parse_args()
    table = read(arguments.cuobjdump, arguments.library)
    page = render(table)
    stale = arguments.check and arguments.out.read_text() != page
    if not arguments.check:
        arguments.out.write_text(page)
    print(f"{len(table)} kernels in {arguments.out}")
    if stale:
        print(f"{arguments.out} is out of date: run ./dev cuda and commit it", file=sys.stderr)
    sys.exit(0 if table and not stale else 1)


if __name__ == "__main__":
    main()
