# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny but genuine Llama checkpoint that recites scripts: its next token is a fixed function of the last one.

A prompt that ends with a script's marker, such as `[[fox]]`, runs the script; the chat template puts the last marker of
the messages behind the generation prompt. So a test dictates the exact tokens of a reply and judges the server exactly.

How: hidden size = vocabulary size, the head is the identity, a token's embedding is the unit vector of its follower (the
sum of two for a tie), and the output matrices of attention and MLP are zero, so that the vector reaches the head as it is.
Attention is computed but cannot change the answer: this model does not test the KV cache.
"""

import array
import json
import pathlib
import struct

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot|>"]
LAYERS, HEADS, KV_HEADS, INNER, CONTEXT, EPSILON, ROPE_THETA = 2, 4, 2, 64, 4096, 1e-6, 10000.0
END, OTHER_END, EOT = "</s>", "<|im_end|>", "<|eot|>"

# Pieces become tokens; a number is a byte token. A piece may occur once only, because a token has one follower.
# (steps, end): end is the token that ends the reply, or "loop".
SCRIPTS = {
    "default": (["OK", "."], END),
    "hello": (["Hello", ",", " wor", "ld!"], END),
    "fox": (["The quick br", "own", " fox", " jumps"], END),
    "emoji": ([240, 159, 152, 138, " done"], END),
    "count": ([" one", " two", " three", " four", " five"], "loop"),
    "bye": (["Bye"], OTHER_END),
    "coin": ([[" heads", " tails"]], "loop"),
    "quote": (['say "hi"\n', "\\back"], END),
    "nothing": ([], END),
    "cut": ([195, 169, 226, 130, 172, 240, 159, 152, 138, " done"], END),  # é€😊, byte by byte
    "over": (["Over"], EOT),
    "flaw": (["ok ", 255, 192, " fine"], END),  # bytes that are no UTF-8
    # Tool calls as Hermes writes them; one whose arguments its schema does not allow; two; one that breaks off.
    "call": (["Let me", " look.\n", "<tool_call>", '\n{"name": "get_', 'weather", "argu', 'ments": {"city": "K', "öln \\",
              '"{}\\" \\ud83d', "\\ude0a ", 208, 150, '", "unit": ', '"celsius", "days": 3}}', "\n</tool_call>"], END),
    "kelvin": (["Hm. ", "<tool_", "call>\n", '{"name": "get_weather", "arguments": {"city": "Oslo"', ', "unit": "kelvin"', "}}",
                "\n</tool", "_call>"], END),
    "calls": (["<to", "ol_call>\n", '{"name": "get_time", "arguments": {"city": "Rome"}}\n', "</tool_call>\n", "<tool_c",
               'all>\n{"name": "get_time", "arguments": {"city": "Bern"}}', "\n</too", "l_call>"], END),
    "half": (["Well: ", "<tool", "_call>\n{", '"name": "get_time", ', '"argu', "ments: oops"], END),
    # Reasons to its end unless it is made to stop.
    "ponder": (["<th", "ink>", *(f" h{a}{b}" for a in "jqxz" for b in "jqxzvk")], END),
}

TEMPLATE = (
    "{%- set ns = namespace(mark='') -%}"
    "{%- if tools -%}{{- '<|im_start|>system\\n' + (tools | tojson) + ' <tool_call></tool_call><|im_end|>\\n' -}}{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- set text = m.content or '' -%}"
    "{%- if m.role != 'assistant' and '[[' in text -%}"
    "{%- set ns.mark = '[[' + text.split('[[')[-1].split(']]')[0] + ']]' -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + text -}}"
    "{%- for call in m.tool_calls or [] -%}{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' + ns.mark -}}{%- endif -%}"
)


def byte_alphabet():
    """The byte-level convention: each byte as one printable character."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(other)) for b in range(256)]


class Vocabulary:
    def __init__(self):
        self.alphabet = byte_alphabet()
        self.ids = {}
        for spelling in SPECIALS + self.alphabet:
            self.add(spelling)

    def add(self, spelling):
        return self.ids.setdefault(spelling, len(self.ids))

    def piece(self, piece):
        if isinstance(piece, int):
            return self.ids[self.alphabet[piece]]
        return self.add("".join(self.alphabet[b] for b in piece.encode()))


def followers(vocabulary):
    """{token id: [ids that may follow]} and {script: marker id}."""
    follows, markers = {}, {}
    scripts = []
    for name, (steps, end) in SCRIPTS.items():
        path = [[vocabulary.piece(p) for p in (s if isinstance(s, list) else [s])] for s in steps]
        path.append(path[0] if end == "loop" else [vocabulary.ids[end]])
        scripts.append((name, path))
    for name, path in scripts:
        marker = markers[name] = vocabulary.add(f"[[{name}]]")
        follows[marker] = path[0]
        for step, after in zip(path, path[1:]):
            for token in step:
                if follows.setdefault(token, after) != after:
                    raise ValueError(f"script {name}: a piece has two followers")
    for end in (END, OTHER_END, EOT):
        follows.setdefault(vocabulary.ids[end], [vocabulary.ids[end]])
    return follows, markers


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        size = len(data) * data.itemsize
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data.tobytes())


def matrix(rows, columns, ones=(), value=1.0):
    data = array.array("f", bytes(4 * rows * columns))
    for row, column in ones:
        data[row * columns + column] = value
    return [rows, columns], data


