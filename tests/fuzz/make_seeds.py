# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets into a folder, one folder a target: from the repository's test data, and small model
files made here. An input that once broke a target is added to KEPT, so that every run looks at it first.

    python3 tests/fuzz/make_seeds.py FOLDER
"""

import json
import pathlib
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

KEPT = {}  # target: inputs as bytes

REPLIES = [
    "<think>why</think>Text.\n<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"x\\\\y\\n\", \"exact\": true}}\n</tool_call>",
    "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"old\\\" {town} 東京\", \"days\": 3}}",
    "[get_weather(city=\"a\\\"b\", where={'a': [1, None]}, days=-3), ping()]",
    "<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}",
    "Hm. [TOOL_CALLS][{\"name\": \"run\", \"arguments\": {}, \"id\": \"abcdefghi\"}]",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{\"code\": \"1\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<tool_call>run\n<arg_key>code</arg_key>\n<arg_value>x < y & z</arg_value>\n</tool_call>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{\"code\": \"1\"}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.run <|constrain|>json<|message|>"
    "{\"code\": \"1\"}<|call|>",
    "functools[{\"name\": \"ping\", \"arguments\": {}}]",
    "<|tool_call|>[{\"name\": \"ping\", \"arguments\": {}}]",
    "<tool_call>\n<function=run>\n<parameter=code>\nx = \"</parameter\"\n</parameter>\n</function>\n</tool_call>",
]

FORM = ("POST /v1/files HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=\"b\"\r\nContent-Length: 105\r\n\r\n"
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-8''a%20b\r\nContent-Type: x/y\r\n\r\n{}\r\n--b--\r\n")


def http_seeds():
    """The streams of the corpus; its head explains the escapes."""
    names = {"r": "\r", "n": "\n", "t": "\t"}

    def plain(match):
        escape = match.group(1)
        if escape[0] == "x":
            return chr(int(escape[1:], 16))
        if escape[0] == "R":
            count, character = re.fullmatch(r"R\((\d+),(.)\)", escape, re.DOTALL).groups()
            return character * min(int(count), 2000)
        return names.get(escape, escape)

    for line in (ROOT / "tests/data/http/corpus.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            text = re.sub(r"\\(x[0-9a-fA-F]{2}|R\(\d+,.\)|.)", plain, line.split(" ", 2)[2])
            yield text.encode("latin-1", "replace")
    yield FORM.encode()
    yield FORM.split("\r\n\r\n", 1)[1].encode()
    yield b"multipart/form-data; charset=utf-8; boundary=\"a b'()+_,-./:=?\"\n"
    yield b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \\u0000"}], "n": 1e2, "stop": ["a", null], "seed": -0}'


def dialect_seeds():
    for number, reply in enumerate(REPLIES):
        for dialect in range(0, 120, 3):
            yield bytes([dialect, number]) + reply.encode()


def template_seeds():
    templates = {case["source"] for case in json.loads((ROOT / "tests/data/text/template_cases.json").read_text())["cases"]
                 if isinstance(case.get("source"), str)}
    templates |= {path.read_text() for path in (ROOT / "tests/data/text").glob("*.jinja")}
    for template in sorted(templates):
        yield template.encode()


def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value):
    """Type and bytes of a metadata value."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_string(value)
    kind = gguf_value(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(gguf_value(one)[1] for one in value)


def gguf_seeds():
    keys = {
        "general.architecture": "llama", "general.alignment": 32, "llama.context_length": 64, "llama.embedding_length": 4,
        "llama.block_count": 1, "llama.feed_forward_length": 4, "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": ["a", "b", "ab", "</s>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.chat_template": "{{ messages[0].content }}", "general.sampling.temp": 0.5,
    }
    tensors = {"token_embd.weight": [4, 4], "output_norm.weight": [4]}
    for version in (2, 3):
        head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
        for key, value in keys.items():
            kind, data = gguf_value(value)
            head += gguf_string(key) + struct.pack("<I", kind) + data
        offset = 0
        for name, shape in tensors.items():
            head += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
            offset += 64
        yield head + bytes(-len(head) % 32) + bytes(offset)


def safetensors_seeds():
    header = {"__metadata__": {"format": "pt"},
              "a.weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
              "b.bias": {"dtype": "BF16", "shape": [4], "data_offsets": [32, 40]},
              "c": {"dtype": "I64", "shape": [], "data_offsets": [40, 48]}}
    text = json.dumps(header).encode()
    for padding in (0, -len(text) % 8):
        yield struct.pack("<Q", len(text) + padding) + text + b" " * padding + bytes(48)


def listing_seeds():
    entry = "<Contents><Key>{}</Key><ETag>&#34;9ee864697367f9b6839112968febaba2{}&quot;</ETag><Size>{}</Size><Owner><ID>x</ID></Owner></Contents>"
    entries = "".join(entry.format(*each) for each in (("a/config.json", "", 2), ("a/b&amp;&#x44;.safetensors", "-7", 5000000000), ("a.gguf", "", 0)))
    yield (f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3"><Name>m</Name><Prefix/><IsTruncated>true</IsTruncated>'
           f"{entries}<!-- x --><NextContinuationToken><![CDATA[a=b]]></NextContinuationToken></ListBucketResult>").encode()
    yield b"<s:ListBucketResult><s:Contents><s:Key>config.json</s:Key><s:Size>1</s:Size></s:Contents></s:ListBucketResult>"
    yield b"<Error><Code>AccessDenied</Code><Message>No &lt;way&gt;</Message></Error>"
    yield b'<!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>'


def config_seeds():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        text = path.read_text()
        yield text.encode()
        for part in text.split("\n\n"):
            yield part.encode()
    yield b"{http: {port: 0, allowed_hosts: [a, 'b: c']}, parallel: &x {tp: 2}, log: {level: debug}}\n"


def main():
    folder = pathlib.Path(sys.argv[1])
    makers = {"http": http_seeds, "dialect": dialect_seeds, "template": template_seeds, "gguf": gguf_seeds,
              "safetensors": safetensors_seeds, "listing": listing_seeds, "config": config_seeds}
    for target, make in makers.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate([*KEPT.get(target, ()), *make()]):
            (folder / target / f"{number:04}").write_bytes(seed)


main()
