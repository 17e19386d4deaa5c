# SPDX-License-Identifier: Apache-2.0
"""The two small real models over the real binary: against transformers on the dequantised weights (tests/data/real, made by
tests/data/real_reference.py), and every layout against one rank.

Block-quantised weights meet activations rounded to int8 here (as in llama.cpp), to nothing in the reference: small differences
are expected, and the bounds below say how large they may be.
"""

import json
import math
import os
import pathlib

import pytest
from conftest import Server

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "real"
CACHE = pathlib.Path(os.environ.get("INFERD_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "inferd")
FILES = {"qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "gemma-3-270m": "gemma-3-270m-q4_k_m.gguf"}
TOKENS = 64
NEAR_TIE = 1e-2       # layouts: a token may differ only where the two best logits are this close
CLEAR_GAP = 0.75      # reference: where its two best logits are further apart than this, our best token is its best token
MEAN_LOGPROB = 0.06   # reference: mean absolute difference of the chosen tokens' logprobs
PERPLEXITY = 0.01     # reference: relative difference
KV_PERPLEXITY = {"int8": 0.01, "fp8": 0.05}  # of an F16 cache: relative difference


def reference(name):
    return json.loads((DATA / f"{name}.json").read_text())


class RealServer(Server):
    def __init__(self, inferd, name, folder, *flags):
        path = CACHE / "models" / FILES[name]
        assert path.exists(), f"{path} is missing: ./dev model {name}"
        super().__init__(inferd, path, folder, "--max-model-len", "1024", *flags)

    def generate(self, prompts):
        """Per prompt: the texts of 64 greedy tokens, and the gap between the two best logprobs at each."""
        reply = self.post("/v1/completions", {"model": "toy", "prompt": prompts, "max_tokens": TOKENS, "temperature": 0,
                                              "ignore_eos": True, "logprobs": 2})
        answers = []
        for choice in sorted(reply["choices"], key=lambda c: c["index"]):
            tokens = choice["logprobs"]["tokens"]
            gaps = []
            for top in choice["logprobs"]["top_logprobs"]:
                best = sorted(top.values(), reverse=True)
                gaps.append(best[0] - best[1] if len(best) > 1 else math.inf)
            answers.append((tokens, gaps))
        return answers

    def score(self, ids):
        """Logprob of each id given those before it, and whether it is the most likely one; from the second id on."""
        reply = self.post("/v1/completions", {"model": "toy", "prompt": [ids], "max_tokens": 0, "temperature": 0, "echo": True,
                                              "logprobs": 1})
        logprobs = reply["choices"][0]["logprobs"]
        values = logprobs["token_logprobs"][1:]
        best = [max(top.values()) <= value + 1e-6 for top, value in zip(logprobs["top_logprobs"][1:], values)]
        return values, best


@pytest.fixture(scope="module")
def one_rank(inferd, tmp_path_factory):
    """one_rank(name): a server of one rank, kept for the module."""
    servers = {}

    def start(name):
        if name not in servers:
            servers[name] = RealServer(inferd, name, tmp_path_factory.mktemp("one"))
        return servers[name]

    yield start
    for server in servers.values():
        server.stop()


@pytest.mark.parametrize("name", FILES)
def test_logprobs_and_greedy_tokens_match_the_reference(one_rank, name):
    server = one_rank(name)
    differences, clear, same, total = [], 0, 0, 0
    for prompt in reference(name)["prompts"]:
        values, best = server.score(prompt["ids"] + prompt["greedy"])
        start = len(prompt["ids"]) - 1
        for ours, is_best, theirs, gap in zip(values[start:], best[start:], prompt["logprobs"], prompt["gaps"]):
            differences.append(abs(ours - theirs))
            total += 1
            same += is_best
            if gap > CLEAR_GAP:
                clear += 1
                assert is_best, f"{prompt['text']!r}: another token is best where the reference leads by {gap}"
    mean = sum(differences) / len(differences)
    print(f"{name}: mean |logprob difference| {mean:.4f}, max {max(differences):.3f}, same best token at {same} of {total} "
          f"positions, at all {clear} with a gap above {CLEAR_GAP}")
    assert mean <= MEAN_LOGPROB
    assert clear > total / 2


@pytest.mark.parametrize("name", FILES)
def test_perplexity(one_rank, name):
    text = reference(name)["text"]
    values, _ = one_rank(name).score(text["ids"])
    ours = math.exp(-sum(values) / len(values))
    print(f"{name}: perplexity {ours:.4f}, reference {text['perplexity']:.4f}")
    assert abs(ours / text["perplexity"] - 1) <= PERPLEXITY


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dtype", KV_PERPLEXITY)
def test_perplexity_with_an_8_bit_kv_cache(one_rank, inferd, tmp_path, name, dtype):
    ids = reference(name)["text"]["ids"]
    default, _ = one_rank(name).score(ids)
    server = RealServer(inferd, name, tmp_path, "--kv-cache-dtype", dtype)
    try:
        values, _ = server.score(ids)
        server.stop()
    finally:
        server.kill()
    change = math.exp((sum(default) - sum(values)) / len(values)) - 1
    mean = sum(abs(a - b) for a, b in zip(values, default)) / len(values)
    print(f"{name}, {dtype}: perplexity {change:+.2%} of the F16 cache's, mean |logprob difference| {mean:.4f}")
    assert 0 < mean and abs(change) <= KV_PERPLEXITY[dtype]


@pytest.mark.parametrize("flags", [("--tp", "2"), ("--pp", "2"), ("--tp", "3"), ("--tp", "4"), ("--tp", "2", "--pp", "2"),
                                   ("--dp", "2")], ids=" ".join)
def test_layouts_give_the_tokens_of_one_rank(one_rank, inferd, tmp_path, flags):
    name = "qwen2.5-coder-0.5b"
    prompts = [prompt["ids"] for prompt in reference(name)["prompts"]]
    expected = one_rank(name).generate(prompts)
    server = RealServer(inferd, name, tmp_path, *flags)
    try:
        got = server.generate(prompts)
        server.stop()
    finally:
        server.kill()
    near_ties = 0
    for number, ((ours, _), (theirs, gaps)) in enumerate(zip(got, expected)):
        for position, (a, b) in enumerate(zip(ours, theirs)):
            if a != b:
                assert gaps[position] <= NEAR_TIE, f"prompt {number}, token {position}: {a!r} for {b!r}, gap {gaps[position]}"
                near_ties += 1
                break  # What follows another token is another text.
    print(f"{' '.join(flags)}: {len(prompts) - near_ties} of {len(prompts)} answers equal over {TOKENS} tokens, "
          f"{near_ties} part at a near tie")


@pytest.mark.parametrize("name", FILES)
def test_tokenizer_equals_the_reference(one_rank, name):
    cases = json.loads((DATA / f"{name}-tokenizer.json").read_text())["cases"]
    server = one_rank(name)
    wrong = []
    for case in cases:
        got = server.post("/tokenize", {"model": "toy", "prompt": case["text"], "add_special_tokens": case.get("add_special", False)})
        if got["tokens"] != case["ids"]:
            wrong.append((case["text"], got["tokens"], case["ids"]))
    assert not wrong, f"{len(wrong)} of {len(cases)} differ; first: {wrong[0]}"
