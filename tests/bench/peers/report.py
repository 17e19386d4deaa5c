# SPDX-License-Identifier: Apache-2.0
"""Markdown of build/peers.json: medians (smallest..largest) over rounds, medians of the rounds' ratios and shares. Pure functions of the
JSON; a round that lacks a part, an engine or a figure counts where it has one.
"""
import dataclasses
import re
import statistics
import typing

import parts

BEGIN = "<!-- peers: what follows is written by ./dev bench peers --write-docs -->"
END = "<!-- peers: end -->"
LABELS = {"in-process": "In process", "contexts": "Long contexts", "ranks": "Ranks", "all-reduce": "All-reduce of two ranks", "http": "Over HTTP"}
ABOUT = {
    "in-process": "Prefill: one prompt. Decode: new tokens a second of all streams, after prompts of 128 tokens. OpenVINO's exports are int4 "
                  "beside Q4_K_M and int8 beside Q8_0.",
    "contexts": "New tokens a second of one stream after so many tokens.",
    "ranks": "inferd alone: two processes of one thread each beside one process of two threads.",
    "all-reduce": "Shared memory and TCP, microseconds: medians, then the 99th percentile. The barrier, in the same run, tells how far the "
                  "two CPUs are from one another.",
    "http": "One client for all; OpenVINO, which has no server, runs the same loops in process. c16_p512: 16 clients, prompts of 512 tokens, "
            "64 new ones; a client sends its next prompt when it has its answer. Ratios of times and of memory are good below 1.",
}
NONE = "–"


@dataclasses.dataclass
class Row:
    label: str
    path: tuple
    digits: int = 1
    limit: typing.Callable | None = None  # (facts, limits) -> what the machine could do at most


def unit_of(one_round, part, unit):
    return one_round.get("parts", {}).get(part, {}).get(unit)


def value(one_round, part, unit, engine, path):
    """None where the round has no such figure."""
    found = unit_of(one_round, part, unit)
    for key in ("engines", engine, *path):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, (int, float)) else None


def limits(one_round, part, unit):
    """The larger of before and after."""
    found = unit_of(one_round, part, unit)
    return {key: max(figure, found["limits_after"].get(key, figure)) for key, figure in found["limits"].items()}


def shown(figures, digits=1):
    figures = [figure for figure in figures if figure is not None]
    if not figures:
        return NONE
    if len(figures) == 1:
        return f"{figures[0]:,.{digits}f}"
    return f"{statistics.median(figures):,.{digits}f} ({min(figures):,.{digits}f}..{max(figures):,.{digits}f})"


