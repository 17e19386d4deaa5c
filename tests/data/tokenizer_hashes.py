#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the reference tokenizers make of 10,000 mixed-script strings, as hashes: writes real/tokenizer-hashes.json.

    python tokenizer_hashes.py [--models FOLDER]

Run by hand with requirements.txt. One hash per 100 strings: SHA-256 of the JSON of their id lists. tests/e2e/test_tokenizers.py compares.
"""
import argparse
import hashlib
import json
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from fixtures.mixed_strings import mixed_strings
from real_reference import MODELS

HERE = Path(__file__).resolve().parent
COUNT, CHUNK = 10_000, 100


def hashes(encode):
    ids = [encode(text) for text in mixed_strings(COUNT)]
    return [hashlib.sha256(json.dumps(ids[i:i + CHUNK]).encode()).hexdigest() for i in range(0, COUNT, CHUNK)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache/inferd/models")
    folder = parser.parse_args().models
    result = {}
    for name, spec in MODELS.items():
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=spec["file"])
        result[name] = hashes(lambda text: tokenizer.encode(text, add_special_tokens=False))
    for name in ("bpe", "spm"):
        tokenizer = Tokenizer.from_file(str(HERE / "tokenizers" / name / "tokenizer.json"))
        result[name] = hashes(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    head = dict(count=COUNT, chunk=CHUNK, unicode=unicodedata.unidata_version, tokenizers=result)
    (HERE / "real" / "tokenizer-hashes.json").write_text(json.dumps(head, indent=1) + "\n")


if __name__ == "__main__":
    main()