def vector(size, value):
    return [size], array.array("f", [value] * size)


class Toy:
    """Vocabulary and weights; `make` and `make_gguf` write them."""

    def __init__(self):
        self.vocabulary = Vocabulary()
        self.follows, self.markers = followers(self.vocabulary)
        self.ids = self.vocabulary.ids
        self.hidden = (len(self.ids) + 63) // 64 * 64
        self.added = [s for s, i in self.ids.items() if s in SPECIALS or i in self.markers.values()]

    def tensors(self):
        """{name: (shape, data)} in the names of Hugging Face."""
        size, hidden = len(self.ids), self.hidden
        start = self.follows[self.markers["default"]]
        embedding = [(token, follower) for token in range(size) for follower in self.follows.get(token, start)]
        logit = 32.0
        tensors = {
            "model.embed_tokens.weight": matrix(size, hidden, embedding),
            "lm_head.weight": matrix(size, hidden, ((i, i) for i in range(size))),
            # The norm turns a unit vector into one of length sqrt(hidden).
            "model.norm.weight": vector(hidden, logit / hidden**0.5),
        }
        kv = hidden * KV_HEADS // HEADS
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}."
            tensors |= {
                prefix + "input_layernorm.weight": vector(hidden, 1.0),
                prefix + "post_attention_layernorm.weight": vector(hidden, 1.0),
                prefix + "self_attn.q_proj.weight": matrix(hidden, hidden, ((i, i) for i in range(hidden)), 0.25),
                prefix + "self_attn.k_proj.weight": matrix(kv, hidden, ((i, i) for i in range(kv)), 0.25),
                prefix + "self_attn.v_proj.weight": matrix(kv, hidden, ((i, i + 1) for i in range(kv)), 0.5),
                prefix + "self_attn.o_proj.weight": matrix(hidden, hidden),
                prefix + "mlp.gate_proj.weight": matrix(INNER, hidden, ((i, i) for i in range(INNER))),
                prefix + "mlp.up_proj.weight": matrix(INNER, hidden, ((i, i) for i in range(INNER))),
                prefix + "mlp.down_proj.weight": matrix(hidden, INNER),
            }
        return tensors

    def config(self):
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(self.ids), "hidden_size": self.hidden,
            "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
            "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": EPSILON, "rope_theta": ROPE_THETA,
            "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": self.ids["<s>"], "eos_token_id": self.ids[END],
        }

    def tokenizer(self):
        added = [{"id": self.ids[s], "content": s, "special": s in SPECIALS, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False} for s in self.added]
        return {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [self.ids["<s>"]], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": self.ids, "merges": []},
        }


def make(folder, config=(), generation_config=None, tokenizer_config=()):
    """Writes the checkpoint; returns {script: marker id}. What is given replaces keys (None: leaves them out)."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    toy = Toy()
    if generation_config is None:
        generation_config = {"eos_token_id": [toy.ids[END], toy.ids[OTHER_END]]}
    files = {
        "config.json": toy.config() | dict(config),
        "generation_config.json": generation_config,
        "tokenizer.json": toy.tokenizer(),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": END,
                                  "chat_template": TEMPLATE} | dict(tokenizer_config),
    }
    write_safetensors(folder / "model.safetensors", toy.tensors())
    for name, content in files.items():
        kept = {key: value for key, value in content.items() if value is not None or name == "tokenizer.json"}
        (folder / name).write_text(json.dumps(kept, indent=1))
    return toy.markers


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm", "model.layers": "blk",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_value(value):
    """Type and bytes of a metadata value: u32, f32, bool, string, or a list of strings or i32."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    if value and isinstance(value[0], int):
        return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(gguf_value(item)[1] for item in value)


def make_gguf(path, ends):
    """The same model as one GGUF file. `ends`: {"eos": token, "eot": token, ...}; returns {script: marker id}."""
    toy = Toy()
    token_type = [3 if s in SPECIALS else 4 if s in toy.added else 1 for s in toy.ids]  # control, user-defined, normal
    metadata = {
        "general.architecture": "llama", "llama.block_count": LAYERS, "llama.context_length": CONTEXT,
        "llama.embedding_length": toy.hidden, "llama.feed_forward_length": INNER, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.attention.layer_norm_rms_epsilon": EPSILON,
        "llama.rope.freq_base": ROPE_THETA, "llama.vocab_size": len(toy.ids), "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": list(toy.ids), "tokenizer.ggml.token_type": token_type,
        "tokenizer.ggml.merges": ["O K"], "tokenizer.ggml.bos_token_id": toy.ids["<s>"], "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    } | {f"tokenizer.ggml.{name}_token_id": toy.ids[token] for name, token in ends.items()}
    infos, blobs, offset = b"", [], 0
    tensors = toy.tensors()
    for name, (shape, data) in tensors.items():
        for theirs, gguf in GGUF_NAMES.items():
            name = name.replace(theirs + ".", gguf + ".")
        infos += gguf_value(name)[1] + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, offset)
        blob = data.tobytes()
        blobs.append(blob + b"\0" * (-len(blob) % 32))
        offset += len(blobs[-1])
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, packed = gguf_value(value)
        head += gguf_value(key)[1] + struct.pack("<I", kind) + packed
    head += infos
    pathlib.Path(path).write_bytes(head + b"\0" * (-len(head) % 32) + b"".join(blobs))
    return toy.markers


if __name__ == "__main__":
    import sys

    print(make(sys.argv[1]))