def counted(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


def median(figures, form):
    figures = [figure for figure in figures if figure is not None]
    return form.format(statistics.median(figures)) if figures else NONE


def ratios(rounds, part, unit, ours, theirs, path):
    pairs = [(value(r, part, unit, ours, path), value(r, part, unit, theirs, path)) for r in rounds]
    return [a / b for a, b in pairs if a is not None and b]


def table(rounds, part, unit, rows, compared, title=None, facts=None):
    """One unit. `compared`: pairs of engines whose ratio is shown. With `facts` also the first engine's shares of limits, if it has any."""
    engines = order(rounds, part, unit)
    compared = [(a, b) for a, b in compared if a in engines and b in engines]
    has_limits = facts is not None and any(value(r, part, unit, engines[0], row.path) is not None for row in rows if row.limit for r in rounds)
    head = [title or unit, *engines, *(f"{a} / {b}" for a, b in compared), *([f"{engines[0]}, of the limit"] if has_limits else [])]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in rows:
        cells = [shown([value(r, part, unit, e, row.path) for r in rounds], row.digits) for e in engines]
        if all(cell == NONE for cell in cells):
            continue
        cells += [median(ratios(rounds, part, unit, a, b, row.path), "{:.2f}") for a, b in compared]
        if has_limits:
            have = [(r, value(r, part, unit, engines[0], row.path)) for r in rounds] if row.limit else []
            cells.append(median([figure / row.limit(facts, limits(r, part, unit)) for r, figure in have if figure is not None], "{:.0%}"))
        lines.append("| " + " | ".join([row.label, *cells]) + " |")
    return "\n".join(lines)


def order(rounds, part, unit):
    """Engines that have figures, inferd first."""
    known = [*parts.ENGINES, *parts.RANKS, *parts.BACKENDS]
    there = {engine for r in rounds for engine, figures in ((unit_of(r, part, unit) or {}).get("engines") or {}).items() if figures}
    return [engine for engine in known if engine in there]


def units(rounds, part):
    """Names in the order in which they were taken, with figures only."""
    names = dict.fromkeys(name for r in rounds for name in r.get("parts", {}).get(part, {}))
    return [name for name in names if order(rounds, part, name)]


def peak(form, machine):
    """Operations a second of what multiplies such weights."""
    giga = max(machine.get("bf16_gflop_per_s", 0), machine["fp32_gflop_per_s"]) if form == "bf16" else machine.get("int8_gop_per_s")
    return (giga or machine["fp32_gflop_per_s"]) * 1e9


def prefill_limit(form):
    return lambda facts, machine: peak(form, machine) / (2 * facts["prefill_weights"])


def decode_limit(form, streams, context):
    """The nearer of memory, which gives the weights once and K and V of every stream, and of arithmetic."""
    def limit(facts, machine):
        read = facts["weight_bytes"] + streams * context * facts["kv_bytes_per_token"]
        return min(streams * machine["read_gb_per_s"] * 1e9 / read, peak(form, machine) / (2 * facts["decode_weights"]))
    return limit


def speed_rows(form, prompts, streams, nested=()):
    return ([Row(f"prefill {n}, tok/s", (f"prefill_{n}", *nested), limit=prefill_limit(form)) for n in prompts]
            + [Row(f"decode {n}, tok/s", (f"decode_{n}", *nested), limit=decode_limit(form, n, parts.CONTEXT)) for n in streams])


def http_rows(form, rounds):
    rows = speed_rows(form, parts.PROMPTS, parts.STREAMS, ("tok_s",))
    names = dict.fromkeys(name for r in rounds for figures in ((unit_of(r, "http", form) or {}).get("engines") or {}).values() for name in figures)
    for name in names:
        if not name.startswith(("prefill_", "decode_")):
            rows += [Row(f"{name}: {label}", (name, key), digits) for key, label, digits in (
                ("tok_s", "tok/s", 1), ("ttft_p50_ms", "TTFT p50, ms", 0), ("ttft_p95_ms", "TTFT p95, ms", 0),
                ("gap_p95_ms", "gap p95, ms", 1), ("cold_ttft_ms", "cold TTFT, ms", 0), ("long_ttft_ms", "TTFT of the long prompt, ms", 0),
                ("idle_gap_p50_ms", "gap before, ms", 1), ("gap_max_ms", "longest gap, ms", 0))]
    return rows + [Row("start to ready, s", ("start_s",), 2), Row("start to the first token, s", ("first_token_s",), 2),
                   Row("memory after the first token, MiB", ("ready_mib",), 0), Row("memory after it all, MiB", ("memory_mib",), 0)]


def context_shares(rounds, unit, context, engine, facts):
    """Of memory read in each round: by weights, K and V together; and by K and V alone, from the time that they add to a token."""
    together, alone = [], []
    for r in rounds:
        long, short = (value(r, "contexts", unit, engine, (f"decode_{n}",)) for n in (context, parts.CONTEXT))
        if long is None:
            continue
        read = limits(r, "contexts", unit)["read_gb_per_s"] * 1e9
        together.append(long * (facts["weight_bytes"] + context * facts["kv_bytes_per_token"]) / read)
        if short and short > long:
            alone.append((context - parts.CONTEXT) * facts["kv_bytes_per_token"] / (1 / long - 1 / short) / read)
    return together, alone


def contexts_table(rounds, all_facts):
    lines = ["| | context | inferd, tok/s | llama, tok/s | inferd / llama | inferd: weights, K and V, of memory read | K and V alone "
             "| llama: weights, K and V | K and V alone |", "| --- |" + " ---: |" * 8]
    for unit in units(rounds, "contexts"):
        form, context = unit.split()
        path = (f"decode_{context}",)
        cells = [shown([value(r, "contexts", unit, engine, path) for r in rounds]) for engine in ("inferd", "llama")]
        cells.append(median(ratios(rounds, "contexts", unit, "inferd", "llama", path), "{:.2f}"))
        for engine in ("inferd", "llama"):
            shares = context_shares(rounds, unit, int(context), engine, all_facts[form]) if form in all_facts else ([], [])
            cells += [median(share, "{:.0%}") for share in shares]
        lines.append("| " + " | ".join([form, f"{int(context):,}", *cells]) + " |")
    return "\n".join(lines)


def reduce_rows():
    sizes = [(f"{n // 1024} KiB, us", str(n)) for n in parts.REDUCED_BYTES] + [("barrier, us", "barrier")]
    return [Row(label + late, (name + key,), 2) for label, name in sizes for late, key in (("", ""), (", p99", "_p99"))]


def limits_line(rounds, part, unit):
    taken = [limits(r, part, unit) for r in rounds if unit_of(r, part, unit)]
    words = {"read_gb_per_s": "memory read {} GB/s", "fp32_gflop_per_s": "FP32 {} GFLOP/s", "bf16_gflop_per_s": "BF16 {} GFLOP/s",
             "int8_gop_per_s": "INT8 {} GOP/s"}
    figures = ", ".join(form.format(shown([one.get(key) for one in taken])) for key, form in words.items() if key in taken[0])
    return f"{unit}: {counted(len(taken), 'round')}; {figures}."


def commands(rounds, part):
    """Of the first unit, as it was run last."""
    name = units(rounds, part)[0]
    last = [unit for r in rounds if (unit := unit_of(r, part, name))][-1]
    return f"Commands ({name}):\n\n```\n" + "\n".join(dict.fromkeys(c for each in last["commands"].values() for c in each)) + "\n```"


def section(rounds, part, all_facts):
    text = [f"### {LABELS[part]}", ABOUT[part]]
    for unit in units(rounds, part):
        text.append(limits_line(rounds, part, unit))
        if part in ("in-process", "http"):
            rows = speed_rows(unit, parts.PROMPTS, parts.STREAMS) if part == "in-process" else http_rows(unit, rounds)
            text.append(table(rounds, part, unit, rows, [("inferd", peer) for peer in parts.ENGINES[1:]], facts=all_facts.get(unit)))
        elif part == "ranks":
            rows = speed_rows(unit, (parts.RANK_PROMPT,), parts.RANK_STREAMS)
            text.append(table(rounds, part, unit, rows, [(ranks, "2 threads") for ranks in list(parts.RANKS)[1:]]))
        elif part == "all-reduce":
            text.append(table(rounds, part, unit, reduce_rows(), [], title="float, 2 ranks"))
    if part == "contexts":
        text.append(contexts_table(rounds, all_facts))
    return [*text, commands(rounds, part)]


def minutes(rounds):
    """What a round took, by part and unit, with the machine's limits left out."""
    lines = ["| part | | minutes a round | by engine, seconds |", "| --- | --- | ---: | --- |"]
    for part in parts.PARTS:
        for unit in units(rounds, part):
            taken = [found["seconds"] for r in rounds if (found := unit_of(r, part, unit))]
            engines = ", ".join(f"{e} {median([s.get(e) for s in taken], '{:.0f}')}" for e in order(rounds, part, unit))
            lines.append(f"| {part} | {unit} | {median([sum(s.values()) / 60 for s in taken], '{:.1f}')} | {engines} |")
    return "\n".join(lines)


def without_folders(text):
    """Of files; an URL stays."""
    return re.sub(r"(?<![\w.:/])/\S*/", "", text)


def failed(part, unit, found, when=""):
    return [f"{part}, {unit}: {engine} failed{when}: {without_folders(message.splitlines()[0])}" for engine, message in found.get("errors", {}).items()]


def losses(rounds):
    """What was void, what a round is without for that, and what failed, in words."""
    void = [one for r in rounds for one in r.get("void", ())]
    behind = [one for one in void if "lacks" in one]
    text = []
    if len(void) > len(behind):
        text.append(f"Void because the machine's limits drifted: {counted(len(void) - len(behind), 'attempt')}.")
    if behind:
        text.append(f"Not taken because an engine failed that had figures before: {counted(len(behind), 'attempt')}.")
    for number, r in enumerate(rounds, 1):
        tried = dict.fromkeys((one["part"], one["unit"]) for one in r.get("void", ()))
        text += [f"Round {number} is without {part}, {unit}: every attempt was void." for part, unit in tried if not unit_of(r, part, unit)]
    for r in rounds:
        for part, of_part in r.get("parts", {}).items():
            text += [line for unit, found in of_part.items() for line in failed(part, unit, found)]
        text += [line for one in r.get("void", ()) for line in failed(one["part"], one["unit"], one, " in a void attempt")]
    return list(dict.fromkeys(text))


def has_figures(data):
    return any(units(data["rounds"], part) for part in parts.PARTS)


def markdown(data):
    rounds, machine = data["rounds"], data.get("machine", {})
    text = [f"Machine: {machine.get('cpus', '?')} CPUs, {machine.get('cpu', 'unknown')}. {counted(len(rounds), 'round')}, in which the engines take turns. "
            "Figures: median (smallest..largest) over rounds; ratios and shares: medians of each round's. Of the limit: tokens a second that the "
            "memory read or the arithmetic measured around the same round would allow at most, whichever is less."]
    for part in parts.PARTS:
        if units(rounds, part):
            text += section(rounds, part, data.get("facts", {}))
    return "\n\n".join([*text, "### What a round takes", minutes(rounds), *losses(rounds)]) + "\n"


def with_generated(page, generated):
    """`page` with `generated` between the two markers; everything else stays."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{generated}\n{END}{after}"
