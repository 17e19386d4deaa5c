# SPDX-License-Identifier: Apache-2.0
"""Parameters beyond OpenAI's over the real binary: what they report agrees, and what they steer is the same in every layout."""

import concurrent.futures

import pytest
from conftest import chat, complete

SAMPLERS = {"temperature": 1.3, "seed": 11, "dry_multiplier": 0.8, "dry_sequence_breakers": [" two"], "xtc_probability": 0.5,
            "xtc_threshold": 0.05, "typical_p": 0.9, "dynatemp_range": 0.4}


def ask(server, path, **fields):
    return server.post(path, {"model": "toy", "temperature": 0, **fields})


def texts(server, **fields):
    body = {"model": "toy", "prompt": ["[[count]]", "a", "[[coin]]"], "max_tokens": 24, "n": 2, **fields}
    return [choice["text"] for choice in server.post("/v1/completions", body)["choices"]]


def test_prompt_logprobs_are_those_of_echo(server):
    prompt = "ab[[hello]]"
    echoed = complete(server, prompt, echo=True, logprobs=3, max_tokens=1).choices[0].logprobs
    scored = ask(server, "/v1/completions", prompt=prompt, prompt_logprobs=3, max_tokens=1)["choices"][0]["prompt_logprobs"]
    assert scored[0] is None
    ids = server.post("/tokenize", {"prompt": prompt})["tokens"]
    assert len(scored) == len(ids)
    for position, (token, item) in enumerate(zip(ids, scored)):
        if position == 0:
            continue
        own = item[str(token)]
        assert own["decoded_token"] == echoed.tokens[position]
        assert abs(own["logprob"] - echoed.token_logprobs[position]) < 1e-6
        assert len(item) in (3, 4), "the best three, and the prompt's own if it is none of them"
        assert sorted(x["rank"] for x in item.values())[:3] == [1, 2, 3]
    both = ask(server, "/v1/completions", prompt=prompt, prompt_logprobs=1, echo=True, logprobs=0, max_tokens=1, n=3)
    assert [c["prompt_logprobs"] for c in both["choices"]] == [both["choices"][0]["prompt_logprobs"]] * 3
    assert all(len(c["logprobs"]["tokens"]) == len(ids) + 1 for c in both["choices"])


def test_token_ids(server):
    messages = [{"role": "user", "content": "go [[hello]]"}]
    whole = ask(server, "/v1/chat/completions", messages=messages, return_token_ids=True)
    assert whole["prompt_token_ids"] == server.post("/tokenize", {"messages": messages})["tokens"]
    ids = whole["choices"][0]["token_ids"]
    assert len(ids) == whole["usage"]["completion_tokens"]
    assert server.post("/detokenize", {"tokens": ids})["prompt"].startswith("Hello, world!")
    streamed = [i for chunk in chat(server, "hello", stream=True, extra_body={"return_token_ids": True})
                for i in chunk.choices[0].model_extra.get("token_ids", [])]
    assert streamed == ids


def test_truncation(server):
    long = "x" * 9000 + "[[hello]]"
    answer = ask(server, "/v1/completions", prompt=long, truncate_prompt_tokens=-1, max_tokens=8, echo=False)
    assert answer["choices"][0]["text"] == "Hello, world!"
    assert answer["usage"]["prompt_tokens"] == 4096 - 8
    assert ask(server, "/v1/completions", prompt=long, truncate_prompt_tokens=50)["usage"]["prompt_tokens"] == 50


def test_allowed_tokens_within_a_grammar(server):
    x, y = (server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][0] for text in "xy")
    made = ask(server, "/v1/completions", prompt="a", guided_regex="[xyz]{1,6}", allowed_token_ids=[x, y], max_tokens=20,
               temperature=3, n=8, seed=1)
    for choice in made["choices"]:
        assert set(choice["text"]) <= set("xy") and 1 <= len(choice["text"]) <= 6
        assert choice["finish_reason"] == "stop"


def test_continuous_usage_and_timings(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(server, "hello", stream=True, stream_options=options, extra_body={"timings_per_token": True}))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 5
    timings = chunks[-1].model_extra["timings"]
    assert timings["predicted_n"] == 5 and timings["prompt_ms"] > 0


