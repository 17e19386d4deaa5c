#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inferd beside llama.cpp, vLLM's CPU build and OpenVINO GenAI on this machine: `./dev bench peers`.

  in-process   prefill of 512 and 2,048 tokens, decode at 1, 2, 8 and 16 streams
  contexts     decode of one stream after --contexts tokens
  ranks        inferd as two processes (--tp 2, --pp 2) beside one of two threads
  all-reduce   of two ranks, with the barrier beside it
  http         load_client.py's workloads, one client for all

docs/performance.md, "Measuring the peers", has the minutes that each takes; the report ends with those that it measured.

A round takes all chosen parts, unit by unit (a format, mostly): the machine's limits, every engine once, the limits again; where they
drift by more than --max-drift a unit's figures are void and taken anew. Every second round has the engines in reverse. Writes
build/peers.json as figures come (a run that was ended goes on with --resume) and Markdown of it to standard output: what is lost is shown too.
"""
import argparse
import json
import os
import pathlib
import signal
import sys
import time

import load_client
import parts
import report
from install import say

ROOT = pathlib.Path(__file__).resolve().parents[3]
JSON, PAGE = ROOT / "build" / "peers.json", ROOT / "docs" / "performance.md"
MAX_TRIES = 3  # of a unit in a round; then the round is without it
MAX_FAILURES = 2  # of an engine in a unit of a round, for which --resume takes the unit again


def names(known):
    def parse(text):
        chosen = [word for word in text.split(",") if word]
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
        return chosen
    return parse


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=pathlib.Path, help="where engines and models are kept")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "bench")
    parser.add_argument("--json", type=pathlib.Path, default=JSON)
    parser.add_argument("--model", type=pathlib.Path, help="a Q4_K_M file; default: the catalog's qwen2.5-coder-0.5b")
    parser.add_argument("--part", type=names(parts.PARTS), default=list(parts.PARTS), help=f"some of {','.join(parts.PARTS)} [all]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-drift", type=float, default=0.10,
                        help="of the machine's limits around a unit's figures; beyond it they are void [0.1]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", type=names(parts.FORMATS), help="default: all, but q4_k_m for contexts and ranks")
    parser.add_argument("--engines", type=names(parts.ENGINES), default=list(parts.ENGINES))
    parser.add_argument("--contexts", type=numbers, default=[8192],
                        help="e.g. 8192,32000; llama.cpp reads 32,000 tokens for many minutes [8192]")
    parser.add_argument("--workloads", type=names(load_client.WORKLOADS),
                        help="over HTTP, for every engine; an empty text: none. Default: for each engine those that it may be the best in")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="begin no unit after so many; --resume goes on where that left off [no bound]")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--append", action="store_true", help="keep the rounds of build/peers.json and add --rounds to them")
    more.add_argument("--resume", action="store_true",
                      help="take units of the first --rounds rounds of build/peers.json that lack an engine, with all that they have; it looks at "
                      "engines only: whether --workloads, --contexts or --model are those of before, it cannot tell")
    parser.add_argument("--report-only", action="store_true", help="print what build/peers.json holds, measure nothing")
    parser.add_argument("--write-docs", action="store_true", help="also write the report into docs/performance.md, between its markers")
    arguments = parser.parse_args(words)
    if not arguments.report_only:
        if arguments.cache is None:
            parser.error("--cache is needed to measure")
        arguments.model = arguments.model or arguments.cache / "models" / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    return arguments


def machine():
    models = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"cpu": models[0] if models else "unknown", "cpus": len(os.sched_getaffinity(0))}


def load(path):
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise SystemExit(f"{path} is not there: nothing was measured yet") from None
    except ValueError as error:
        raise SystemExit(f"{path} is no JSON: {error}") from None
    if any("parts" not in one for one in data["rounds"]):
        raise SystemExit(f"{path} is of an earlier form of this program: move it away")
    return data


class Recorder:
    """The JSON of all rounds; written after every unit."""

    def __init__(self, path, keep):
        self.path = path
        if path.exists() and not keep:
            path.rename(path.with_suffix(".old.json"))
        self.data = load(path) if path.exists() else {"machine": machine(), "facts": {}, "rounds": []}

    def round(self, number):
        rounds = self.data["rounds"]
        while len(rounds) <= number:
            rounds.append({"parts": {}, "void": []})
        return rounds[number]

    def save(self):
        self.path.parent.mkdir(exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1))
        part.rename(self.path)


def failures(found, engine):
    """How often an engine failed while a unit of a round was finished; the first time is told by its error alone."""
    return found.get("failures", {}).get(engine, int(engine in found.get("errors", {})))


def due(one_round, part, unit, wanted):
    """What a unit is to be measured with: engines that are wanted and those that it has, since ratios are of the same minutes; or nothing."""
    name, able, _ = unit
    found = report.unit_of(one_round, part, name) or {"engines": {}}
    there = found["engines"]
    if all(engine in there or failures(found, engine) >= MAX_FAILURES for engine in able if engine in wanted):
        return []
    if beyond := [engine for engine in there if engine not in able]:
        say(f"  {part}: {name} stays as it is: with these flags {', '.join(beyond)} would not be measured again")
        return []
    return [engine for engine in able if engine in wanted or engine in there]


def settle(one_round, part, name, got):
    """Puts what was measured into its round; beside the void ones if it lacks an engine that the unit has."""
    units = one_round["parts"].setdefault(part, {})
    old = units.get(name, {"engines": {}})
    failed = {engine: failures(old, engine) + (engine in got["errors"]) for engine in {**old.get("errors", {}), **got["errors"]}}
    if lacks := [engine for engine in old["engines"] if engine not in got["engines"]]:
        say(f"  the figures of before stay: now {', '.join(lacks)} failed")
        one_round["void"].append({"part": part, "unit": name, "lacks": lacks, **got})
        old["failures"] = {**old.get("failures", {}), **failed}
    else:
        units[name] = {**got, "failures": {**old.get("failures", {}), **failed}}


def measure_unit(bench, recorder, number, part, unit):
    name, engines, function = unit
    one_round = recorder.round(number)
    for _ in range(MAX_TRIES):
        say(f"  {part}: {name}")
        got = bench.measure(engines, function, number)
        if got["drift"] <= bench.arguments.max_drift:
            settle(one_round, part, name, got)
            recorder.save()
            return
        one_round["void"].append({"part": part, "unit": name, **got})
        recorder.save()
        say(f"  void: the machine's limits drifted by {got['drift']:.0%} (something else ran?)")


def engines_there(rounds, some_parts):
    """Those that have figures: a unit that is taken again needs them all."""
    return {engine for r in rounds for part in some_parts for found in r["parts"].get(part, {}).values() for engine in found["engines"]}


def measure(arguments):
    recorder = Recorder(arguments.json, arguments.append or arguments.resume)
    first = len(recorder.data["rounds"]) if arguments.append else 0
    end = time.monotonic() + 60 * arguments.minutes
    there = engines_there(recorder.data["rounds"][first:first + arguments.rounds], arguments.part)
    wanted = {*arguments.engines, *parts.RANKS, *parts.BACKENDS}
    with parts.Bench(arguments, [engine for engine in parts.ENGINES if engine in wanted | there]) as bench:
        for form in parts.formats_of(arguments, parts.WITH_SHARES):
            recorder.data["facts"][form] = bench.facts(form)
        for number in range(first, first + arguments.rounds):
            say(f"round {number + 1} of {first + arguments.rounds}, load {os.getloadavg()[0]:.1f}")
            for part in arguments.part:
                for unit in bench.units(part):
                    if time.monotonic() < end and (engines := due(recorder.round(number), part, unit, wanted)):
                        measure_unit(bench, recorder, number, part, (unit[0], engines, unit[2]))
    return recorder.data


def end_in_order_on_sigterm():
    """Contexts unwind: without that a server that is kept would stay behind, stopped."""
    def end(number, _):
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt that
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, end)


def main(words=None):
    arguments = parse_arguments(words)
    if not arguments.report_only:
        end_in_order_on_sigterm()
    data = load(arguments.json) if arguments.report_only else measure(arguments)
    text = report.markdown(data)
    print(text)
    if arguments.write_docs:
        if not report.has_figures(data):
            raise SystemExit(f"no unit of {arguments.json} has figures: {PAGE} stays as it is")
        PAGE.write_text(report.with_generated(PAGE.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
