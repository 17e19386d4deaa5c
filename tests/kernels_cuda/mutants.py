#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds the bugs of mutants.toml into the device kernels, their host code and what joins ranks, one at a time, and checks that the
tests notice each.

Needs the built tests in BUILD, which must pass as they are. Per mutant one source is compiled anew and linked before the
library that has the right one. Prints one line each; exits 1 when a mutant survives (or a harmless change is noticed).
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ["", "EMU_ORDER=rev", "EMU_ORDER=rand:1 EMU_CPASYNC=early EMU_STREAMS=lazy"]
RUN_SECONDS = 240
CLEAN_SECONDS = 600
BINARIES = ["test_kernels_cuda", "test_model", "test_comm", "test_leader"]  # ./dev mutants builds them
PAGE = ROOT / "docs/cuda-mutants.md"


def text_of(mutant):
    """The source that the bug goes into, in which its place must be clear."""
    text = (ROOT / mutant["file"]).read_text()
    if text.count(mutant["old"]) != mutant.get("count", 1):
        raise ValueError(f"'{mutant['name']}': the text to replace is {text.count(mutant['old'])} times in {mutant['file']}")
    return text


class Bench:
    """Compiles and links as the build did, but for one source."""

    def __init__(self, build):
        self.build = build
        entries = json.loads((build / "compile_commands.json").read_text())
        self.compile = {str(pathlib.Path(e["file"]).resolve().relative_to(ROOT)): e for e in entries
                        if pathlib.Path(e["file"]).resolve().is_relative_to(ROOT)}
        self.links = {name: self.link_of(name) for name in BINARIES}

    def link_of(self, name):
        """(the built test, the command that links it)"""
        lines = subprocess.run(["ninja", "-t", "commands", name], cwd=self.build, check=True,
                               capture_output=True, text=True).stdout.splitlines()
        found = [(match[1], line) for line in lines if (match := re.search(rf" -o (\S*/{name})(?= )", line))]
        return found[-1]

    def make(self, mutant, folder):
        """The mutant's test binary in `folder`."""
        unit = mutant.get("unit", mutant["file"])
        text = text_of(mutant)
        changed = folder / mutant["file"]
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(text.replace(mutant["old"], mutant["new"]))
        entry = self.compile[unit]
        command = shlex.split(entry["command"])
        command = command[1:] if command[0].endswith("ccache") else command
        source = changed if unit == mutant["file"] else ROOT / unit
        out = folder / "mutant.o"
        command[command.index("-o") + 1] = str(out)
        command[command.index("-c") + 1] = str(source)
        command[1:1] = [f"-I{folder}", f"-iquote{(ROOT / mutant['file']).parent}", "-w"]  # what stood beside it still does
        subprocess.run(command, cwd=entry["directory"], check=True, capture_output=True, text=True)
        built, link = self.links[mutant.get("binary", "test_kernels_cuda")]
        link = link.split("&&")[1].strip()
        binary = folder / "test"
        link = link.replace(f" -o {built}", f" -o {binary}")
        own = re.search(rf"\S*{re.escape(pathlib.Path(unit).name)}\.o", link)
        if own:  # a source of the test itself
            link = link.replace(own.group(0), str(out))
        else:
            link = re.sub(rf" -o {re.escape(str(binary))}", f" {out} -o {binary}", link)
        subprocess.run(link, shell=True, cwd=self.build, check=True, capture_output=True, text=True)
        return binary


