# SPDX-License-Identifier: Apache-2.0
"""`inferd plan` and `inferd topo`: clusters, topologies, simulations, and the commands of the documents."""

import json
import pathlib
import re
import shlex
import subprocess

import pytest

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
ISLANDS = """	GPU0	GPU1	GPU2	GPU3	CPU Affinity	NUMA Affinity
GPU0	 X 	NV12	SYS	SYS	0-7	0
GPU1	NV12	 X 	SYS	SYS	0-7	0
GPU2	SYS	SYS	 X 	NV12	8-15	1
GPU3	SYS	SYS	NV12	 X 	8-15	1
"""


def run(inferd, *arguments, timeout=60, **more):
    return subprocess.run([inferd, *arguments], capture_output=True, text=True, timeout=timeout, **more)


def plan(inferd, *arguments):
    done = run(inferd, "plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_example_of_the_article(inferd):
    made = plan(inferd, "--model", "llama-2-70b", "--gpus", "32xA100-80G", "--nodes", "4x8", "--tp", "4", "--pp", "auto", "--ep=auto",
                "--rate", "10", "--input", "1000", "--output", "300", "--target-ttft", "2s", "--target-itl", "50ms", "--redundancy", "2")
    best = made["layouts"][0]
    assert (best["tp"], best["pp"], best["replicas"], best["reserve"]) == (4, 1, 6, 2)
    rank = best["ranks"][0]
    assert abs(rank["weights"]["total"] / 2**30 - 32.1) < 0.1
    assert rank["kv_bytes_per_token"] == 80 * 1024
    assert 45 < rank["headroom_percent"] < 50
    assert best["meets_targets"] and best["at_rate"]["ttft_ms"] < 2000 and best["at_rate"]["tpot_ms"] < 50
    assert 1 < best["cost_per_million_output_tokens"] < 100  # by the list price in the profile
    assert len(best["placement"]) == 8
    for replica in best["placement"]:
        assert len({place["node"] for place in replica}) == 1
    text = run(inferd, "plan", "llama-2-70b", "--gpus", "32xA100-80G", "--tp", "4").stdout
    assert "8 replica(s) of 4 rank(s)" in text and "headroom" in text


@pytest.mark.parametrize("dtype, kv_bytes", [("auto", 131072), ("fp8", 65536), ("fp8_e4m3", 65536), ("int8", 67584)])
def test_the_type_of_the_kv_cache_counts(inferd, dtype, kv_bytes):
    made = plan(inferd, "llama-3.1-8b", "--gpus", "1xH100", "--kv-cache-dtype", dtype)
    assert made["layouts"][0]["ranks"][0]["kv_bytes_per_token"] == kv_bytes


# One latent of 512 and one key of 64 values a layer, whole on every rank of a tp group.
@pytest.mark.parametrize("model, flags, kv_bytes", [
    ("deepseek-v2-lite", ["--gpus", "1xH100"], 27 * 576 * 2),
    ("deepseek-v3", ["--gpus", "8xH200", "--weight-bits", "8", "--tp", "8"], 61 * 576 * 2),
    ("deepseek-v3", ["--gpus", "8xH200", "--weight-bits", "8", "--tp", "8", "--kv-cache-dtype", "int8"], 61 * (576 + 4)),
])
def test_a_latent_cache_is_small(inferd, model, flags, kv_bytes):
    made = plan(inferd, model, *flags)
    assert made["layouts"][0]["ranks"][0]["kv_bytes_per_token"] == kv_bytes


# Serving takes FP8 pages for a checkpoint that asks for them; so does the plan, of a cluster and of this host.
@pytest.mark.parametrize("flags, kv_bytes", [([], 128), (["--kv-cache-dtype", "float16"], 256)])
def test_a_checkpoint_for_an_fp8_kv_cache_is_planned_with_one(inferd, flags, kv_bytes):
    folder = str(DATA / "quantised/fp8-kv")
    made = plan(inferd, folder, "--gpus", "1xH100", *flags)
    assert made["layouts"][0]["ranks"][0]["kv_bytes_per_token"] == kv_bytes
    assert f"{kv_bytes / 1024:.1f} KiB" in run(inferd, "plan", folder, *flags).stdout


def test_weights_are_counted_as_the_device_keeps_them(inferd):
    def mebibytes(device):
        done = run(inferd, "plan", str(DATA / "quantised/gptq-act-order"), "--device", device)
        assert done.returncode == 0, done.stderr
        return float(re.search(r"^ +0 +([\d.]+) MiB", done.stdout, re.M).group(1))
    assert (mebibytes("cpu"), mebibytes("cuda-emu")) == (0.4, 0.2)  # act-order: 16 bits on CPUs, 4 on GPUs; two tables of 0.07


def test_a_kv_cache_type_that_there_is_not_is_refused_with_those_there_are(inferd):
    done = run(inferd, "plan", "llama-3.1-8b", "--gpus", "1xH100", "--kv-cache-dtype", "fp8_e5m2")
    assert done.returncode == 1
    assert "fp8_e5m2" in done.stderr and "fp8_e4m3" in done.stderr


def test_what_does_not_fit_ends_with_2(inferd):
    done = run(inferd, "plan", "llama-70b", "--gpus", "1xA100-80G")
    assert done.returncode == 2
    assert "2 devices of this kind" in done.stderr and "--weight-bits 8" in done.stderr


@pytest.mark.parametrize("flags, says", [
    (["--gpus", "many"], "32xA100-80G"), (["--gpus", "8xH300"], "H200"), (["--gpus", "12xH100"], "--nodes"),
    (["--gpus", "8xH100", "--nodes", "3x2"], "6 devices"), (["--gpus", "8xH100", "--target-ttft", "soon"], "2s or 50ms"),
    (["--gpus", "8xH100", "--weight-bits", "3"], "16, 8 and 4"), (["--gpus", "8xH100", "--rate", "-1"], "--rate"),
    (["--gpus", "8xH100", "--topology", "/none"], "/none"), (["--simulate", "x"], "--gpus")])
def test_wrong_flags_end_with_1(inferd, flags, says):
    done = run(inferd, "plan", "llama-3.1-8b", *flags)
    assert done.returncode == 1 and says in done.stderr, done.stderr


def test_a_topology_keeps_groups_in_their_island(inferd, tmp_path):
    file = tmp_path / "topo.txt"
    file.write_text(ISLANDS)
    made = plan(inferd, "llama-3.1-8b", "--gpus", "4xA100-80G", "--nodes", "1x4", "--topology", str(file))
    assert made["cluster"]["domains"] == [2, 2]
    links = {layout["tp"]: layout["links"]["tp"] for layout in made["layouts"] if layout["pp"] == 1}
    assert links[2] == "domain" and links[4] == "host"
    shown = json.loads(run(inferd, "topo", "--topology", str(file), "--json").stdout)
    assert shown["domains"] == [[0, 1], [2, 3]] and shown["links"][0][1] == "NV12"
    piped = run(inferd, "topo", "--topology", "-", input=ISLANDS.replace("NV12", "WARP"))
    assert piped.returncode == 1 and "'WARP' is not a link" in piped.stderr


def test_this_host(inferd):
    shown = json.loads(run(inferd, "topo", "--json").stdout)
    assert shown["devices"] and sum(map(len, shown["domains"])) == len([d for d in shown["devices"] if d["kind"] == "compute"])
    assert "domain 0" in run(inferd, "topo").stdout


def test_an_own_profile(inferd, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nkind: cpu\nmemory_mib: 65536\nbandwidth_gb_s: 200\ntflops_16bit: 4\n"
                    "efficiency: {weights: 0.9}\nsources: [measured]\n")
    made = plan(inferd, "llama-3.1-8b", "--gpus", "1xmine", "--devices", str(file))
    assert made["cluster"]["device"] == "mine" and made["layouts"][0]["idle"]["tpot_ms"] > 80
    file.write_text("name: mine\ncolour: red\n")
    wrong = run(inferd, "plan", "llama-3.1-8b", "--gpus", "1xmine", "--devices", str(file))
    assert wrong.returncode == 1 and "mine" in wrong.stderr


def test_a_simulation(inferd, tmp_path):
    trace = tmp_path / "trace.jsonl"
    made = run(inferd, "plan", "--generate-trace", str(trace), "--requests", "3000", "--rate", "20", "--input", "600", "--output", "100")
    assert made.returncode == 0, made.stderr
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(lines) == 3000 and 120 < lines[-1]["arrival_s"] < 180
    flags = ["llama-3.1-8b", "--gpus", "4xH100", "--nodes", "1x4", "--simulate", str(trace), "--target-ttft", "1s", "--target-itl", "30ms"]
    compared = plan(inferd, *flags, "--layouts", "3")["layouts"]
    assert len(compared) == 3 and all(one["result"]["completed"] == 3000 for one in compared)
    knee = plan(inferd, *flags, "--tp", "1", "--pp", "1", "--find-knee")["layouts"][0]["knee"]
    assert knee["requests_per_s"] > 20 and knee["at"]["attained"] >= 0.99
    trace.write_text('{"arrival_s": 1, "input_tokens": 0, "output_tokens": 3}\n')
    wrong = run(inferd, "plan", *flags)
    assert wrong.returncode == 1 and "line 1: input_tokens is 0" in wrong.stderr


@pytest.mark.parametrize("page", ["operations.md", "planning.md"])
def test_the_commands_of_the_documents(inferd, tmp_path, page):
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("inferd ")]
    assert len(commands) > 4
    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096}))
    for command in commands:
        words, _, comment = command.partition("#")
        # Long traces are for people.
        words = words.replace("--requests 100000", "--requests 2000")
        done = subprocess.run([inferd, *shlex.split(words)[1:]], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == (2 if "exit 2" in comment else 0), f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout or done.returncode


def bench_profile(inferd, file, *words):
    done = run(inferd, "bench", *words, "--write-profile", str(file), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "inferd plan --devices" in done.stderr
    return file


def ttft_and_tpot(made):
    alone = made["layouts"][0]["idle"]
    return alone["ttft_ms"], alone["tpot_ms"]


def test_a_measured_profile_predicts_as_the_device_that_was_measured(inferd, toy, tmp_path):
    # Workers that take the time of an L40S ten times slower, so that this machine's own overhead is small beside it.
    file = bench_profile(inferd, tmp_path / "measured.yaml", str(toy), "--device", "sim:L40S@10/llama-3.1-8b", "--prompt-tokens", "256,512",
                         "--streams", "1,8", "--context", "128,512", "--output-tokens", "4", "--rounds", "3", "--threads", "1",
                         "--max-num-batched-tokens", "512")
    flags = ("--model", "llama-3.1-8b", "--input", "512", "--output", "64", "--max-num-batched-tokens", "512")
    found = ttft_and_tpot(plan(inferd, *flags, "--devices", str(file), "--gpus", "1xmeasured"))
    truth = ttft_and_tpot(plan(inferd, *flags, "--gpus", "1xL40S"))
    for mine, real in zip(found, truth):
        assert abs(mine / (10 * real) - 1) < 0.1, (found, truth)


def test_a_profile_of_this_machine_is_taken_and_more_ranks_are_refused(inferd, toy, tmp_path):
    file = bench_profile(inferd, tmp_path / "here.yaml", str(toy), "--prompt-tokens", "64", "--streams", "1,4", "--context", "16",
                         "--output-tokens", "8", "--rounds", "2", "--threads", "1")
    assert "kind: cpu" in file.read_text()
    assert plan(inferd, "--model", str(toy), "--devices", str(file), "--gpus", "1xhere", "--input", "64", "--output", "8")["layouts"]
    refused = run(inferd, "bench", str(toy), "--tp", "2", "--write-profile", str(tmp_path / "two.yaml"))
    assert refused.returncode == 1 and "--write-profile" in refused.stderr
    assert not (tmp_path / "two.yaml").exists()
    nowhere = run(inferd, "bench", str(toy), "--write-profile", str(tmp_path / "none" / "x.yaml"))
    assert nowhere.returncode == 1 and "cannot be written to" in nowhere.stderr
