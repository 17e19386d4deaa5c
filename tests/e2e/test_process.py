# SPDX-License-Identifier: Apache-2.0
"""The binary as a process: command line, draining, ranks."""

import http.client
import json
import signal
import subprocess
import threading
import time

import pytest
from conftest import chat, complete


def run(inferd, *arguments, timeout=20):
    return subprocess.run([inferd, *arguments], capture_output=True, text=True, timeout=timeout)


def test_command_line(inferd, toy, tmp_path):
    assert run(inferd, "--version").stdout.startswith("inferd ")
    assert "--tp" in run(inferd, "--help").stdout
    wrong = run(inferd, "--model", str(toy), "--max-num-seq", "5")
    assert wrong.returncode == 1
    assert "did you mean --max-num-seqs" in wrong.stderr
    assert run(inferd, "--tp", "many", str(toy)).returncode == 1
    printed = run(inferd, str(toy), "--tensor-parallel-size", "2", "--print-config").stdout
    assert "  tp: 2\n" in printed
    file = tmp_path / "inferd.yaml"
    file.write_text(printed)
    assert run(inferd, "--config", str(file), "--print-config").stdout == printed
    assert "  tp: 3\n" in run(inferd, "--config", str(file), "--tp=3", "--print-config").stdout


def test_plan_and_tokenize(inferd, toy):
    plan = run(inferd, "plan", str(toy), "--tp", "2")
    assert plan.returncode == 0, plan.stderr
    assert "rank   1" in plan.stdout
    tokens = run(inferd, "tokenize", str(toy), "ab")
    assert tokens.stdout.splitlines()[-1] == "3 tokens"


def test_bench(inferd, toy):
    ran = run(inferd, "bench", str(toy), "--prompt-tokens", "40", "--streams", "1,3", "--context", "8", "--output-tokens", "5",
              "--rounds", "2", "--tp", "2", "--json", timeout=60)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(x["phase"], x["round"], x["streams"], x["context"]) for x in lines] == [
        ("prefill", 0, 1, 40), ("decode", 0, 1, 8), ("decode", 0, 3, 8), ("prefill", 1, 1, 40), ("decode", 1, 1, 8), ("decode", 1, 3, 8)]
    assert all(x["tokens_per_s"] > 0 for x in lines)
    # The stream that began last makes the five tokens of the window, and what the engine tells together with the fifth; the others may
    # have ended on so fast a model.
    tokens = {(x["round"], x["streams"]): round(x["tokens_per_s"] * x["seconds"]) for x in lines if x["phase"] == "decode"}
    assert all(5 <= tokens[number, 1] <= 5 + 2 for number in (0, 1))
    assert all(5 <= tokens[number, 3] <= 3 * (5 + 6) for number in (0, 1))
    too_long = run(inferd, "bench", str(toy), "--context", "1000000")
    assert too_long.returncode == 1
    assert "--max-model-len" in too_long.stderr
    assert run(inferd, "bench", str(toy), "--streams", "0").returncode == 1


def test_a_bench_that_is_stopped_ends_in_order(inferd, toy):
    """While generations run, which speak to it until the leader has stopped."""
    process = subprocess.Popen([inferd, "bench", str(toy), "--prompt-tokens", "8", "--streams", "8", "--context", "8", "--output-tokens", "100",
                                "--rounds", "100", "--threads", "1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    late = threading.Timer(90, process.kill)  # bounds the line's wait
    with process:  # waits without a bound when it ends
        late.start()
        try:
            line = process.stdout.readline()
            assert line, "no line, or none within 90 s"
            assert json.loads(line)["phase"] == "prefill"  # a decode has begun
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            late.cancel()
            process.kill()
    assert process.returncode == 1, said
    assert "stopped" in said


def test_a_missing_model_is_a_sentence(inferd, tmp_path):
    missing = run(inferd, str(tmp_path / "none"), "--port", "0")
    assert missing.returncode == 1
    assert "none" in missing.stderr


@pytest.mark.parametrize("flags", [("--tp", "2"), ("--pp", "2"), ("--dp", "2")])
def test_ranks_give_the_same_answers(start, flags):
    server = start(*flags, "--threads", "2")
    assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
    assert complete(server, "[[count]]", max_tokens=7).choices[0].text == " one two three four five one two"
    server.stop()


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_drain(start, stop_signal):
    server = start("--max-num-seqs", "4", "--shutdown-timeout", "60")
    texts = {}

    def ask(number):
        stream = chat(server, "count", max_tokens=200, stream=True)
        texts[number] = "".join(c.choices[0].delta.content or "" for c in stream)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with server.paused_workers():
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while server.metric("inferd_num_requests_running") + server.metric("inferd_num_requests_waiting") < 12:
            assert time.monotonic() < deadline
        kept.request("GET", "/readyz")
        assert kept.getresponse().read() is not None
        server.process.send_signal(stop_signal)
    while server.process.poll() is None:
        try:
            kept.request("GET", "/readyz")
            reply = kept.getresponse()
            reply.read()
        except (ConnectionError, http.client.HTTPException):
            break
        if reply.status == 503:
            break
    for thread in threads:
        thread.join(60)
    assert len(texts) == 12
    assert all(len(text.split()) == 200 for text in texts.values())
    assert server.process.wait(60) == 0


def test_drain_delay_serves_on_while_unready(start):
    server = start("--drain-delay", "3")
    server.terminate()
    deadline = time.monotonic() + 3
    while server.status("/readyz") != 503:
        assert time.monotonic() < deadline
    assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
    assert server.process.wait(20) == 0


def test_a_second_signal_ends_at_once(start):
    server = start()
    stream = chat(server, "count", max_tokens=4000, stream=True)
    next(iter(stream))
    with server.paused_workers():
        server.terminate()
        deadline = time.monotonic() + 10
        while server.status("/readyz") != 503:  # the first one has been seen
            assert time.monotonic() < deadline
        server.terminate()
        begun = time.monotonic()
        assert server.process.wait(20) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 10