def run(binary, tests, setting, seconds=RUN_SECONDS):
    """How the tests end: 'passed', or what was noticed."""
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in setting.split()))
    try:
        done = subprocess.run([binary, f"--gtest_filter={tests}", "--gtest_brief=1"], env=environment, capture_output=True,
                              text=True, timeout=seconds, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return f"hung for {seconds} s"
    if done.returncode == 0:
        return "passed" if "PASSED  ] 0 tests" not in done.stdout else "no such test"
    found = re.search(r"EMU FAIL: ([^\n]*)", done.stderr)
    return found.group(1) if found else "wrong results" if "FAILED" in done.stdout else f"died, exit code {done.returncode}"


def judge(bench, mutant):
    """(ok, line) of one mutant."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        try:
            binary = bench.make(mutant, pathlib.Path(name))
        except (subprocess.CalledProcessError, ValueError) as error:
            return False, f"{mutant['name']}: cannot be built: {getattr(error, 'stderr', '') or error}"
        for setting in mutant.get("run", SETTINGS):
            seen = run(binary, mutant["tests"], setting, mutant.get("seconds", RUN_SECONDS))
            if seen == "no such test":
                return False, f"{mutant['name']}: no test is called {mutant['tests']}"
            if seen != "passed":
                ok = not mutant.get("harmless", False)
                return ok, f"{mutant['name']}: {seen} ({setting or 'defaults'})"
    ok = mutant.get("harmless", False)
    return ok, f"{mutant['name']}: {'harmless, as it should be' if ok else 'SURVIVED'}"


def clean_tree(bench, mutants):
    """Lines about what fails without any mutant: nothing may."""
    wanted = {}
    for mutant in mutants:
        for setting in mutant.get("run", SETTINGS):
            wanted.setdefault((mutant.get("binary", "test_kernels_cuda"), setting), set()).update(mutant["tests"].split(":"))
    lines = []
    for (binary, setting), tests in sorted(wanted.items()):
        seen = run(bench.build / bench.links[binary][0], ":".join(sorted(tests)), setting, CLEAN_SECONDS)
        if seen != "passed":
            lines.append(f"{binary} as it is: {seen} ({setting or 'defaults'})")
    return lines


def write_page(path, lines):
    """The list with its results, for docs."""
    rows = []
    for line in lines:
        name, _, rest = line.partition(": ")
        rows.append(f"| {name} | {rest} |")
    path.write_text("\n".join([
        "# Seeded bugs", "",
        "Made by `./dev mutants --write docs/cuda-mutants.md`; do not edit. Each line is a bug that `tests/kernels_cuda/mutants.py` puts into",
        "a kernel, into the host code around kernels, or into what joins ranks, by itself, and how the tests on the emulated device noticed it (in brackets the",
        "emulation's settings of that run). A line that says harmless is no bug but a change that the tests must let pass. Before the first,",
        "the same tests pass as the sources are.", "",
        "| bug | noticed as |", "| --- | --- |", *rows]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only mutants whose name or file this regular expression finds")
    parser.add_argument("--places", action="store_true", help="only see that each bug still has its place in the sources, and its line in docs/cuda-mutants.md")
    parser.add_argument("--write", type=pathlib.Path, help="the list and its result as a page; of all bugs only")
    arguments = parser.parse_args()
    mutants = tomllib.loads((pathlib.Path(__file__).parent / "mutants.toml").read_text())["mutant"]
    mutants = [m for m in mutants if re.search(arguments.only, m["name"]) or re.search(arguments.only, m["file"])]
    if arguments.places:
        for mutant in mutants:
            text_of(mutant)
        listed = re.findall(r"^\| (.*?) \|", PAGE.read_text(), re.MULTILINE)[2:]  # after the table's head
        if not arguments.only and listed != [m["name"] for m in mutants]:
            different = sorted(set(listed) ^ {m["name"] for m in mutants}) or ["their order"]
            sys.exit(f"{PAGE.relative_to(ROOT)} is out of date ({'; '.join(different)}): run ./dev mutants --write on it")
        print(f"{len(mutants)} seeded changes have their places")
        return
    bench = Bench(arguments.build.resolve())
    if not_clean := clean_tree(bench, mutants):
        print("\n".join(f"FAIL {line}" for line in not_clean))
        sys.exit(1)
    print("ok   the tests pass without a bug", flush=True)
    failed = 0
    lines = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for ok, line in pool.map(lambda m: judge(bench, m), mutants):
            failed += not ok
            lines.append(line)
            print(f"{'ok  ' if ok else 'FAIL'} {line}", flush=True)
    harmless = sum(m.get("harmless", False) for m in mutants)
    print(f"{len(mutants) - harmless} seeded bugs and {harmless} harmless changes, {failed} judged wrongly by the tests")
    if arguments.write and not failed and not arguments.only:
        write_page(arguments.write, lines)
    sys.exit(1 if failed or not mutants else 0)


if __name__ == "__main__":
    main()
