# SPDX-License-Identifier: Apache-2.0
"""Writes the reference cases of tests/unit/text: token ids, decoded text and rendered chat templates.

The references are the libraries that define the formats: Hugging Face tokenizers, and Jinja2 as transformers sets it up.
Run by hand (pip install transformers==5.19.0 jinja2==3.1.6 gguf), then commit the JSON it writes:

    python3 make_text_cases.py
    python3 make_text_cases.py --gguf MODEL.gguf --out DIR    # the same for a real model's vocabulary; not committed
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "text",
    " text",
    "  text",
    "\n text",
    "text ",
    "the thing and the other",
    "Hello, world! It's 2024; don't you'll I'VE we'd THEY'RE",
    "\tif (x <= 10) {\n\t\treturn  y++;\r\n\t}\n\n\n    // done\n",
    "def f(a, b=3.14159):\n    return {'k': [1, 22, 333, 4444, 55555]}\n",
    "一二三四五，你好。世界！ 日本語のテキスト 한국어 텍스트",
    "naïve café e\u0301 n\u0303 Ünï Ⅷ ½ ² ｆｕｌｌ",
    "😊 👩‍👩‍👧‍👦 🇩🇪 👍🏽 \u200d\u200b\ufeff",
    "مرحبا שלום हिन्दी ไทย Ελληνικά русский",
    "a" * 300,
    " " * 40 + "x" + " " * 33,
    "\n" * 10 + "\r\n\r\n" + "\t" * 7,
    "<s>the</s> <unk> <pad>text<eos>",
    "<|im_start|>user\nhi <tool_call>{\"a\": 1}</tool_call><|im_end|>\n<|endoftext|>",
    "<think>\n\n</think>\n\nok<|im_end|>",
    "<|im_start|> the<|im_end|> the",
    "<bos>x<start_of_turn>user\nhello<end_of_turn>\n<eos><unused5>",
    "https://example.org/a_b?c=d&e=%20f#g [x](y) `z` ~~~ \\n $5 €7 @#%^&*()_+-=",
    "ſ 'ſ K İ ı ǅ \u00a0\u2003\u3000 x\u00a0y",
    "\u2581lower \u2581\u2581 one",
    "0x1F 1e10 1,000,000.00 123456789012 ٣٤٥ １２３",
    "end of file without newline\x00\x01\x7f",
]


def EncodeCases(tokenizer) -> list[dict]:
    cases = []
    for text in TEXTS:
        for parse in (True, False):
            tokenizer.encode_special_tokens = not parse
            bare = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append(
                dict(
                    text=text,
                    parse_special=parse,
                    ids=bare,
                    ids_with_special=tokenizer.encode(text, add_special_tokens=True).ids,
                    decoded=tokenizer.decode(bare, skip_special_tokens=False),
                    decoded_without_special=tokenizer.decode(bare, skip_special_tokens=True),
                )
            )
    return cases


def TinyTokenizers() -> None:
    from fixtures.tiny_tokenizer import TOKENIZERS
    from tokenizers import Tokenizer

    for kind, spec in TOKENIZERS.items():
        tokenizer = Tokenizer.from_str(json.dumps(spec["tokenizer"]))
        gguf = spec["gguf"]
        names = dict(bos="bos_id", eos="eos_id", unk="unk_id")
        vocabulary = {names.get(k, k): v for k, v in gguf.items() if k not in ("eot", "pad")}
        if isinstance(vocabulary.get("merges"), str):
            vocabulary["merges"] = vocabulary["merges"].split(",")
        Write(HERE / f"{kind}_vocabulary.json", vocabulary)
        Write(HERE / f"{kind}_cases.json", EncodeCases(tokenizer))


def RealVocabulary(path: Path, out: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    fields = GGUFReader(path).fields
    get = lambda key: fields[key].contents() if key in fields else None
    ggml = lambda key: get("tokenizer.ggml." + key)
    keys = dict(model="model", pre="pre", tokens="tokens", scores="scores", types="token_type", merges="merges")
    keys |= dict(bos_id="bos_token_id", eos_id="eos_token_id", unk_id="unknown_token_id")
    keys |= dict(add_bos="add_bos_token", add_eos="add_eos_token", add_space_prefix="add_space_prefix")
    vocabulary = {name: ggml(key) for name, key in keys.items() if ggml(key) is not None}
    vocabulary["architecture"] = get("general.architecture")
    out.mkdir(parents=True, exist_ok=True)
    Write(out / f"{path.stem}_vocabulary.json", vocabulary)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    Write(out / f"{path.stem}_cases.json", EncodeCases(tokenizer.backend_tokenizer))


def Write(path: Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=True, indent=0, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.gguf:
        RealVocabulary(arguments.gguf, arguments.out)
    else:
        from template_cases import TemplateCases

        TinyTokenizers()
        Write(HERE / "template_cases.json", TemplateCases())
