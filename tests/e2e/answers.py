# SPDX-License-Identifier: Apache-2.0
"""Answers read strictly: valid UTF-8, JSON without NaN or doubled keys, the shape of a stream; and stream = whole."""

import http.client
import json

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMEOUT_S = 300  # only a server that hangs takes as long, however loaded the machine


def strict_json(data):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    def once(pairs):
        assert len({key for key, _ in pairs}) == len(pairs), f"a key comes twice: {pairs}"
        return dict(pairs)

    text = data.decode() if isinstance(data, bytes) else data  # strict UTF-8
    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def call(server, path, body, method="POST", headers=()):
    """Status, headers (lower case) and body of one request; `body` is an object or raw bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json", **dict(headers)})
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def refused(server, path, body, status=400):
    """The error of a request that must be refused."""
    got, _, answer = call(server, path, body)
    assert got == status, f"{got}, not {status}, for {str(body)[:300]}: {answer[:300]}"
    return strict_json(answer)["error"]


def ask_for(path, script, **fields):
    """A request body that makes the toy recite a script, greedily unless told otherwise."""
    said = {"messages": [{"role": "user", "content": f"go [[{script}]]"}]} if path == CHAT else {"prompt": f"[[{script}]]"}
    return {"model": "toy", **said, "temperature": 0, "max_tokens": 200, **fields}


class Choice:
    """What one choice said, in either mode."""

    def __init__(self):
        self.text = self.reasoning = self.finish = None
        self.calls, self.logprobs = [], []

    def add_text(self, text):
        if text is not None:
            self.text = (self.text or "") + text

    def seen(self):
        return {"text": self.text, "reasoning": self.reasoning, "finish": self.finish, "calls": self.calls, "logprobs": self.logprobs}


def logprob_items(path, logprobs):
    """One entry per token, in either API's form."""
    if not logprobs:
        return []
    if path == CHAT:
        return logprobs["content"] or []
    columns = [logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
    return [list(row) for row in zip(*columns, strict=True)]


def whole(server, path, body):
    """{index: Choice} and usage of an unstreamed answer."""
    status, _, answer = call(server, path, {**body, "stream": False})
    assert status == 200, f"{status} for {str(body)[:300]}: {answer[:500]}"
    reply = strict_json(answer)
    choices = {}
    assert [c["index"] for c in reply["choices"]] == list(range(len(reply["choices"])))
    for given in reply["choices"]:
        choice = choices[given["index"]] = Choice()
        message = given["message"] if path == CHAT else given
        choice.text = message["content"] if path == CHAT else message["text"]
        choice.reasoning = message.get("reasoning_content")
        choice.calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
        assert message.get("tool_calls") != [], "no calls means no list"
        choice.finish = given["finish_reason"]
        choice.logprobs = logprob_items(path, given.get("logprobs"))
    return choices, reply["usage"]


def events(answer):
    """The JSON events of a stream, which ends with exactly one [DONE]."""
    parts = answer.decode().split("\n\n")
    assert parts[-1] == "", "the stream ends behind an event"
    data = [part.removeprefix("data: ") for part in parts[:-1] if not part.startswith(":")]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    return [strict_json(part) for part in data[:-1]]


def add_calls(choice, delta):
    for part in delta.get("tool_calls") or []:
        if "id" in part:  # id, type and name come once, first
            assert part["index"] == len(choice.calls) and part["id"] and part["type"] == "function"
            choice.calls.append([part["function"]["name"], ""])
        else:
            assert "name" not in part["function"]
        assert part["index"] == len(choice.calls) - 1
        choice.calls[-1][1] += part["function"].get("arguments", "")


def streamed(server, path, body):
    """The same of a streamed answer."""
    status, headers, answer = call(server, path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert status == 200, f"{status} for {str(body)[:300]}: {answer[:500]}"
    assert headers["content-type"].startswith("text/event-stream")
    choices, usage = {}, None
    chunks = events(answer)
    assert len({chunk["id"] for chunk in chunks}) == 1
    for chunk in chunks:
        assert usage is None, "the usage comes last"
        if not chunk["choices"]:
            usage = chunk["usage"]
            continue
        assert chunk.get("usage") is None
        for given in chunk["choices"]:
            choice = choices.setdefault(given["index"], Choice())
            assert choice.finish is None, "nothing comes behind the finish reason"
            delta = given["delta"] if path == CHAT else given
            choice.add_text(delta.get("content") if path == CHAT else delta["text"])
            if (thought := delta.get("reasoning_content")) is not None:
                choice.reasoning = (choice.reasoning or "") + thought
            add_calls(choice, delta)
            choice.logprobs += logprob_items(path, given.get("logprobs"))
            choice.finish = given["finish_reason"]
    assert usage is not None and sorted(choices) == list(range(len(choices)))
    for choice in choices.values():
        assert choice.finish is not None, "each choice finishes"
        choice.calls = [tuple(made) for made in choice.calls]
    return choices, usage


def both(server, path, body):
    """The choices, in order, of a request asked for whole and as a stream, which must agree in everything; and the usage."""
    one, usage = whole(server, path, body)
    two, streamed_usage = streamed(server, path, body)
    prompts = body.get("prompt")
    many = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], (str, list)) else 1
    assert len(one) == len(two) == many * body.get("n", 1)
    for index, choice in one.items():
        other = two[index]
        if choice.text is None or not choice.text:
            other.text = other.text or choice.text  # a whole answer's "" or null is a stream without text
        assert other.seen() == choice.seen()
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage[name] for name in counts] == [streamed_usage[name] for name in counts]
    assert usage.get("completion_tokens_details") == streamed_usage.get("completion_tokens_details")
    return [one[index] for index in sorted(one)], usage
