#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inferd beside llama.cpp, vLLM's CPU build and OpenVINO GenAI on this machine: `./dev bench peers`.

Every round takes the formats in turn: the machine's limits, then every engine once, then the limits again; where they drift by more than
10 % (--max-drift) these figures are void and taken anew. In process: prefill of 512 and 2,048 tokens, decode at 1, 2, 8 and 16 streams. Over HTTP: the workloads of
load_client.py, one client for all. Figures are medians over rounds, ratios are medians of the rounds' ratios. Writes build/peers.json
as they come, and a table in Markdown to standard output: what is lost is shown too.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import install
import load_client
import servers
from install import run, say

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROMPTS, STREAMS, CONTEXT, NEW_TOKENS = (512, 2048), (1, 2, 8, 16), 128, 64
MAX_TRIES = 4  # of a format in a round; then the round is without it
# Which engines run a format; OpenVINO's int8 and int4 stand for 8 and 4 bits.
FORMATS = {"q4_k_m": ("inferd", "llama", "openvino"), "q8_0": ("inferd", "llama", "openvino"), "bf16": ("inferd", "llama", "vllm")}
OPENVINO = {"q4_k_m": "openvino-int4", "q8_0": "openvino-int8"}
HTTP_ENGINES = {"inferd": servers.inferd, "llama": servers.llama, "vllm": servers.vllm}
IN_PROCESS_WORKLOADS = [name for name in load_client.WORKLOADS if name != "shared_prefix"]  # what openvino_driver.py knows


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.build = arguments.build
        self.inferd = self.build / "inferd"
        self.llama = install.llama(arguments.cache)
        self.paths = install.convert(arguments.cache, arguments.model, arguments.engines)
        self.python = install.torch_python(arguments.cache) if {"vllm", "openvino"} & set(arguments.engines) else None
        self.seed = str(time.time_ns())  # new prompts in each run: no server's cache holds them

    def peaks(self):
        got = json.loads(run(self.build / "tests/bench/roofline", self.arguments.threads))
        (both,) = [row for row in got["roofline"] if row["threads"] == self.arguments.threads]
        return both

    def in_process(self, engine, form):
        """{"prefill_512": tok/s, ..., "decode_1": tok/s, ...} or nothing for an engine without such a program."""
        threads = self.arguments.threads
        if engine == "inferd":
            rows = run(self.inferd, "bench", self.paths[form], "--threads", threads, "--rounds", "1", "--json", "--max-model-len", "4096",
                       "--prompt-tokens", ",".join(map(str, PROMPTS)), "--streams", ",".join(map(str, STREAMS)), "--context", CONTEXT,
                       "--output-tokens", NEW_TOKENS, "--log-level", "error")
            rows = [json.loads(row) for row in rows.splitlines()]
            return {f"{r['phase']}_{r['context'] if r['phase'] == 'prefill' else r['streams']}": r["tokens_per_s"] for r in rows}
        if engine == "llama":
            common = ["-m", self.paths[form], "-t", threads]
            rows = json.loads(run(self.llama / "llama-bench", *common, "-p", ",".join(map(str, PROMPTS)), "-n", "0", "-r", "1", "-o", "json"))
            figures = {f"prefill_{row['n_prompt']}": row["avg_ts"] for row in rows}
            rows = run(self.llama / "llama-batched-bench", *common, "-c", "4096", "-b", "2048", "-ub", "512", "-npp", CONTEXT, "-ntg", NEW_TOKENS,
                       "-npl", ",".join(map(str, STREAMS)), "--output-format", "jsonl")
            for row in (json.loads(line) for line in rows.splitlines() if line.startswith("{")):
                figures[f"decode_{row['pl']}"] = row["speed_tg"]
            return figures
        return {}

    def over_http(self, engine, form):
        threads, workloads = self.arguments.threads, self.arguments.workloads
        if engine == "openvino":
            known = [name for name in workloads if name in IN_PROCESS_WORKLOADS]
            return json.loads(run(self.python, pathlib.Path(__file__).with_name("openvino_driver.py"), self.paths[OPENVINO[form]], threads,
                                  self.seed, *known).splitlines()[-1])
        what = {"inferd": self.inferd, "llama": self.llama, "vllm": self.python}[engine]
        with HTTP_ENGINES[engine](what, self.paths["hf" if engine == "vllm" else form], threads) as server:
            result = load_client.measure(server.url, server.model, workloads, self.seed)
            return {**result, "start_s": server.start_s, "memory_mib": server.memory_mib()}

    def format(self, form):
        """{"in_process": {engine: figures}, "http": {engine: figures}, "peaks", "peaks_after", "drift"} of one format."""
        result = {"peaks": self.peaks(), "in_process": {}, "http": {}}
        for engine in FORMATS[form]:
            if engine not in self.arguments.engines:
                continue
            say(f"  {form}: {engine}")
            result["in_process"][engine] = self.in_process(engine, form)
            if self.arguments.workloads:
                result["http"][engine] = self.over_http(engine, form)
        before, after = result["peaks"], self.peaks()
        result["peaks_after"] = after
        result["drift"] = max(abs(after[key] / before[key] - 1) for key in ("read_gb_per_s", "int8_gop_per_s"))
        return result

    def round(self, save):
        """The formats that the machine held still for, and all that were void; save(round so far) after each."""
        result = {"load_before": os.getloadavg()[0], "in_process": {}, "http": {}, "peaks": {}, "void": []}
        for form in self.arguments.formats:
            for _ in range(MAX_TRIES):
                got = self.format(form)
                if got["drift"] <= self.arguments.max_drift:
                    for key in ("in_process", "http", "peaks"):
                        result[key][form] = got[key]
                    save(result)
                    break
                result["void"].append({"format": form, **got})
                save(result)
                say(f"  void: the machine's limits drifted by {got['drift']:.0%} (something else ran?)")
        return result


