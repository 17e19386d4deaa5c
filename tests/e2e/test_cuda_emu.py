# SPDX-License-Identifier: Apache-2.0
"""The emulated CUDA device behind the real front end, and a host without a CUDA device."""

import array
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess

import pytest
import toy_model
from conftest import Server

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
# Logits of the two devices differ by less than this, as served (F16 KV pages): closer calls may fall either way.
UNDECIDED = 2e-3
PROMPTS = [[7, 19, 101, 33, 250, 12, 64, 9], [200, 3, 77], list(range(5, 45, 2))]


def answers(inferd, model, folder, *flags):
    """Greedy tokens of all prompts at once, each with its logprob and its lead over the second best. `model`: a folder, or a
    family's name."""
    folder.mkdir()
    server = Server(inferd, DATA / model, folder, *flags)
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


def compare(expected, got, undecided=UNDECIDED, drift=2e-2, least=16):
    compared = 0
    for row, other_row in zip(expected, got, strict=True):
        for (token, logprob, lead), (other_token, other_logprob, _) in zip(row, other_row, strict=True):
            if lead < undecided:
                break  # what follows depends on a call that the one side itself hardly makes
            assert other_token == token
            assert other_logprob == pytest.approx(logprob, abs=drift)
            compared += 1
    assert compared >= least, "of 24 tokens"


@pytest.fixture(scope="module")
def of_the_cpu(inferd, tmp_path_factory):
    """of_the_cpu(model, *flags): the CPU's answers, asked for once."""
    known = {}

    def ask(model, *flags):
        if (model, *flags) not in known:  # bf16 inputs would be other sums
            folder = tmp_path_factory.mktemp("cpu") / "server"
            known[model, *flags] = answers(inferd, model, folder, "--dtype", "float32", *flags)
        return known[model, *flags]

    return ask


@pytest.mark.parametrize("family, flags", [
    ("llama", ["--tp", "2"]),
    ("llama", ["--pp", "2"]),
    ("llama", ["--tp", "2", "--distributed-backend", "host"]),
    ("mixtral", ["--tp", "2"]),
    ("mixtral", ["--pp", "2"]),
    ("mixtral", ["--ep", "2"]),
    ("qwen3-moe", ["--tp", "2"]),
    ("qwen3-moe", ["--pp", "2"]),
    ("qwen3-moe", ["--ep", "2"]),
    ("gemma3", ["--tp", "2"]),
    ("gemma3", ["--pp", "2"]),
    ("deepseek-v2", ["--pp", "2"]),
    ("deepseek-v3", ["--tp", "2"]),
    ("deepseek-v3", ["--ep", "2"]),
    ("quantised/gptq-act-order", ["--tp", "2"]),
])
def test_gives_the_tokens_of_the_cpu(inferd, of_the_cpu, tmp_path, family, flags):
    compare(of_the_cpu(family), answers(inferd, family, tmp_path / "emulated", "--device", "cuda-emu", *flags))


@pytest.mark.parametrize("family, flags", [
    ("llama", []), ("mixtral", []), ("qwen3-moe", []), ("gemma3", []), ("deepseek-v3", []), ("llama", ["--tp", "2"]), ("mixtral", ["--tp", "2"])])
def test_graphs_change_no_token(inferd, tmp_path, family, flags):
    device = ["--device", "cuda-emu", *flags]
    eager = answers(inferd, family, tmp_path / "eager", *device, "--enforce-eager")
    replayed = answers(inferd, family, tmp_path / "graphs", *device, "--cuda-graph-sizes", "1,2,4")
    assert replayed == eager
    assert "recorded a CUDA graph for steps of 4 rows" in (tmp_path / "graphs" / "log").read_text()
    assert "recorded a CUDA graph" not in (tmp_path / "eager" / "log").read_text()


def test_devices_that_do_not_reach_each_other_use_nccl(inferd, tmp_path, monkeypatch):
    flags = ["--device", "cuda-emu", "--tp", "2", "--cuda-graph-sizes", "1,2,4"]
    through_memory = answers(inferd, "llama", tmp_path / "memory", *flags)
    monkeypatch.setenv("EMU_IPC", "0")
    by_nccl = answers(inferd, "llama", tmp_path / "nccl", *flags)
    assert by_nccl == through_memory
    said = "uses NCCL for short messages too: rank 0 on "
    assert (tmp_path / "nccl" / "log").read_text().count(said) == 1
    assert said not in (tmp_path / "memory" / "log").read_text()


# Ranks that exchange through the host within a layer go without graphs.
@pytest.mark.parametrize("family, flags, graphs", [
    ("llama", ["--pp", "2"], True), ("llama", ["--tp", "2"], True), ("mixtral", ["--ep", "2"], False)])
