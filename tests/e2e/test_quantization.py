# SPDX-License-Identifier: Apache-2.0
"""--quantization: a plain model rounded while it is loaded, by the leader's account and on every rank."""
import pathlib
import re
import subprocess

import pytest
from conftest import Server

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
PLAIN = str(DATA / "quantised" / "plain")


def greedy(inferd, family, folder, *flags):
    folder.mkdir()
    server = Server(inferd, DATA / family, folder, *flags)
    try:
        reply = server.client.completions.create(
            model="toy", prompt=[5, 40, 77, 114, 151], max_tokens=24, temperature=0, logprobs=1,
            extra_body={"ignore_eos": True, "return_tokens_as_token_ids": True})
        return reply.choices[0].logprobs.tokens
    finally:
        server.stop()


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("family, layout", [("llama", ["--tp", "2"]), ("llama", ["--pp", "2"]), ("mixtral", ["--ep", "2"])])
def test_every_layout_gives_the_tokens_of_one_rank(inferd, tmp_path, family, layout, quantization):
    flags = ["--quantization", quantization]
    alone = greedy(inferd, family, tmp_path / "one", *flags)
    assert len(alone) == 24
    assert greedy(inferd, family, tmp_path / "many", *flags, *layout) == alone


def weights(inferd, *flags):
    """MiB of weights that `inferd plan` counts."""
    ran = subprocess.run([inferd, "plan", PLAIN, *flags], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return float(re.search(r"^ *0 +([\d.]+) ", ran.stdout, re.MULTILINE)[1])


def test_the_ledger_counts_the_rounded_weights(inferd):
    plain, int8, int4 = (weights(inferd, *flags) for flags in ([], ["-q", "int8"], ["-q", "int4"]))
    assert int4 < int8 < plain
    assert weights(inferd, "-q", "fp8") <= plain, "made BF16 for the CPU"
    assert weights(inferd, "-q", "fp8", "--device", "cuda-emu") < plain


@pytest.mark.parametrize("name, words", [("gptq", "not quantised"), ("fp9", "fp9")])
def test_what_cannot_be_done_is_refused_at_once(inferd, name, words):
    ran = subprocess.run([inferd, "serve", PLAIN, "--port", "0", "--quantization", name], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert words in ran.stderr


@pytest.mark.parametrize("layout", [["--tp", "2"], ["--pp", "2"]])
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_a_bf16_model_computes_alike_on_every_layout(inferd, tmp_path, layout, dtype):
    """auto is bfloat16 where the CPU is fast at it: slices of activations then travel as bf16."""
    alone = greedy(inferd, "llama", tmp_path / "one", "--dtype", dtype)
    assert greedy(inferd, "llama", tmp_path / "many", "--dtype", dtype, *layout) == alone


def test_dtype_is_for_cpus(inferd):
    ran = subprocess.run([inferd, "serve", "--model", str(DATA / "llama"), "--device", "cuda-emu", "--dtype", "float32", "--port", "0"],
                         capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "--dtype float32 is for --device cpu" in ran.stderr
