# SPDX-License-Identifier: Apache-2.0
"""What compare.py measures: five parts, each cut into units with the machine's limits before and after.

A unit's figures are {engine: figures}; what a unit needs is run through `Unit.take`, which notes the seconds, the command and, where an
engine fails, its message instead of figures: an hour's other measurements go on.
"""
import contextlib
import json
import os
import pathlib
import time

import gguf_facts
import install
import load_client
import servers
from install import run, say

PROMPTS, STREAMS, CONTEXT, NEW_TOKENS = (512, 2048), (1, 2, 8, 16), 128, 64
RANK_PROMPT, RANK_STREAMS = 512, (1, 8)
RANKS = {"2 threads": [], "tp 2": ["--tp", 2], "pp 2": ["--pp", 2]}
BACKENDS, REDUCED_BYTES = ("shm", "tcp"), (4096, 65536)
PARTS = ("in-process", "contexts", "ranks", "all-reduce", "http")
ENGINES = ("inferd", "llama", "vllm", "openvino")
# Which engines run a format; OpenVINO's int8 and int4 stand for 8 and 4 bits.
FORMATS = {"q4_k_m": ("inferd", "llama", "openvino"), "q8_0": ("inferd", "llama", "openvino"), "bf16": ("inferd", "llama", "vllm")}
OPENVINO = {"q4_k_m": "openvino-int4", "q8_0": "openvino-int8"}
HTTP_ENGINES = {"inferd": servers.inferd, "llama": servers.llama, "vllm": servers.vllm}
LOADS = ["c16_p128", "c16_p512"]
STEADY = ["prefill_512", "prefill_2048", "decode_2", "decode_8", "decode_16"]  # vLLM has no program of its own for them
# Over HTTP unless --workloads names some: what an engine may be the one to beat in, so that a round stays short (of llama.cpp: start, memory).
HTTP = {"q4_k_m": {"inferd": ["c1_p128", *LOADS, "shared_prefix", "long_prefill"], "llama": ["c1_p128"],
                   "openvino": [*LOADS, "shared_prefix", "long_prefill"]},
        "q8_0": {"inferd": LOADS, "openvino": LOADS},
        "bf16": {"inferd": [*STEADY, *LOADS, "shared_prefix"], "vllm": [*STEADY, *LOADS, "shared_prefix"]}}
DEFAULT_FORMATS = {"in-process": list(FORMATS), "contexts": ["q4_k_m"], "ranks": ["q4_k_m"], "http": list(FORMATS)}
WITH_SHARES = ("in-process", "contexts", "http")  # parts whose tables have shares of the machine's limits
PEAKS_HOLD_S = 5


def formats_of(arguments, some_parts=PARTS):
    """Those that the chosen ones among `some_parts` measure."""
    chosen = {form for part in arguments.part if part in some_parts and part in DEFAULT_FORMATS
              for form in arguments.formats or DEFAULT_FORMATS[part]}
    return [form for form in FORMATS if form in chosen]


def joined(values):
    return ",".join(map(str, values))


class Unit:
    """One unit of a round while it is measured."""

    def __init__(self):
        self.result = {"engines": {}, "seconds": {}, "commands": {}, "errors": {}}

    @contextlib.contextmanager
    def take(self, engine):
        say(f"    {engine}")
        begin = time.perf_counter()
        try:
            yield
        except (Exception, install.CommandFailed) as error:  # whatever an engine does; not an end that was asked for
            self.result["errors"][engine] = f"{type(error).__name__}: {error}"[:2000]
            say(f"    {engine} failed: {str(error)[:300]}")
        self.result["seconds"][engine] = round(time.perf_counter() - begin, 1)

    def run(self, engine, *command):
        """Standard output; the command is noted without the folders of files."""
        words = [str(word) for word in command]
        self.result["commands"].setdefault(engine, []).append(" ".join(os.path.basename(word) if "/" in word else word for word in words))
        return run(*words)


