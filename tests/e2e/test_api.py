# SPDX-License-Identifier: Apache-2.0
"""The OpenAI API, asked by the official client, judged against scripts."""

import json
import threading
import time

import openai
import pytest
from conftest import chat, complete

STOPPED = [
    ("hello", "Hello, world!", 5),
    ("fox", "The quick brown fox jumps", 5),
    ("emoji", "😊 done", 6),
    ("bye", "Bye", 2),
    ("quote", 'say "hi"\n\\back', 3),
    ("nothing", "", 1),
]


def joined(stream):
    """{index: (text, finish_reason)} of a chat stream; each index finishes once."""
    text, finish = {}, {}
    for chunk in stream:
        for choice in chunk.choices:
            text[choice.index] = text.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in finish
                finish[choice.index] = choice.finish_reason
    return {i: (text[i], finish.get(i)) for i in text}


@pytest.mark.parametrize("script, text, tokens", STOPPED)
def test_exact_answers(server, script, text, tokens):
    whole = chat(server, script)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == tokens
    assert joined(chat(server, script, stream=True)) == {0: (text, "stop")}
    completion = complete(server, f"[[{script}]]", max_tokens=50)
    assert completion.choices[0].text == text
    streamed = "".join(c.choices[0].text for c in complete(server, f"[[{script}]]", max_tokens=50, stream=True))
    assert streamed == text


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_half_characters(server, max_tokens):
    whole = chat(server, "emoji", max_tokens=max_tokens)
    assert whole.choices[0].message.content in ("", "\ufffd")
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == max_tokens
    assert joined(chat(server, "emoji", max_tokens=max_tokens, stream=True))[0][0] == whole.choices[0].message.content


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(server, include):
    expected = "The quick brown fox" if include else "The quick br"
    extra = {"include_stop_str_in_output": include}
    whole = chat(server, "fox", stop=["own fox"], extra_body=extra)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (expected, "stop")
    assert joined(chat(server, "fox", stop=["own fox"], stream=True, extra_body=extra)) == {0: (expected, "stop")}
    assert complete(server, "[[fox]]", stop="own fox", max_tokens=50, extra_body=extra).choices[0].text == expected


def test_end_tokens(server):
    ignored = chat(server, "bye", max_tokens=4, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert ignored.choices[0].message.content == "Bye<|im_end|><|im_end|><|im_end|>"
    assert ignored.choices[0].finish_reason == "length"


def test_usage(server):
    for options in (None, {}, {"include_usage": False}):
        more = {} if options is None else {"stream_options": options}
        assert all(chunk.usage is None for chunk in chat(server, "hello", stream=True, **more))
    chunks = list(chat(server, "hello", stream=True, stream_options={"include_usage": True}))
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    whole = chat(server, "hello").usage
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)
    with pytest.raises(openai.BadRequestError) as error:
        chat(server, "hello", stream_options={"include_usage": True})
    assert error.value.param == "stream_options"


def test_cached_tokens(server):
    prompt = "x" * 200 + "[[hello]]"
    first = complete(server, prompt, max_tokens=4).usage
    second = complete(server, prompt, max_tokens=4).usage
    assert first.prompt_tokens == second.prompt_tokens == 202
    assert second.prompt_tokens_details.cached_tokens >= 160
    salted = complete(server, prompt, max_tokens=4, extra_body={"cache_salt": "mine"}).usage
    assert salted.prompt_tokens_details.cached_tokens == 0


