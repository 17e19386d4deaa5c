# SPDX-License-Identifier: Apache-2.0
"""The figures that docs/operations.md works out are those that `inferd plan` prints, to the digits that are shown; a simulation of
a million requests and a fleet of 64 replicas with 10,000 streams keep their bounds."""

import json
import re
import resource
import subprocess
import sys
import time

import pytest
import yaml

import harness

TEXT = re.sub(r"\s+", " ", (harness.ROOT / "docs/operations.md").read_text())
MIB, GIB = 1 << 20, 1 << 30
CLUSTER = ("llama-2-70b", "--gpus", "32xA100-80G", "--nodes", "4x8", "--pp", "1")
SHAPES = {  # what a "3B" of the table is; hidden, inner, layers, heads, KV heads, vocabulary
    "3B": (3072, 8192, 28, 24, 8, 128256), "7B": (4096, 14336, 32, 32, 8, 32768), "13B": (5120, 13824, 40, 40, 40, 32000),
    "32B": (5120, 27648, 64, 40, 8, 152064),
}


def described(binary):
    """The model and the cluster of the example as `inferd plan` sees them."""
    done = subprocess.run([binary, "plan", *CLUSTER, "--tp", "4", "--json"], capture_output=True, text=True, timeout=60, check=True)
    whole = json.loads(done.stdout)
    return whole["model"], whole["cluster"]


def plan(binary, *arguments, status=0):
    # The files of this checkout, so that a price or size that was changed is seen without a build.
    device = re.search(r"x([A-Z]\w*(?:-\d+G)?)", arguments[arguments.index("--gpus") + 1])[1].lower()
    done = subprocess.run([binary, "plan", *arguments, "--json", "--devices", harness.ROOT / f"configs/devices/{device}.yaml"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)["layouts"][0] if status == 0 else done.stderr


def profile(name):
    return yaml.safe_load((harness.ROOT / f"configs/devices/{name}.yaml").read_text())


def shown(pattern):
    """The numbers in the one place of the page that the pattern matches."""
    found = re.findall(pattern, TEXT)
    assert len(found) == 1, f"{pattern}: {len(found)} places"
    return found[0] if isinstance(found[0], tuple) else (found[0],)


def agree(text, value):
    """A number as it is written, and what it stands for: equal to the last digit shown."""
    decimals = len(text.partition(".")[2])
    assert abs(float(text) - value) <= 0.5 * 10 ** -decimals * 1.0001, f"the page says {text}, the plan {value}"


def model(folder, shape):
    hidden, inner, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    path = folder / f"{shape}.json"
    path.write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary, "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16", "tie_word_embeddings": shape == "3B"}))
    return path


def test_capacity(binary):
    model_is, cluster_is = described(binary)
    best = plan(binary, *CLUSTER, "--tp", "4", "--input", "1000", "--output", "300")
    rank = best["ranks"][0]
    billions, gib, gb, card = shown(r"\*\*Weights\*\*: ([\d.]+) x 10\^9 parameters x 2 bytes = ([\d.]+) GiB \(([\d.]+) GB\), ([\d.]+) GiB on each of four cards")
    agree(billions, model_is["parameters"] / 1e9)
    agree(gib, 2 * model_is["parameters"] / GIB)
    agree(gb, 2 * model_is["parameters"] / 1e9)
    agree(card, rank["weights"]["total"] / GIB)
    layers, heads, size, token, per_card, tokens, request = shown(
        r"\*\*KV\*\*: 2 x (\d+) layers x (\d+) KV heads x (\d+) x 2 bytes = (\d+) KiB a token, (\d+) KiB on each card. A request of (\d+) tokens takes ([\d.]+) GiB")
    assert 2 * int(layers) * int(heads) * int(size) * 2 == model_is["kv_bytes_per_token"]
    agree(token, model_is["kv_bytes_per_token"] / 1024)
    agree(per_card, rank["kv_bytes_per_token"] / 1024)
    agree(request, int(tokens) * model_is["kv_bytes_per_token"] / GIB)
    memory, use, rest, headroom, thousands, sequences, length = shown(
        r"of (\d+) GiB (\d+) % may be used; after weights, activations and buffers ([\d.]+) GiB a card remain, (\d+) % of it: (\d+) thousand "
        r"tokens, (\d+) sequences of (\d+) a replica")
    agree(memory, profile("a100-80g")["memory_mib"] * MIB / GIB)
    agree(use, 100 * cluster_is["utilization"])
    agree(rest, rank["kv_bytes"] / GIB)
    agree(headroom, rank["headroom_percent"])
    agree(thousands, best["kv_tokens_per_replica"] / 1e3)
    assert int(sequences) == best["kv_tokens_per_replica"] // int(length)
    two, = shown(r"TP=2 leaves about (\d+) %")
    agree(two, plan(binary, *CLUSTER, "--tp", "2")["ranks"][0]["headroom_percent"])
    devices, ranks, most, left = shown(r"\*\*Replicas\*\*: (\d+) / (\d+) = (\d+) at most. .*? leave (\d+)")
    assert int(devices) // int(ranks) == int(most) == best["replicas"]
    assert plan(binary, *CLUSTER, "--tp", "4", "--redundancy", "2")["replicas"] == int(left)