class Bench:
    """A context manager: servers that are kept from round to round (stopped in between) end with it. `engines`: those that it can measure."""

    def __init__(self, arguments, engines):
        self.arguments, self.engines = arguments, engines
        self.inferd = arguments.build / "inferd"
        self.programs = arguments.build / "tests" / "bench"
        self.llama = install.llama(arguments.cache) if "llama" in engines else None
        self.paths = install.convert(arguments.cache, arguments.model, engines, formats_of(arguments))
        self.python = install.torch_python(arguments.cache) if {"vllm", "openvino"} & set(engines) else None
        self.seed = str(time.time_ns())  # new prompts in each round of each run: no server's cache holds them
        self._kept = {}
        self._stack = contextlib.ExitStack()
        self._peaks = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def facts(self, form):
        """What the report's shares of limits are computed with."""
        packed = json.loads(run(self.programs / "model_bench", self.paths[form], self.arguments.threads, 2, 2))["weight_bytes"]
        return {"weight_bytes": packed, **gguf_facts.facts(self.paths[form])}

    def peaks(self, hold_s=0):
        """Now, or as they were measured at most `hold_s` ago."""
        if self._peaks is None or time.monotonic() - self._peaks[0] > hold_s:
            got = json.loads(run(self.programs / "roofline", self.arguments.threads))
            (both,) = [row for row in got["roofline"] if row["threads"] == self.arguments.threads]
            self._peaks = (time.monotonic(), both)
        return self._peaks[1]

    def units(self, part):
        """[(name, engines, function)]: `function(unit, engine, number)` gives an engine's figures in round `number`."""
        chosen, formats = self.engines, self.arguments.formats or DEFAULT_FORMATS.get(part)
        if part == "in-process":
            return [(form, [e for e in FORMATS[form] if e in chosen and e != "vllm"],
                     lambda unit, engine, _, form=form: self.in_process(unit, engine, form)) for form in formats]
        if part == "contexts":
            return [(f"{form} {context}", [e for e in ("inferd", "llama") if e in chosen],
                     lambda unit, engine, _, form=form, context=context: self.context(unit, engine, form, context))
                    for context in self.arguments.contexts for form in formats]
        if part == "ranks":
            return [(form, list(RANKS), lambda unit, ranks, _, form=form: self.ranks(unit, ranks, form)) for form in formats]
        if part == "all-reduce":
            return [("float", list(BACKENDS), lambda unit, backend, _: self.all_reduce(unit, backend))]
        plan = {form: {e: names for e, names in self.workloads(form).items() if e in chosen} for form in formats}
        return [(form, list(plan[form]), lambda unit, engine, number, form=form: self.over_http(unit, engine, form, plan[form][engine], number))
                for form in formats if plan[form]]

    def workloads(self, form):
        if self.arguments.workloads is None:
            return HTTP[form]
        return {engine: self.arguments.workloads for engine in FORMATS[form]} if self.arguments.workloads else {}

    def measure(self, engines, function, number):
        """One unit. In every second round the engines take their turns the other way round."""
        unit = Unit()
        before = self.peaks(PEAKS_HOLD_S)  # mostly those after the unit before
        for engine in engines if number % 2 == 0 else reversed(engines):
            with unit.take(engine):
                unit.result["engines"][engine] = function(unit, engine, number)
        after = self.peaks()
        drift = max(abs(after[key] / before[key] - 1) for key in ("read_gb_per_s", "int8_gop_per_s") if key in before)
        return {**unit.result, "limits": before, "limits_after": after, "drift": drift, "load": os.getloadavg()[0]}

    def inferd_bench(self, unit, engine, form, *flags):
        rows = unit.run(engine, self.inferd, "bench", self.paths[form], "--threads", self.arguments.threads, "--rounds", 1, "--json",
                        "--log-level", "error", *flags)
        rows = [json.loads(row) for row in rows.splitlines()]
        return {f"{row['phase']} {row['context']} {row['streams']}": row["tokens_per_s"] for row in rows}

    def in_process(self, unit, engine, form):
        """{"prefill_512": tok/s, ..., "decode_1": tok/s, ...}"""
        names = [f"prefill_{n}" for n in PROMPTS] + [f"decode_{n}" for n in STREAMS]
        if engine == "inferd":
            got = self.inferd_bench(unit, engine, form, "--max-model-len", 4096, "--prompt-tokens", joined(PROMPTS), "--streams",
                                    joined(STREAMS), "--context", CONTEXT, "--output-tokens", NEW_TOKENS)
            return {**{f"prefill_{n}": got[f"prefill {n} 1"] for n in PROMPTS}, **{f"decode_{n}": got[f"decode {CONTEXT} {n}"] for n in STREAMS}}
        if engine == "openvino":
            got = self.openvino(unit, form, self.seed, names)
            return {name: got[name]["tok_s"] for name in names}
        common = ["-m", self.paths[form], "-t", self.arguments.threads]
        # 64 tokens first, in place of warming up with as many tokens as are measured.
        rows = json.loads(unit.run(engine, self.llama / "llama-bench", *common, "-p", joined((64, *PROMPTS)), "-n", 0, "-r", 1, "--no-warmup",
                                   "-o", "json"))
        figures = {f"prefill_{row['n_prompt']}": row["avg_ts"] for row in rows if row["n_prompt"] in PROMPTS}
        # The streams' prompts are read once (-pps) and half as many tokens follow: no other rate, but in less time.
        rows = unit.run(engine, self.llama / "llama-batched-bench", *common, "-c", 4096, "-b", 2048, "-ub", 512, "-npp", CONTEXT, "-ntg",
                        NEW_TOKENS // 2, "-npl", joined(STREAMS), "-pps", "--output-format", "jsonl")
        for row in (json.loads(line) for line in rows.splitlines() if line.startswith("{")):
            figures[f"decode_{row['pl']}"] = row["speed_tg"]
        return figures

    def context(self, unit, engine, form, context):
        """{"decode_128": tok/s of one stream, "decode_<context>": ...}"""
        both, new_tokens = (CONTEXT, context), NEW_TOKENS // 2
        if engine == "inferd":
            got = self.inferd_bench(unit, engine, form, "--prompt-tokens", CONTEXT, "--streams", 1, "--context", joined(both),
                                    "--output-tokens", new_tokens)
            return {f"decode_{n}": got[f"decode {n} 1"] for n in both}
        rows = json.loads(unit.run(engine, self.llama / "llama-bench", "-m", self.paths[form], "-t", self.arguments.threads, "-p", 0, "-n",
                                   new_tokens, "-d", joined(both), "-r", 1, "-o", "json"))
        return {f"decode_{row['n_depth']}": row["avg_ts"] for row in rows}

    def ranks(self, unit, ranks, form):
        got = self.inferd_bench(unit, ranks, form, *RANKS[ranks], "--prompt-tokens", RANK_PROMPT, "--streams", joined(RANK_STREAMS),
                                "--context", CONTEXT, "--output-tokens", NEW_TOKENS)
        return {f"prefill_{RANK_PROMPT}": got[f"prefill {RANK_PROMPT} 1"], **{f"decode_{n}": got[f"decode {CONTEXT} {n}"] for n in RANK_STREAMS}}

    def all_reduce(self, unit, backend):
        """{"4096": us, "4096_p99": us, ..., "barrier": us}: medians, and the 99th percentile, of 2 ranks"""
        figures = {}
        rows = [json.loads(row) for row in unit.run(backend, self.programs / "comm_bench", 2).splitlines()]
        for row in (row for row in rows if row["backend"] == backend):
            name = "barrier" if row["bench"] == "barrier" else str(row["bytes"])
            figures[name], figures[f"{name}_p99"] = row["median_us"], row["p99_us"]
        return figures

    def openvino(self, unit, form, seed, workloads):
        driver = pathlib.Path(__file__).with_name("openvino_driver.py")
        return json.loads(unit.run("openvino", self.python, driver, self.paths[OPENVINO[form]], self.arguments.threads, seed,
                                   *workloads).splitlines()[-1])

    def over_http(self, unit, engine, form, workloads, number):
        """{workload: figures, "memory_mib", and of a server that was started for them "start_s", "first_token_s", "ready_mib" (after that token)}"""
        seed = f"{self.seed}/{number}"
        if engine == "openvino":
            return self.openvino(unit, form, seed, workloads)
        server, is_new = self.server(engine, form)
        unit.result["commands"][engine] = [server.shown]
        try:
            result = {}
            if is_new:
                first_token_s = server.start_s + load_client.first_token_s(server.url, server.model)
                result = {"start_s": server.start_s, "first_token_s": first_token_s, "ready_mib": server.memory_mib()}
            result.update(load_client.measure(server.url, server.model, workloads, seed))
            return {**result, "memory_mib": server.memory_mib()}
        finally:
            self.put_away(engine, form, server)

    def server(self, engine, form):
        """A server that answers, and whether it was started now."""
        if server := self._kept.pop((engine, form), None):
            if server.is_running():
                server.resume()
                return server, False
            server.__exit__()
        what = {"inferd": self.inferd, "llama": self.llama, "vllm": self.python}[engine]
        server = HTTP_ENGINES[engine](what, self.paths["hf" if engine == "vllm" else form], self.arguments.threads)
        return self._stack.enter_context(server), True

    def put_away(self, engine, form, server):
        """vLLM takes a minute and a half to start: it is kept, without CPU, while it lives."""
        if engine == "vllm" and server.is_running():
            server.pause()
            self._kept[engine, form] = server
        else:
            server.__exit__()
