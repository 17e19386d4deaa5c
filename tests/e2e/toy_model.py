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
END, OTHER_END = "</s>", "<|im_end|>"

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
}

TEMPLATE = (
    "{%- set ns = namespace(mark='') -%}"
    "{%- for m in messages -%}"
    "{%- if m.role != 'assistant' and '[[' in m.content -%}"
    "{%- set ns.mark = '[[' + m.content.split('[[')[-1].split(']]')[0] + ']]' -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}"
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
    for end in (END, OTHER_END, "<|eot|>"):
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


def make(folder):
    """Writes the checkpoint; returns {script: marker id}."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = Vocabulary()
    follows, markers = followers(vocabulary)
    size = len(vocabulary.ids)
    hidden = (size + 63) // 64 * 64
    start = follows[markers["default"]]
    embedding = [(token, follower) for token in range(size) for follower in follows.get(token, start)]
    logit = 32.0
    tensors = {
        "model.embed_tokens.weight": matrix(size, hidden, embedding),
        "lm_head.weight": matrix(size, hidden, ((i, i) for i in range(size))),
        # The norm turns a unit vector into one of length sqrt(hidden).
        "model.norm.weight": vector(hidden, logit / hidden**0.5),
    }
    heads, kv_heads, inner = 4, 2, 64
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": vector(hidden, 1.0),
            prefix + "post_attention_layernorm.weight": vector(hidden, 1.0),
            prefix + "self_attn.q_proj.weight": matrix(hidden, hidden, ((i, i) for i in range(hidden)), 0.25),
            prefix + "self_attn.k_proj.weight": matrix(hidden * kv_heads // heads, hidden, ((i, i) for i in range(hidden // 2)), 0.25),
            prefix + "self_attn.v_proj.weight": matrix(hidden * kv_heads // heads, hidden, ((i, i + 1) for i in range(hidden // 2)), 0.5),
            prefix + "self_attn.o_proj.weight": matrix(hidden, hidden),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden, ((i, i) for i in range(inner))),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden, ((i, i) for i in range(inner))),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    write_safetensors(folder / "model.safetensors", tensors)
    ids = vocabulary.ids
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": ids["<s>"], "eos_token_id": ids[END],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[END], ids[OTHER_END]]}))
    added = [{"id": i, "content": s, "special": s in SPECIALS, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for s, i in ids.items() if s in SPECIALS or i in markers.values()]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [ids["<s>"]], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": ids, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": END, "chat_template": TEMPLATE}))
    return markers


if __name__ == "__main__":
    import sys

    print(make(sys.argv[1]))
