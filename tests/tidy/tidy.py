#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a compiler does not make: include direction, banned words, licence lines, dead and large files, paths in docs.

Prints every finding as file:line: text and exits 1 if there is one.
"""
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = tomllib.loads((ROOT / "tests/tidy/rooms.toml").read_text())
ROOMS = TABLE["rooms"]
SUB_ROOMS = TABLE["sub_rooms"]
MAX_BLOB_BYTES = 500_000
MAX_LINES = {".cc": 600, ".h": 300, ".cu": 600, ".cuh": 300, ".py": 600, ".rs": 600}

BANNED = [
    (re.compile(r"\bthrow\b"), "errors are values: return an Error"),
    (re.compile(r"\bstd::cout\b|\bstd::cerr\b"), "use log:: or fmt::print in app"),
    (re.compile(r"\busing namespace\b"), "name what is used"),
    (re.compile(r"^(?!.*_ptr<.*\(new ).*\bnew [A-Z]\w*[({]"), "std::make_unique owns, or a smart pointer on the same line"),
    (re.compile(r"\b(usleep|sleep_for|sleep_until)\b"), "wait for an event with a deadline"),
    (re.compile(r"\balloca\b"), "bounded buffers only"),
    (re.compile(r"\bDISABLED_|GTEST_SKIP"), "no test is switched off"),
    (re.compile(r"TODO(?!\(#\d+\))"), "TODO needs an issue: TODO(#7)"),
    (re.compile(r"XXX|FIXME"), "mend it or file it"),
]
# Headers of a wire or an instruction set, and the only folders that may include them.
WIRE_ONLY = [
    (("src/rpc/", "src/api/grpc/"), ("grpcpp/",)),
    (("src/rpc/",), ("inferd/v1/worker.",)),
    (("src/api/grpc/",), ("inferd/v1/inference.", "inferd/v1/options.", "kserve/", "vllm/")),
    (("kernels/",), ("immintrin.h",)),
]


def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return [name for name in out.split("\0") if name and (ROOT / name).is_file()]


def room_of(name):
    parts = name.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "kernels" and len(parts) > 1:
        return "kernels"
    return None


def strip_comments(text):
    """Comments and string contents become blanks, so that words in them are not judged; lines stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def check_includes(name, text, report):
    room = room_of(name)
    if room is None:
        return
    if room not in ROOMS:
        report(name, 1, f"room '{room}' is not in tests/tidy/rooms.toml")
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match:
            continue
        path = match.group(1)
        target = path.split("/")[0]
        if target in ROOMS and target != room and target not in ROOMS[room]:
            report(name, number, f"room '{room}' may not include '{target}' (tests/tidy/rooms.toml)")
        if room in SUB_ROOMS and target == room:
            check_sub_room(name, number, path, SUB_ROOMS[room], report)
        for owners, prefixes in WIRE_ONLY:
            if path.startswith(prefixes) and not name.startswith(owners):
                report(name, number, f"only {' and '.join(owners)} may include {path}")


def check_sub_room(name, number, path, table, report):
    """Within a room that has sub-rooms, folders look downwards only: src/<room>/<sub>/x.cc includes <room>/<sub>/y.h."""
    own, other = name.split("/")[2], path.split("/")[1]
    for folder in (own, other):
        if folder not in table:
            report(name, number, f"'{folder}' is not a sub-room in tests/tidy/rooms.toml")
            return
    if other != own and other not in table[own]:
        report(name, number, f"sub-room '{own}' may not include '{other}' (tests/tidy/rooms.toml)")


def check_words(name, text, report):
    for number, line in enumerate(strip_comments(text).splitlines(), 1):
        for pattern, advice in BANNED:
            found = pattern.search(line)
            if found:
                report(name, number, f"'{found.group(0).strip()}': {advice}")


def check_file(name, report):
    path = ROOT / name
    size = path.stat().st_size
    if size > MAX_BLOB_BYTES and not name.endswith("Cargo.lock"):
        report(name, 1, f"{size} bytes; files stay under {MAX_BLOB_BYTES}")
    if path.suffix not in MAX_LINES:
        return
    text = path.read_text()
    lines = text.count("\n")
    if lines > MAX_LINES[path.suffix]:
        report(name, lines, f"{lines} lines; {path.suffix} files stop at {MAX_LINES[path.suffix]}")
    if "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
        report(name, 1, "no SPDX licence line at the head")
    if path.suffix in (".cc", ".h", ".cu", ".cuh"):
        check_includes(name, text, report)
        check_words(name, text, report)
        if path.suffix in (".h", ".cuh") and "#pragma once" not in text:
            report(name, 1, "header without #pragma once")


def check_dead_headers(names, report):
    """A header that nobody includes is dead; a source file of a room is always built (CMake globs)."""
    everything = "\n".join((ROOT / n).read_text() for n in names if n.endswith((".cc", ".h", ".inc", ".cu", ".cuh")))
    for name in names:
        if name.startswith("kernels/simt/include/"):  # named by CUDA, found by the include path
            continue
        if name.endswith((".h", ".cuh")) and (name.startswith("src/") or name.startswith("kernels/")):
            key = name.removeprefix("src/")
            if f'"{key}"' not in everything:
                report(name, 1, "no file includes this header")


def check_flags(names, report):
    """A flag that a message or the README recommends must exist."""
    table = "".join((ROOT / f"src/app/{file}.cc").read_text() for file in ("settings", "front_settings", "command_line", "worker_command"))
    known = set(re.findall(r'(--[a-z][a-z0-9-]+)"', table)) | {"--shm-size"}  # The last is the container engine's.
    for name in names:
        if not (name == "README.md" or (name.startswith("src/") and not name.startswith("src/app/") and name.endswith(".cc"))):
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            texts = [line] if name == "README.md" else re.findall(r'"(?:\\.|[^"\\])*"', line)
            for text in texts:
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text):
                    if flag not in known and flag.replace("--no-", "--", 1) not in known:
                        report(name, number, f"names {flag}, which is no flag of inferd")


def check_docs(names, report):
    known = set(names) | {str(p) for n in names for p in pathlib.PurePosixPath(n).parents}
    for name in names:
        if not name.endswith(".md"):
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            for path in re.findall(r"`((?:src|kernels|proto|configs|tests|docs|docker|cmake|tools|include)/[\w./-]+)`", line):
                if path.rstrip("/") not in known:
                    report(name, number, f"names {path}, which is not in the tree")
            if re.search(r"(?<![\w.])/(?:work|root|farm)/", line):
                report(name, number, "a path of some machine")


def main():
    names = tracked()
    findings = []

    def report(name, line, text):
        findings.append(f"{name}:{line}: {text}")

    for name in names:
        check_file(name, report)
    check_dead_headers(names, report)
    check_flags(names, report)
    check_docs(names, report)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(names)} files, {len(findings)} finding(s)")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
