# SPDX-License-Identifier: Apache-2.0
"""Structured output over the real binary: what comes out is what the grammar says, whatever the model would like to say.

The toy model gives all tokens but a script's next one the same logit, so that at a high temperature it draws nearly evenly
from what a grammar allows: every corner of a schema is visited.
"""

import concurrent.futures
import json
import random
import re

import jsonschema
import openai
import pytest
import toy_model
from conftest import Server

SCHEMAS = 1000
SAMPLES = 1  # per schema
MAX_TOKENS = 400


@pytest.fixture(scope="module")
def server(inferd, toy, tmp_path_factory):
    server = Server(inferd, toy, tmp_path_factory.mktemp("structured"), "--max-model-len", "2048")
    yield server
    server.stop()


def strict_json(text):
    def refuse(name):
        raise ValueError(f"{name} is not JSON")
    return json.loads(text, parse_constant=refuse)


def complete(server, **fields):
    fields = {"prompt": "x", "max_tokens": MAX_TOKENS, "temperature": 1.5, **fields}
    return server.post("/v1/completions", {"model": "toy", **fields})["choices"]


def refused(server, path="/v1/completions", **fields):
    body = {"model": "toy", "prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, **fields}
    with pytest.raises(openai.BadRequestError) as error:
        server.client.post(path.removeprefix("/v1"), body=body, cast_to=object)
    return error.value.body


# ---- random schemas

class Schemas:
    """Random schemas, all of bounded size, with references to shared definitions."""

    PATTERNS = [r"^\d+$", r"^[a-c]{2,4}$", r"^(x|yz){1,3}$", r"\S", r"^[\w-]+$", r"^[^\"\\\\x00-\\x1f]{1,3}$", r"q"]

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def make(self):
        schema = self.object(3)
        if self.definitions:
            schema["$defs"] = self.definitions
        return schema

    def any(self, depth):
        makers = [self.string, self.string, self.integer, self.number, self.enum, self.reference, self.simple]
        if depth > 0:
            makers += [self.object, self.array, self.array, self.union]
        return self.random.choice(makers)(depth)

    def simple(self, _):
        return {"type": self.random.choice(["boolean", "null", ["boolean", "null"]])}

    def string(self, _):
        schema = {"type": "string", "maxLength": self.random.randint(3, 8)}
        kind = self.random.randrange(4)
        if kind == 0:
            schema["pattern"] = self.random.choice(self.PATTERNS)
        elif kind == 1:
            schema["minLength"] = self.random.randint(1, 3)
        elif kind == 2:
            return {"type": "string", "format": self.random.choice(["date", "uuid", "ipv4", "time"])}
        return schema

    def integer(self, _):
        low = self.random.randint(-1000, 1000)
        schema = {"type": "integer"}
        if self.random.random() < 0.8:
            schema["minimum"] = low
        if self.random.random() < 0.8:
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.randint(2, 500)
        return schema

    def number(self, _):
        low = self.random.uniform(-100, 100)
        return {"type": "number", "minimum": round(low, 2), "maximum": round(low + self.random.uniform(0.1, 50), 2)}

    def enum(self, _):
        values = ["red", "green", "a\"b", "ü", 1, -2.5, None, True, {"k": [1]}, ["x"]]
        return {"enum": self.random.sample(values, self.random.randint(1, 4))}

    def reference(self, depth):
        if not self.definitions or self.random.random() < 0.5:
            name = self.random.choice(["a", "b/c", "d e", "~f", "%g"]) + str(len(self.definitions))
            self.definitions[name] = True  # so that what it refers to gets another name
            self.definitions[name] = self.random.choice([self.enum, self.string, self.integer])(depth)
        else:
            name = self.random.choice([n for n, schema in self.definitions.items() if schema is not True])
        pointer = name.replace("~", "~0").replace("/", "~1").replace("%", "%25").replace(" ", "%20")
        return {"$ref": f"#/$defs/{pointer}"}

    def array(self, depth):
        schema = {"type": "array", "items": self.any(depth - 1), "maxItems": self.random.randint(1, 3)}
        if self.random.random() < 0.3:
            schema["minItems"] = 1
        if self.random.random() < 0.2:
            schema["prefixItems"] = [self.any(0)]
        return schema

    def union(self, depth):
        if self.random.random() < 0.5:
            return {"anyOf": [self.any(depth - 1), self.any(0)]}
        kinds = [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.any(0)},
                  "required": ["kind"], "additionalProperties": False} for kind in ("cat", "dog")]
        return {"oneOf": kinds + [{"type": "null"}]}

    def object(self, depth):
        names = self.random.sample(["name", "b c", "quo\"te", "ü", "$ref", "x/y", ""], self.random.randint(1, 3))
        return {"type": "object", "properties": {name: self.any(depth - 1) for name in names},
                "required": self.random.sample(names, self.random.randint(0, len(names))),
                "additionalProperties": False}


def test_random_schemas_are_never_broken(server):
    def run(seed):
        schema = Schemas(seed).make()
        field = {0: {"guided_json": schema}, 1: {"structured_outputs": {"json": schema}},
                 2: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}}
        return schema, complete(server, n=SAMPLES, seed=seed, **field[seed % 3])

    complete_samples = 0
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for schema, choices in pool.map(run, range(SCHEMAS)):
            validator = jsonschema.Draft202012Validator(schema)
            for choice in choices:
                assert choice["finish_reason"] in ("stop", "length")
                if choice["finish_reason"] == "stop":
                    complete_samples += 1
                    errors = list(validator.iter_errors(strict_json(choice["text"])))
                    assert not errors, f"{json.dumps(schema)}\n{choice['text']}\n{errors[0].message}"
    print(f"{complete_samples} of {SCHEMAS * SAMPLES} samples complete")
    assert complete_samples > 0.8 * SCHEMAS * SAMPLES


