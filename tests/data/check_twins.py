#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Second opinion: runs every GGUF twin in llama.cpp's server and compares with the golden files.

    python check_twins.py path/to/llama-server [names...]

Per twin: the 16 greedy ids after the golden prompt, their log probabilities (largest difference
printed), and the tokenizer on a few strings against tokenizer.json.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from safetensors.numpy import load_file
from tokenizers import Tokenizer

from fixtures.families import FIXTURES

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S, CALL_TIMEOUT_S = 60, 60
LOGPROB_TOLERANCE = 0.02
STRINGS = [
    "Hello, the world is in there!",
    "  two  spaces\n\nand lines\t",
    "naïve café — 漢字 🙂",
    "if (x != 10) { return y[3]; }",
    "<|im_start|>user\nHi<|im_end|>\n<think>ok</think>",
]


def Call(port: int, path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as answer:
        return json.load(answer)


def FreePort() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def Start(server: str, model: Path, log, context: int = 64) -> tuple[subprocess.Popen, int]:
    port = FreePort()
    command = [server, "-m", model, "--host", "127.0.0.1", "--port", port, "-c", context, "-t", 1]
    command += ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-np", 1, "--no-warmup", "--no-webui"]
    process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if Call(port, "/health").get("status") == "ok":
                return process, port
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"{model}: the server did not start, see its log")


def Compare(fixture, port: int) -> list[str]:
    golden = load_file(HERE / fixture.name / "golden.safetensors")
    expected = golden["greedy_ids"].tolist()
    answer = Call(
        port,
        "/completion",
        dict(
            prompt=golden["input_ids"].tolist(),
            n_predict=len(expected),
            temperature=0,
            n_probs=1,
            cache_prompt=False,
            ignore_eos=False,
            return_tokens=True,
        ),
    )
    problems = []
    if answer["tokens"] != expected:
        problems.append(f"greedy {answer['tokens']} instead of {expected}")
    # The server lists no probabilities for tokens that end inside a UTF-8 character: align by id.
    worst, compared, at = 0.0, 0, 0
    for step in answer["completion_probabilities"]:
        while at < len(expected) and expected[at] != step["id"]:
            at += 1
        if at < len(expected):
            worst = max(worst, abs(step["logprob"] - float(golden["greedy_logprobs"][at])))
            compared, at = compared + 1, at + 1
    print(f"{fixture.name}: largest logprob difference {worst:.5f} over {compared} tokens")
    if compared == 0 or worst > LOGPROB_TOLERANCE:
        problems.append(f"logprob difference {worst:.4f}")
    tokenizer = Tokenizer.from_file(str(HERE / fixture.name / "tokenizer.json"))
    for text in STRINGS:
        body = dict(content=text, add_special=False, parse_special=True)
        got = Call(port, "/tokenize", body)["tokens"]
        want = tokenizer.encode(text, add_special_tokens=False).ids
        if got != want:
            problems.append(f"{text!r} tokenizes to {got} instead of {want}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--log", default="/dev/null", help="where llama-server's output goes")
    args = parser.parse_args()
    failed = False
    for fixture in FIXTURES:
        if not fixture.gguf or (args.names and fixture.name not in args.names):
            continue
        part = "" if fixture.gguf_parts == 1 else f"-00001-of-{fixture.gguf_parts:05d}"
        with open(args.log, "ab") as log:
            model = HERE / fixture.name / f"model{part}.gguf"
            process, port = Start(args.server, model, log)
            try:
                problems = Compare(fixture, port)
            finally:
                process.kill()
                process.wait()
        for problem in problems:
            print(f"  {fixture.name}: {problem}")
        failed |= bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
