#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds the bugs of mutants.toml into the device kernels, one at a time, and checks that the tests notice each.

Needs a built test_kernels_cuda in BUILD. Per mutant one source is compiled anew and linked before the library that has the
right one. Prints one line each; exits 1 when a mutant survives (or a harmless change is noticed).
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


class Bench:
    """Compiles and links as the build did, but for one source."""

    def __init__(self, build):
        self.build = build
        entries = json.loads((build / "compile_commands.json").read_text())
        self.compile = {str(pathlib.Path(e["file"]).resolve().relative_to(ROOT)): e for e in entries
                        if pathlib.Path(e["file"]).resolve().is_relative_to(ROOT)}
        lines = subprocess.run(["ninja", "-t", "commands", "test_kernels_cuda"], cwd=build, check=True,
                               capture_output=True, text=True).stdout.splitlines()
        self.link = [line for line in lines if " -o tests/kernels_cuda/test_kernels_cuda" in line][-1]

    def make(self, mutant, folder):
        """The mutant's test binary in `folder`."""
        unit = mutant.get("unit", mutant["file"])
        text = (ROOT / mutant["file"]).read_text()
        if text.count(mutant["old"]) != mutant.get("count", 1):
            raise ValueError(f"'{mutant['name']}': the text to replace is {text.count(mutant['old'])} times in {mutant['file']}")
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
        link = self.link.split("&&")[1].strip()
        binary = folder / "test"
        link = re.sub(r" -o tests/kernels_cuda/test_kernels_cuda", f" -o {binary}", link)
        own = re.search(rf"\S*{re.escape(pathlib.Path(unit).name)}\.o", link)
        if own:  # a source of the test itself
            link = link.replace(own.group(0), str(out))
        else:
            link = re.sub(rf" -o {re.escape(str(binary))}", f" {out} -o {binary}", link)
        subprocess.run(link, shell=True, cwd=self.build, check=True, capture_output=True, text=True)
        return binary


def run(binary, tests, setting):
    """How the tests end: 'passed', or what was noticed."""
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in setting.split()))
    try:
        done = subprocess.run([binary, f"--gtest_filter={tests}", "--gtest_brief=1"], env=environment, capture_output=True,
                              text=True, timeout=RUN_SECONDS, check=False, errors="replace")
    except subprocess.TimeoutExpired:
        return f"hung for {RUN_SECONDS} s"
    if done.returncode == 0:
        return "passed"
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
            seen = run(binary, mutant["tests"], setting)
            if seen != "passed":
                ok = not mutant.get("harmless", False)
                return ok, f"{mutant['name']}: {seen} ({setting or 'defaults'})"
    ok = mutant.get("harmless", False)
    return ok, f"{mutant['name']}: {'harmless, as it should be' if ok else 'SURVIVED'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/dev")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only mutants whose name or file has this text")
    arguments = parser.parse_args()
    mutants = tomllib.loads((pathlib.Path(__file__).parent / "mutants.toml").read_text())["mutant"]
    mutants = [m for m in mutants if arguments.only in m["name"] or arguments.only in m["file"]]
    bench = Bench(arguments.build.resolve())
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for ok, line in pool.map(lambda m: judge(bench, m), mutants):
            failed += not ok
            print(f"{'ok  ' if ok else 'FAIL'} {line}", flush=True)
    print(f"{len(mutants)} seeded bugs, {failed} not noticed")
    sys.exit(1 if failed or not mutants else 0)


if __name__ == "__main__":
    main()