def test_a_killed_worker_costs_no_token(inferd, tmp_path, family, flags, graphs):
    server = Server(inferd, DATA / family, tmp_path, "--device", "cuda-emu", "--cuda-graph-sizes", "1,2", *flags)
    try:
        def stream():
            return server.client.completions.create(
                model="toy", prompt=PROMPTS[0], max_tokens=48, temperature=0, stream=True, logprobs=0,
                extra_body={"ignore_eos": True, "return_tokens_as_token_ids": True})

        def tokens(chunk):
            return [token for choice in chunk.choices for token in (choice.logprobs.tokens if choice.logprobs else [])]

        undisturbed = [token for chunk in stream() for token in tokens(chunk)]
        assert len(undisturbed) == 48
        recorded = server.log().count("recorded a CUDA graph")
        assert (recorded > 0) == graphs
        for victim in (1, 0):
            restarts = server.metric("inferd_worker_restarts_total")
            got = []
            for chunk in stream():
                if len(got) < 4 <= len(got) + len(tokens(chunk)):
                    os.kill(server.workers()[victim], signal.SIGKILL)
                got += tokens(chunk)
            assert got == undisturbed
            assert server.metric("inferd_worker_restarts_total") > restarts
        assert (server.log().count("recorded a CUDA graph") > recorded) == graphs  # by the workers that came
    finally:
        server.stop()


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory):
    """A random Llama with heads of 64 values, which the tile kernel of attention takes; the fixtures' are smaller."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DATA / "llama" / name, folder)
    config = json.loads((DATA / "llama" / "config.json").read_text())
    hidden, inner, vocabulary, heads, kv_heads, dim = 64, 96, config["vocab_size"], 4, 2, 64
    config |= {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads,
               "num_key_value_heads": kv_heads, "head_dim": dim}
    (folder / "config.json").write_text(json.dumps(config))
    numbers = random.Random(64)

    def matrix(rows, columns, scale=1.0):
        values = [numbers.gauss(0, scale / columns**0.5) for _ in range(rows * columns)]
        return [rows, columns], array.array("f", values)

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden, 8), "lm_head.weight": matrix(vocabulary, hidden, 4),
               "model.norm.weight": toy_model.vector(hidden, 1.0)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": toy_model.vector(hidden, 1.0),
            prefix + "post_attention_layernorm.weight": toy_model.vector(hidden, 1.0),
            prefix + "self_attn.q_proj.weight": matrix(heads * dim, hidden, 1.5),
            prefix + "self_attn.k_proj.weight": matrix(kv_heads * dim, hidden, 1.5),
            prefix + "self_attn.v_proj.weight": matrix(kv_heads * dim, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, heads * dim, 2),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    toy_model.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def test_prefill_runs_the_tile_kernel(inferd, of_the_cpu, wide_heads, tmp_path):
    pages = ["--kv-cache-dtype", "float16"]  # F32 weights would have F32 pages, for which there are no tiles
    device = ["--device", "cuda-emu", *pages]
    tiles = answers(inferd, wide_heads, tmp_path / "tiles", *device)
    compare(of_the_cpu(wide_heads, *pages), tiles)
    # --batch-invariant keeps the tile kernel out and changes nothing else: so other bits are its bits.
    rows = answers(inferd, wide_heads, tmp_path / "rows", *device, "--batch-invariant")
    compare(rows, tiles, drift=1e-4)
    assert [row[0] for row in rows] != [row[0] for row in tiles]


# An 8-bit cache moves logits by shares of a percent; both devices store the same values.
@pytest.mark.parametrize("dtype, drift", [("int8", 1e-1), ("fp8", 4e-1)])
def test_8_bit_kv_caches(inferd, of_the_cpu, wide_heads, tmp_path, dtype, drift):
    cpu = of_the_cpu(wide_heads, "--kv-cache-dtype", dtype)
    halves = of_the_cpu(wide_heads, "--kv-cache-dtype", "float16")
    compare(halves, cpu, undecided=drift, drift=drift, least=8)
    assert cpu != halves, "nothing was rounded"
    compare(cpu, answers(inferd, wide_heads, tmp_path / "emulated", "--device", "cuda-emu", "--kv-cache-dtype", dtype))


def test_metrics_name_the_type_of_the_kv_cache(start):
    server = start("--kv-cache-dtype", "fp8")
    assert 'cache_dtype="fp8_e4m3"} 1' in server.get("/metrics")
    server.stop()


# quantised/fp8-kv has K and V beyond what E4M3 holds, and scales: with them it gives what the same model with 16 bits gives, nearly.
def test_a_checkpoint_for_fp8_pages_gets_them_with_its_scales(inferd, of_the_cpu, tmp_path):
    halves = of_the_cpu("quantised/fp8-kv", "--kv-cache-dtype", "float16")
    cpu = of_the_cpu("quantised/fp8-kv")
    compare(halves, cpu, undecided=4e-1, drift=4e-1, least=8)
    assert cpu != halves, "auto kept 16 bits"
    compare(cpu, answers(inferd, "quantised/fp8-kv", tmp_path / "emulated", "--device", "cuda-emu"))


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