def test_logprobs(server):
    content = chat(server, "hello", logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [c.token for c in content] == ["Hello", ",", " wor", "ld!", "</s>"]
    for item in content:
        assert -0.01 < item.logprob <= 0
        assert len(item.top_logprobs) == 3
        assert item.top_logprobs[0].token == item.token
        assert bytes(item.bytes).decode() == item.token
    streamed = [item for chunk in chat(server, "hello", logprobs=True, top_logprobs=3, stream=True)
                for choice in chunk.choices if choice.logprobs for item in choice.logprobs.content]
    assert streamed == content
    tie = chat(server, "coin", logprobs=True, top_logprobs=2, max_tokens=1).choices[0]
    assert tie.message.content == " heads", "of equals, the lowest id"
    assert abs(tie.logprobs.content[0].logprob + 0.6931) < 0.01


def test_completion_logprobs_and_echo(server):
    choice = complete(server, "ab[[hello]]", echo=True, logprobs=1, max_tokens=2).choices[0]
    assert choice.text == "ab[[hello]]Hello,"
    assert choice.logprobs.tokens == ["<s>", "a", "b", "[[hello]]", "Hello", ","]
    assert choice.logprobs.token_logprobs[0] is None
    assert all(isinstance(value, float) and value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset == [0, 3, 4, 5, 14, 19]
    scored = complete(server, "Your answer: Yes", echo=True, logprobs=1, max_tokens=0)
    assert scored.choices[0].text == "Your answer: Yes"
    assert scored.choices[0].finish_reason == "length"
    assert scored.usage.completion_tokens == 0
    assert scored.choices[0].logprobs.token_logprobs[0] is None


def test_many_choices(server):
    whole = chat(server, "coin", n=8, max_tokens=6, extra_body={"temperature": 1.0, "seed": 7})
    assert [c.index for c in whole.choices] == list(range(8))
    texts = [c.message.content for c in whole.choices]
    assert len(set(texts)) > 1, "the choices differ"
    assert set(" ".join(texts).split()) == {"heads", "tails"}
    again = chat(server, "coin", n=8, max_tokens=6, extra_body={"temperature": 1.0, "seed": 7})
    assert [c.message.content for c in again.choices] == texts, "a seed repeats"
    stream = joined(chat(server, "coin", n=8, max_tokens=6, stream=True, extra_body={"temperature": 1.0, "seed": 7}))
    assert [stream[i] for i in range(8)] == [(t, "length") for t in texts]


def test_prompt_lists_and_bos(server):
    many = complete(server, ["[[hello]]", "[[fox]]"], max_tokens=20, n=1)
    assert [(c.index, c.text) for c in many.choices] == [(0, "Hello, world!"), (1, "The quick brown fox jumps")]
    ids = server.post("/tokenize", {"prompt": "a[[hello]]"})["tokens"]
    assert complete(server, ids, max_tokens=9).usage.prompt_tokens == len(ids)
    assert complete(server, "<s>a[[hello]]", max_tokens=9).usage.prompt_tokens == len(ids), "BOS is not doubled"
    assert complete(server, ids[1:], max_tokens=9).usage.prompt_tokens == len(ids) - 1, "ids are taken as they are"
    assert chat(server, "hello").usage.prompt_tokens == len(
        server.post("/tokenize", {"messages": [{"role": "user", "content": "go [[hello]]"}]})["tokens"])
    assert server.post("/detokenize", {"tokens": ids})["prompt"] == "<s>a[[hello]]"


def test_32_streams_at_once(server):
    results = {}

    def ask(number):
        script, text, _ = STOPPED[number % len(STOPPED)]
        results[number] = (joined(chat(server, script, stream=True))[0], (text, "stop"))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 32
    for got, expected in results.values():
        assert got == expected
    server.wait_metric("inferd_kv_pages_used", 0, 2)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_frees_the_pages(server, stream):
    before = server.metric('inferd_http_clients_left_total')
    if stream:
        reply = chat(server, "count", max_tokens=4000, stream=True)
        next(iter(reply))
        reply.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            chat(server, "count", max_tokens=4000, timeout=0.3)
    server.wait_metric("inferd_kv_pages_used", 0, 2)
    server.wait_metric("inferd_num_requests_running", 0, 2)
    assert server.metric("inferd_http_clients_left_total") >= before


def test_errors(server):
    with pytest.raises(openai.NotFoundError) as unknown:
        server.client.chat.completions.create(model="other", messages=[{"role": "user", "content": "a"}])
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    for name, value in {"temperature": -1, "top_p": 0, "n": 0, "max_tokens": 0, "seed": 2**64, "tools": [{"type": "function"}]}.items():
        with pytest.raises(openai.BadRequestError) as error:
            chat(server, "hello", extra_body={name: value})
        assert error.value.param.split("[")[0] == name
    with pytest.raises(openai.BadRequestError) as image:
        server.client.chat.completions.create(model="toy", messages=[{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}])
    assert image.value.param == "messages[0].content[1].type"
    with pytest.raises(openai.BadRequestError) as long:
        complete(server, "x" * 5000)
    assert long.value.code == "context_length_exceeded"


def test_models_and_metrics(server):
    models = server.client.models.list().data
    assert [m.id for m in models] == ["toy"]
    assert server.client.models.retrieve("toy").id == "toy"
    chat(server, "hello")
    assert server.metric("vllm:num_requests_waiting") == 0
    assert server.metric("vllm:generation_tokens_total") > 0
    assert server.metric("vllm:time_to_first_token_seconds_count") > 0


def test_health_while_busy(server):
    streams = [chat(server, "count", max_tokens=500, stream=True) for _ in range(16)]
    worst = 0
    for _ in range(50):
        begun = time.monotonic()
        assert server.status("/health") == 200
        worst = max(worst, time.monotonic() - begun)
    for stream in streams:
        stream.close()
    assert worst < 1.0, "a loaded machine is slow, but a prober gives up after a second"


def test_events_are_strict_json(server):
    with server.client.chat.completions.with_streaming_response.create(
            model="toy", messages=[{"role": "user", "content": "[[quote]]"}], stream=True) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"

    def refuse(constant):
        raise AssertionError(constant)

    for line in lines[:-1]:
        assert line.startswith("data: ")
        json.loads(line[6:], parse_constant=refuse)
