# SPDX-License-Identifier: Apache-2.0
"""What a pass over a GGUF file's model has to do, from the file's header alone: the weights that a token multiplies, and the bytes
of K and V that a decoded token reads for each token before it."""
import math
import struct

F16_BYTES = 2  # of an element of K or V
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class Header:
    """Metadata as a dictionary, tensors as {name: dimensions}."""

    def __init__(self, path):
        with open(path, "rb") as self._file:
            if self._file.read(4) != b"GGUF":
                raise ValueError(f"{path} is no GGUF file")
            self._number("<I")
            tensors, pairs = self._number("<Q"), self._number("<Q")
            self.metadata = {self._string(): self._value(self._number("<I")) for _ in range(pairs)}
            self.tensors = dict(self._tensor() for _ in range(tensors))

    def _number(self, form):
        return struct.unpack(form, self._file.read(struct.calcsize(form)))[0]

    def _string(self):
        return self._file.read(self._number("<Q")).decode()

    def _value(self, kind):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            element, count = self._number("<I"), self._number("<Q")
            return [self._value(element) for _ in range(count)]
        return self._number(SCALARS[kind])

    def _tensor(self):
        name = self._string()
        dimensions = [self._number("<Q") for _ in range(self._number("<I"))]
        self._number("<I"), self._number("<Q")  # type, offset
        return name, dimensions


def facts(path):
    """{"prefill_weights": of the layers' matrices, "decode_weights": with those of the logits, "kv_bytes_per_token": of an F16 cache}."""
    header = Header(path)

    def setting(key, default=None):
        return header.metadata.get(f"{header.metadata['general.architecture']}.{key}", default)

    heads = setting("attention.head_count")
    head_dim = setting("attention.key_length", setting("embedding_length") // heads)
    layers = sum(math.prod(d) for name, d in header.tensors.items() if name.startswith("blk.") and len(d) > 1)
    logits = math.prod(header.tensors.get("output.weight") or header.tensors["token_embd.weight"])
    return {"prefill_weights": layers, "decode_weights": layers + logits,
            "kv_bytes_per_token": 2 * setting("block_count") * setting("attention.head_count_kv", heads) * head_dim * F16_BYTES}
