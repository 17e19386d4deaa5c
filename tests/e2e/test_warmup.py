# SPDX-License-Identifier: Apache-2.0
"""--warmup-file: requests that are run before the server is ready."""

import json
import re
import subprocess
import time

from conftest import complete

PROMPT = "one two three four five six seven eight nine ten " * 12


def lines(*bodies):
    return "".join(json.dumps({"custom_id": f"w{number}", "method": "POST", "url": "/v1/completions", "body": {"model": "toy", **body}}) + "\n"
                   for number, body in enumerate(bodies))


def test_the_first_client_finds_the_prefix_and_a_bad_request_is_only_logged(start, tmp_path):
    path = tmp_path / "warm.jsonl"
    path.write_text(lines({"prompt": PROMPT, "max_tokens": 2}, {"prompt": PROMPT, "max_tokens": 2, "temperature": -1}))
    server = start("--warmup-file", str(path))
    log = server.log()
    assert re.search(r"warm-up: 2 of 2 requests in \d+ ms, 1 failed", log) and "warm-up request w1" in log, log
    assert log.index("warm-up: ") < log.index("ready: ")
    usage = complete(server, PROMPT + "eleven", max_tokens=2).usage
    assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2
    server.stop()


def test_the_server_is_not_ready_meanwhile_and_waits_no_longer_than_told(start, tmp_path):
    path = tmp_path / "warm.jsonl"
    path.write_text(lines({"prompt": "one two", "max_tokens": 1000, "ignore_eos": True}))
    # A token takes some 40 ms, so the request would take 40 s.
    server = start("--warmup-file", str(path), "--warmup-timeout", "2", "--device", "sim:H100@6/llama-3.1-8b", "--kv-cache-bytes", "0",
                   "--max-model-len", "2048")
    log = server.log()
    took = int(re.search(r"warm-up: 0 of 1 requests in (\d+) ms", log).group(1))
    assert 2000 <= took < 10000, log
    assert time.time() - server.port_file.stat().st_mtime > 1.9, "it listened, and was not ready"
    assert len(complete(server, "one two", max_tokens=3).choices) == 1
    server.stop()


def test_a_bad_file_is_told_with_its_line_before_the_model_is_loaded(inferd, toy, tmp_path):
    path = tmp_path / "warm.jsonl"
    path.write_text(lines({"prompt": "a", "max_tokens": 1}) + '{"custom_id": "x"\n')
    ended = subprocess.run([inferd, "--model", str(toy), "--port", "0", "--grpc-port", "none", "--warmup-file", str(path)],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "line 2" in ended.stderr, ended.stderr