def cells(rounds, *path):
    """The value at `path` in each round that has it."""
    found = []
    for value in rounds:
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            found.append(value)
    return found


def shown(values, digits=1):
    if not values:
        return "–"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}..{max(values):,.{digits}f})"


def ratio(rounds, ours, theirs):
    each = [a / b for a, b in zip(cells(rounds, *ours), cells(rounds, *theirs))]
    return f"{statistics.median(each):.2f}" if each else "–"


def table(rounds, kind, form, rows):
    """`rows`: (label, path below the engine). The ratio is inferd's figure by the peer's."""
    engines = [engine for engine in FORMATS[form] if any(engine in r[kind].get(form, {}) for r in rounds)]
    peers = [engine for engine in engines if engine != "inferd"]
    lines = [f"| {form} | " + " | ".join(engines) + " | " + " | ".join(f"inferd / {peer}" for peer in peers) + " |",
             "| --- " * (1 + len(engines) + len(peers)) + "|"]
    for label, path in rows:
        figures = [shown(cells(rounds, kind, form, engine, *path)) for engine in engines]
        if all(figure == "–" for figure in figures):
            continue
        ratios = [ratio(rounds, (kind, form, "inferd", *path), (kind, form, peer, *path)) for peer in peers]
        lines.append(f"| {label} | " + " | ".join(figures + ratios) + " |")
    return "\n".join(lines)


def limits(rounds, form):
    taken = [r["peaks"][form] for r in rounds if form in r["peaks"]]
    return ", ".join(f"{key} {statistics.median(peaks[key] for peaks in taken):g}" for key in taken[0] if key != "threads")


def report(rounds, workloads):
    in_process = [(f"prefill {n}, tok/s", (f"prefill_{n}",)) for n in PROMPTS] + [(f"decode {n}, tok/s", (f"decode_{n}",)) for n in STREAMS]
    http = [(f"{name}: {label}", (name, key)) for name in workloads for key, label in (
        ("tok_s", "tok/s"), ("ttft_p95_ms", "TTFT p95, ms"), ("gap_p95_ms", "gap p95, ms"), ("cold_ttft_ms", "cold TTFT, ms"),
        ("long_ttft_ms", "TTFT of the long prompt, ms"), ("idle_gap_p50_ms", "gap before, ms"), ("gap_max_ms", "longest gap, ms"))]
    http += [("start, s", ("start_s",)), ("memory after it all, MiB", ("memory_mib",))]
    for form in FORMATS:
        if any(form in r["in_process"] for r in rounds):
            print(f"{form}: {len(cells(rounds, 'peaks', form, 'threads'))} rounds; limits in them (medians): {limits(rounds, form)}\n")
            print(table(rounds, "in_process", form, in_process) + "\n")
        if any(form in r["http"] for r in rounds):
            print(table(rounds, "http", form, http) + "\n")


def names(known):
    def parse(text):
        chosen = [word for word in text.split(",") if word]
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
        return chosen
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "bench")
    parser.add_argument("--model", type=pathlib.Path, help="a Q4_K_M file; default: the catalog's qwen2.5-coder-0.5b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-drift", type=float, default=0.10,
                        help="of the machine's limits around a format's figures; beyond it they are void")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", type=names(FORMATS), default=list(FORMATS))
    parser.add_argument("--engines", type=names(["inferd", "llama", "vllm", "openvino"]), default=["inferd", "llama", "vllm", "openvino"])
    parser.add_argument("--append", action="store_true", help="keep the rounds of build/peers.json and add --rounds to them")
    parser.add_argument("--workloads", type=names(load_client.WORKLOADS), default=list(load_client.WORKLOADS),
                        help="over HTTP; an empty text: none")
    arguments = parser.parse_args()
    arguments.model = arguments.model or arguments.cache / "models" / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    bench = Bench(arguments)
    path = ROOT / "build" / "peers.json"
    path.parent.mkdir(exist_ok=True)
    rounds = json.loads(path.read_text())["rounds"] if arguments.append and path.exists() else []
    wanted = len(rounds) + arguments.rounds

    def save(unfinished):
        path.write_text(json.dumps({"rounds": rounds + [unfinished]}, indent=1))

    while len(rounds) < wanted:
        say(f"round {len(rounds) + 1} of {wanted}, load {os.getloadavg()[0]:.1f}")
        rounds.append(bench.round(save))
    report(rounds, arguments.workloads)
    if void := sum(len(r["void"]) for r in rounds):
        print(f"{void} times a format's figures were void.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