def test_a_thinking_budget_ends_the_reasoning(start):
    server = start("--reasoning-parser", "think")
    ask = [{"role": "user", "content": "go [[ponder]]"}]

    def run(**fields):
        return server.post("/v1/chat/completions", {"model": "toy", "messages": ask, "max_tokens": 60, "temperature": 0, **fields})

    thoughts = run()["choices"][0]["message"]["reasoning"].split()
    assert len(thoughts) == 24
    marker = len(server.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False})["tokens"])
    for budget in (0, 1, 7, 23):
        whole = run(thinking_token_budget=budget)
        message = whole["choices"][0]["message"]
        assert message.get("reasoning", "").split() == thoughts[:budget]
        assert "think>" not in message["content"]
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + marker
        assert whole["usage"]["completion_tokens"] > 2 + budget + marker, "it goes on behind its thoughts"
        stream = server.client.chat.completions.create(model="toy", messages=ask, max_tokens=60, temperature=0, stream=True,
                                                       extra_body={"thinking_token_budget": budget})
        parts = [chunk.choices[0].delta for chunk in stream]
        assert "".join(p.model_extra.get("reasoning", "") or "" for p in parts) == message.get("reasoning", "")
        assert "".join(p.content or "" for p in parts) == message["content"]
    assert run(thinking_token_budget=100)["choices"][0]["message"]["reasoning"].split() == thoughts
    assert "reasoning" not in run(reasoning_effort="none")["choices"][0]["message"]


def test_samplers_repeat_in_every_layout(server, start):
    alone = texts(server, **SAMPLERS)
    assert texts(server, **SAMPLERS) == alone
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: texts(server, **SAMPLERS), range(8))) == [alone] * 8, "whoever else is in the batch"
    assert texts(server, **{**SAMPLERS, "dry_multiplier": 0, "xtc_probability": 0, "typical_p": 1, "dynatemp_range": 0}) != alone
    split = start("--tp", "2", "--pp", "2")
    assert texts(split, **SAMPLERS) == alone


def test_dry_breaks_the_loop(server):
    looping = complete(server, "[[count]]", max_tokens=40).choices[0].text
    assert looping.count(" one two three four five") == 8
    broken = complete(server, "[[count]]", max_tokens=40, extra_body={"dry_multiplier": 5, "dry_allowed_length": 2}).choices[0].text
    assert broken.count(" one two three four five") < 3


def test_a_quiet_user_is_not_held_up_by_a_busy_one(start):
    server = start("--max-num-seqs", "1")
    finished = []

    def run(user, max_tokens):
        server.post("/v1/completions", {"model": "toy", "prompt": "[[count]]", "max_tokens": max_tokens, "user": user})
        finished.append(user)

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        futures = [pool.submit(run, "first", 4000)]
        server.wait_metric("inferd_num_requests_running", 1, 20)
        with server.paused_workers():  # it runs until the others are there
            futures += [pool.submit(run, "busy", 20) for _ in range(30)]
            server.wait_metric("inferd_num_requests_waiting", 30, 20)
            futures.append(pool.submit(run, "quiet", 20))
            server.wait_metric("inferd_num_requests_waiting", 31, 20)
        for future in futures:
            future.result(timeout=60)
    # The first and one or two of the busy user's come before it; the client's threads may note some more before it.
    assert finished.index("quiet") <= 10, finished


GUESSING = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": false}')


@pytest.mark.parametrize("flags", [(), ("--tp", "2"), ("--pp", "2", "--dp", "2")])
def test_guessing_ahead_changes_no_token(server, start, flags):
    guessing = start(*GUESSING, *flags, "--threads", "2")
    sampled = {"temperature": 1.1, "seed": 5, "presence_penalty": 0.4, "frequency_penalty": 0.3}
    for fields in ({"temperature": 0}, sampled, SAMPLERS, {"temperature": 0, "stop": [" four"]}, {"temperature": 0, "logprobs": 2}):
        assert texts(guessing, **fields) == texts(server, **fields)
    assert complete(guessing, "[[count]]", max_tokens=30).choices[0].text == (" one two three four five" * 6)
    drafts, guessed, right = (guessing.metric(f"inferd_spec_decode_num_{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens"))
    assert 0 < drafts <= guessed <= 4 * drafts
    assert 20 < right <= guessed
    assert texts(guessing, temperature=0, num_speculative_tokens=0) == texts(server, temperature=0)
    assert guessing.metric("inferd_spec_decode_num_drafts_total") == drafts, "a request may ask for none"
    guessing.stop()


def test_guessing_begins_when_it_pays(start):
    server = start("--speculative-config", '{"method": "ngram"}')
    complete(server, "[[hello]]", max_tokens=12)
    assert server.metric("inferd_spec_decode_num_drafts_total") == 0
    text = complete(server, "[[count]]", max_tokens=100).choices[0].text
    assert text == " one two three four five" * 20
    assert server.metric("inferd_spec_decode_num_accepted_tokens_total") > 50
    server.stop()
