# SPDX-License-Identifier: Apache-2.0
"""10,000 mixed-script strings through `inferd tokenize`, against the hashes of what the reference tokenizers make of them
(tests/data/tokenizer_hashes.py)."""
import hashlib
import json
import pathlib
import subprocess
import sys

import pytest
from test_real_model import CACHE, FILES

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
sys.path.insert(0, str(DATA))
from fixtures.mixed_strings import mixed_strings  # noqa: E402

REFERENCE = json.loads((DATA / "real" / "tokenizer-hashes.json").read_text())
MODELS = {**{name: CACHE / "models" / file for name, file in FILES.items()}, "bpe": DATA / "qwen3", "spm": DATA / "llama"}

BOS = {"gemma-3-270m": 2, "spm": 1}


@pytest.mark.parametrize("name", REFERENCE["tokenizers"])
def test_ids_equal_the_reference(inferd, name):
    texts = mixed_strings(REFERENCE["count"])
    done = subprocess.run([inferd, "tokenize", str(MODELS[name]), "-", "json"], input="\n".join(map(json.dumps, texts)),
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ids = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ids) == len(texts)
    if name in BOS:  # the reference adds none
        assert {line[0] for line in ids} == {BOS[name]}
        ids = [line[1:] for line in ids]
    chunk = REFERENCE["chunk"]
    hashes = [hashlib.sha256(json.dumps(ids[i:i + chunk]).encode()).hexdigest() for i in range(0, len(ids), chunk)]
    differing = [i for i, (got, expected) in enumerate(zip(hashes, REFERENCE["tokenizers"][name])) if got != expected]
    assert not differing, f"chunks of {chunk} strings that differ: {differing}"