def test_rate_cost_and_drain(binary):
    best = plan(binary, *CLUSTER, "--tp", "4", "--redundancy", "2", "--rate", "10", "--input", "1000", "--output", "300", "--target-ttft", "2s",
                "--target-itl", "50ms")
    rate, most, cost, price = shown(r"carry (\d+) requests/s within the targets and ([\d.]+) at most, at \$([\d.]+) a million output tokens "
                                    r"\(all 32 cards paid at \$([\d.]+) an hour")
    assert best["meets_targets"] and float(rate) == 10
    agree(most, best["max_requests_per_s"])
    agree(cost, best["cost_per_million_output_tokens"])
    agree(price, profile("a100-80g")["price_per_hour"])
    agree(cost, 32 * float(price) / 3600 / best["output_tokens_per_s"] * 1e6)
    # The drain formula, with the numbers of the example.
    tokens, per_token, seconds, pre_stop, timeout, grace = shown(
        r"(\d+) output tokens at (\d+) ms are (\d+) s: with a preStop of (\d+) s, `--shutdown-timeout (\d+)` and a grace period of (\d+) s fit")
    agree(per_token, best["at_rate"]["tpot_ms"])
    agree(seconds, int(tokens) * int(per_token) / 1e3)
    assert int(timeout) >= best["at_rate"]["ttft_ms"] / 1e3 + int(tokens) * best["at_rate"]["tpot_ms"] / 1e3
    assert int(grace) >= int(pre_stop) + int(timeout) + 10


def test_cold_start(binary):
    rank = plan(binary, *CLUSTER, "--tp", "4")["ranks"][0]
    gib, rate, seconds = shown(r"([\d.]+) GiB at (\d+) GB/s: (\d+) s; from page cache")
    agree(gib, 2 * described(binary)[0]["parameters"] / GIB)
    agree(seconds, float(gib) * GIB / (float(rate) * 1e9))
    card, link, load = shown(r"\| ([\d.]+) GiB at (\d+) GB/s: ([\d.]+) s \|")
    agree(card, rank["weights"]["total"] / GIB)
    agree(link, profile("a100-80g")["load_gb_s"])
    agree(load, rank["weights"]["total"] / (float(link) * 1e9))


MIG = re.findall(r"\| (A100-80G|H100) (\dg\.\d+gb) \| ([\d.]+) GiB \| (\d)/(\d), (\d)/(\d) \| (\d) \| ([^|]+?) \|", TEXT)


def test_the_mig_table_has_rows():
    assert len(MIG) == TEXT.count("gb | ") >= 5


@pytest.mark.parametrize("row", MIG, ids=[f"{row[0]} {row[1]}" for row in MIG])
def test_mig(binary, tmp_path, row):
    """Memory and shares are the profile's; what is said to fit does, tightly where it says so, and the next larger does not."""
    device, name, memory, a, b, c, d, count, fits = row
    part = next(each for each in profile(device.lower())["mig"] if each["name"] == name)
    agree(memory, part["memory_mib"] / 1024)
    agree(f"{int(a) / int(b):.4f}", part["compute_share"])
    agree(f"{int(c) / int(d):.4f}", part["bandwidth_share"])
    assert int(count) == part["per_device"]
    cluster = ("--gpus", f"{count}x{device}:{name}", "--nodes", f"1x{count}")
    claims = re.findall(r"(\d+B)(?: in (\d+) bits)?(, tight)?", fits)
    assert claims, fits
    for shape, bits, tight in claims:
        layout = plan(binary, model(tmp_path, shape), *cluster, "--weight-bits", bits or "16")
        assert layout["tp"] == layout["pp"] == 1 and layout["replicas"] == int(count)
        assert (layout["ranks"][0]["headroom_percent"] < 20) == bool(tight), f"{shape}: {layout['ranks'][0]['headroom_percent']} % is left"
    largest = [shape for shape, bits, _ in claims if not bits][-1]
    larger = list(SHAPES)[list(SHAPES).index(largest) + 1]
    assert "does not fit" in plan(binary, model(tmp_path, larger), *cluster, status=2)


def test_a_million_requests_are_simulated_in_ten_minutes(binary, tmp_path):
    """docs/planning.md: eight replicas of four A100, 1000 + 300 tokens. The bound is generous; the time is printed."""
    trace = tmp_path / "trace.jsonl"
    subprocess.run([binary, "plan", "--generate-trace", trace, "--requests", "1000000", "--rate", "16", "--input", "1000", "--output", "300"],
                   check=True, capture_output=True, timeout=120)
    begun = time.monotonic()
    done = subprocess.run([binary, "plan", *CLUSTER, "--tp", "4", "--simulate", trace, "--json"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    print(f"a million requests simulated in {time.monotonic() - begun:.0f} s")
    result = json.loads(done.stdout)["layouts"][0]["result"]
    assert result["completed"] == 1_000_000


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 12_000, reason="10,000 streams need 12,000 open files")
def test_a_fleet_serves_ten_thousand_streams(binary):
    """docs/planning.md: 64 replicas of an H100 that is not there. Times are printed; for a busy machine their bounds are loose."""
    # It ends its server itself, so its own limits (these, 90 s to stop and 60 s to simulate) are below ours.
    done = subprocess.run([sys.executable, harness.ROOT / "tests/bench/fleet.py", binary, "--replicas", "64", "--streams", "10000", "--slower", "24",
                           "--start-seconds", "120", "--seconds", "240"], capture_output=True, text=True, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["broken"], result["restarts"], result["readyz_failures"]) == (0, 0, 0)
    assert result["open_at_once"] >= 9_000 and result["tokens"] == 1_000_000
    assert result["running_at_once"] > 5_000
    assert result["readyz_ms_p99"] < 2000, result["readyz_ms_p99"]  # meant to stay below 50
    assert result["server_bytes_per_stream"] < 64 << 10
