# SPDX-License-Identifier: Apache-2.0
"""The emulated CUDA device behind the real front end, and a host without a CUDA device."""

import os
import pathlib
import subprocess

import pytest
from conftest import Server

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
# Logits of the two devices differ by less than this, as served (F16 KV pages): closer calls may fall either way.
UNDECIDED = 2e-3
PROMPTS = [[7, 19, 101, 33, 250, 12, 64, 9], [200, 3, 77], list(range(5, 45, 2))]


def answers(inferd, family, folder, *flags):
    """Greedy tokens of all prompts at once, each with its logprob and its lead over the second best."""
    folder.mkdir()
    server = Server(inferd, DATA / family, folder, *flags)
    try:
        reply = server.client.completions.create(
            model="toy", prompt=PROMPTS, max_tokens=8, temperature=0, logprobs=2,
            extra_body={"ignore_eos": True, "return_tokens_as_token_ids": True})
        rows = []
        for choice in sorted(reply.choices, key=lambda choice: choice.index):
            tops = [sorted(top.values(), reverse=True) for top in choice.logprobs.top_logprobs]
            leads = [top[0] - top[1] for top in tops]
            rows.append(list(zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, leads)))
        return rows
    finally:
        server.stop()


@pytest.mark.parametrize("family, flags", [
    ("llama", ["--tp", "2"]),
    ("llama", ["--pp", "2"]),
    ("llama", ["--tp", "2", "--distributed-backend", "host"]),
    ("mixtral", ["--ep", "2"]),
    ("qwen3-moe", ["--tp", "2"]),
    ("gemma3", ["--tp", "2"]),
    ("quantised/gptq-act-order", ["--tp", "2"]),
])
def test_gives_the_tokens_of_the_cpu(inferd, tmp_path, family, flags):
    cpu = answers(inferd, family, tmp_path / "cpu", "--dtype", "float32")  # bf16 inputs would be other sums
    emulated = answers(inferd, family, tmp_path / "emulated", "--device", "cuda-emu", *flags)
    compared = 0
    for row, other_row in zip(cpu, emulated):
        for (token, logprob, lead), (other_token, other_logprob, _) in zip(row, other_row):
            if lead < UNDECIDED:
                break  # what follows depends on a call that the CPU itself hardly makes
            assert other_token == token
            assert other_logprob == pytest.approx(logprob, abs=2e-2)
            compared += 1
    assert compared >= 16, "of 24 tokens"


@pytest.mark.parametrize("family", ["llama", "qwen3-moe", "gemma3"])
def test_graphs_change_no_token(inferd, tmp_path, family):
    device = ["--device", "cuda-emu"]
    eager = answers(inferd, family, tmp_path / "eager", *device, "--enforce-eager")
    replayed = answers(inferd, family, tmp_path / "graphs", *device, "--cuda-graph-sizes", "1,2,4")
    assert replayed == eager
    assert "recorded a CUDA graph for steps of 4 rows" in (tmp_path / "graphs" / "log").read_text()
    assert "recorded a CUDA graph" not in (tmp_path / "eager" / "log").read_text()


def test_a_host_without_a_device_says_so_in_one_line(inferd):
    ran = subprocess.run([inferd, str(DATA / "llama"), "--device", "cuda"], capture_output=True, text=True, timeout=20,
                         env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert ran.returncode == 3
    lines = [line for line in ran.stderr.splitlines() if line.startswith("inferd: ")]
    assert len(lines) == 1 and "no CUDA device" in lines[0] and "--device cpu" in lines[0]


@pytest.mark.parametrize("device, flags, words", [
    ("cuda:0,0", [], "names 0 twice"),
    ("cuda:MIG-00aa", ["--tp", "2"], "MIG slice"),
    ("cuda-emu:1", ["--tp", "2"], "emulates 1 devices"),
    ("cpu", ["--tp", "2", "--distributed-backend", "nccl"], "needs --device cuda"),
])
def test_devices_that_cannot_work_are_refused(inferd, tmp_path, device, flags, words):
    ran = subprocess.run([inferd, "plan" if "MIG" in device or "0,0" in device else "serve", str(DATA / "llama"), "--device",
                          device, "--port", "0", *flags], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert words in ran.stderr


def test_doctor(inferd):
    ran = subprocess.run([inferd, "doctor"], capture_output=True, text=True, timeout=20)
    assert ran.returncode in (0, 1)
    assert "/dev/shm" in ran.stdout and "CPUs" in ran.stdout
    marks = {line.split()[0] for line in ran.stdout.splitlines()}
    assert marks <= {"ok", "note", "WRONG", "->"}
    assert ("WRONG" in marks) == (ran.returncode == 1)