def test_enums_behind_references(server):
    """An array of objects whose fields refer to string enums, over a chain, under the old keyword and with siblings."""
    schema = {
        "type": "array", "minItems": 1, "maxItems": 4,
        "items": {"type": "object", "additionalProperties": False, "required": ["a", "b", "c"], "properties": {
            "a": {"$ref": "#/$defs/chain"}, "b": {"$ref": "#/definitions/old", "description": "d"},
            "c": {"$ref": "#/items/properties/a"}}},
        "$defs": {"chain": {"$ref": "#/$defs/color"}, "color": {"enum": ["red", "green", "blue"]}},
        "definitions": {"old": {"type": "string", "enum": ["north", "south"]}}}
    texts = set()
    for seed in range(8):
        for choice in complete(server, guided_json=schema, n=125, seed=seed * 1000):
            assert choice["finish_reason"] == "stop"
            value = strict_json(choice["text"])
            jsonschema.validate(value, schema)
            texts.update(item["a"] for item in value)
    assert texts == {"red", "green", "blue"}


def test_regex_choice_grammar(server):
    for choice in complete(server, guided_regex=r"[a-f]{3}-\d{2,4}", n=50):
        assert re.fullmatch(r"[a-f]{3}-[0-9]{2,4}", choice["text"])
    seen = {choice["text"] for choice in complete(server, structured_outputs={"choice": ["yes", "yes!", "no"]}, n=100)}
    assert seen == {"yes", "yes!", "no"}
    for source in ('start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,2}/', 'root ::= n ("+" n)*\nn ::= [0-9]{1,2}'):
        for choice in complete(server, guided_grammar=source, n=20):
            if choice["finish_reason"] == "stop":
                assert re.fullmatch(r"\d{1,2}(\+\d{1,2})*", choice["text"])
    for choice in complete(server, response_format={"type": "json_object"}, n=10, max_tokens=60):
        assert choice["text"].startswith("{")


def test_chat_streamed_and_whole(server):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}, "n": {"type": "integer"}},
              "required": ["city", "n"], "additionalProperties": False}
    ask = {"model": "toy", "messages": [{"role": "user", "content": "[[fox]]"}], "temperature": 1.2, "seed": 5,
           "logprobs": True, "top_logprobs": 20,
           "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}
    whole = server.client.chat.completions.create(**ask)
    assert whole.choices[0].finish_reason == "stop"
    jsonschema.validate(strict_json(whole.choices[0].message.content), schema)
    chunks = list(server.client.chat.completions.create(**ask, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    for item in whole.choices[0].logprobs.content:
        assert len(item.top_logprobs) == 20
        assert all(-9999.0 <= top.logprob <= 0 for top in item.top_logprobs)
    # The script would like to say something else: its first token is likely, and was not taken.
    assert whole.choices[0].logprobs.content[0].top_logprobs[0].token != whole.choices[0].logprobs.content[0].token
    cut = server.client.chat.completions.create(**{**ask, "max_tokens": 3})
    assert cut.choices[0].finish_reason == "length"


def test_logprobs_of_impossible_tokens_are_json(server):
    body = json.dumps({"model": "toy", "prompt": "x", "max_tokens": 3, "logprobs": 5, "top_k": 1, "echo": True,
                       "guided_choice": ["a", "b"]}).encode()
    reply = strict_json(server.client.post("/completions", body=json.loads(body), cast_to=str))
    assert reply["choices"][0]["text"] in ("xa", "xb")


def test_what_cannot_be_enforced_is_refused(server):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "pattern": r"(a)\1"}}}}
    error = refused(server, guided_json=schema)
    assert error["param"] == "guided_json"
    assert "/properties/a/items/pattern" in error["message"] and "backreference" in error["message"]
    error = refused(server, "/v1/chat/completions", response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"not": {}}}}}})
    assert error["param"] == "response_format.json_schema.schema" and "/properties/a/not" in error["message"]
    assert "https://example.com/a.json" in refused(server, guided_json={"$ref": "https://example.com/a.json"})["message"]
    assert refused(server, guided_regex="(?=a)b")["param"] == "guided_regex"
    assert refused(server, structured_outputs={"regex": "a", "json": {}})["param"] == "structured_outputs.regex"


def test_a_grammar_beats_min_tokens_and_ignore_eos(server):
    choice = complete(server, guided_choice=["ab"], min_tokens=20, ignore_eos=True)[0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


def test_allowed_tokens_and_bad_words(server):
    ids = server.post("/tokenize", {"model": "toy", "prompt": "abc", "add_special_tokens": False})["tokens"]
    for choice in complete(server, allowed_token_ids=ids, max_tokens=40, n=5):
        assert set(choice["text"]) == {"a", "b", "c"}
    ask = {"model": "toy", "messages": [{"role": "user", "content": "[[hello]]"}], "temperature": 0, "max_tokens": 3}
    plain = server.post("/v1/chat/completions", ask)["choices"][0]["message"]["content"]
    assert plain == "Hello, wor"
    kept = server.post("/v1/chat/completions", {**ask, "bad_words": [","]})["choices"][0]["message"]["content"]
    assert kept.startswith("Hello") and "," not in kept


def test_end_tokens_wait_for_min_tokens(server):
    ask = {"model": "toy", "messages": [{"role": "user", "content": "[[hello]]"}], "temperature": 0, "max_tokens": 30,
           "logprobs": True}
    content = server.post("/v1/chat/completions", {**ask, "min_tokens": 12})["choices"][0]["logprobs"]["content"]
    assert len(content) >= 12
    assert toy_model.END not in [item["token"] for item in content[:11]]
