# SPDX-License-Identifier: Apache-2.0
"""What other servers got wrong about text, tokens, sampling and choices (docs/conformance.md): each asked for whole and as a
stream, which must agree, of a toy that recites scripts."""

import concurrent.futures
import math
import pathlib
import random

import pytest
import tokenizers
import toy_model
from answers import CHAT, COMPLETIONS, ask_for, both, call, refused, streamed, whole
from conftest import Server

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]
LETTERS = "é€😊"  # of 2, 3 and 4 bytes, which the scripts "cut" and "emoji" make byte by byte


def enum_format(*values):
    return {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {"enum": list(values)}}}


@pytest.fixture
def start_toy(inferd, tmp_path):
    """start_toy(model, *flags): a server of another checkpoint; it must be alive and idle at the end."""
    servers = []

    def run(model, *flags):
        servers.append(Server(inferd, model, tmp_path, *flags))
        return servers[-1]

    yield run
    for server in servers:
        server.wait_metric("inferd_kv_pages_used", 0, 5)
        server.stop()


# ---- bytes and characters

@PATHS
@pytest.mark.parametrize("script", ["emoji", "cut"])
def test_no_half_characters_at_the_token_limit(server, path, script):
    """Case 01: a character cut by max_tokens is nothing or one U+FFFD at the very end, the same in both modes."""
    data = (LETTERS if script == "cut" else LETTERS[-1]).encode()
    for tokens in range(1, len(data) + 1):
        for more in ({}, {"tools": TOOLS}) if path == CHAT else ({},):
            (choice,), usage = both(server, path, ask_for(path, script, max_tokens=tokens, **more))
            done = data[:tokens].decode(errors="ignore")
            assert (choice.text or "").removesuffix("\ufffd") == done
            assert "\ufffd" not in (choice.text or "") or len(data[:tokens].decode(errors="ignore").encode()) < tokens
            assert choice.finish == "length" and usage["completion_tokens"] == tokens


@PATHS
def test_no_half_characters_under_a_grammar(server, path):
    """Case 01 with json_schema: the grammar forces the bytes of a character, max_tokens cuts within it."""
    data = f'"{LETTERS}"'.encode()
    for tokens in range(1, len(data) + 1):
        (choice,), usage = both(server, path, ask_for(path, "cut", max_tokens=tokens, response_format=enum_format(LETTERS)))
        assert (choice.text or "").removesuffix("\ufffd") == data[:tokens].decode(errors="ignore")
        assert (choice.finish, usage["completion_tokens"]) == ("length", tokens)
    (choice,), _ = both(server, path, ask_for(path, "cut", response_format=enum_format(LETTERS)))
    assert (choice.text, choice.finish) == (f'"{LETTERS}"', "stop")


@PATHS
def test_bytes_that_are_no_text_become_replacement_characters(server, path):
    """Case 01, generalised: bytes that no character begins with do not break the answer, its logprobs or its stream."""
    more = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    (choice,), _ = both(server, path, ask_for(path, "flaw", **more))
    assert (choice.text, choice.finish) == ("ok \ufffd\ufffd fine", "stop")


@pytest.mark.parametrize("files", ["", "model.gguf"])
def test_spaces_of_a_sentencepiece_vocabulary(start_toy, files):
    """Case 03: ids and texts are the reference's, with specials or without, and pieces of a stream join to the text at once."""
    server = start_toy(DATA / "llama" / files)
    reference = tokenizers.Tokenizer.from_file(str(DATA / "llama" / "tokenizer.json"))
    for text in ["text", " text", "  text", "\n text", "a  b   c", "<unk>text</s>", "<unk> text", "text </s> text", "\u2581text",
                 "😊 text\t x ", "</s>\n\n  x</s></s>", "   ", "x"]:
        expected = reference.encode(text, add_special_tokens=False).ids
        ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        assert ids == expected, text
        assert server.post("/tokenize", {"prompt": text})["tokens"] == [1, *ids]
        assert server.post("/detokenize", {"tokens": ids})["prompt"] == reference.decode(ids, skip_special_tokens=False)
        if not any(part in text for part in ("</s>", "<unk>", "\u2581")):
            assert server.post("/detokenize", {"tokens": ids})["prompt"] == text
        # What the model says to it is nonsense, but the same nonsense in pieces, at once, and from ids.
        more = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
        (choice,), _ = both(server, COMPLETIONS, {"prompt": text, **more})
        (again,), _ = both(server, COMPLETIONS, {"prompt": [[1, *ids]], **more})
        assert again.text == choice.text


def test_bos_comes_once_on_every_path(inferd, start_toy, toy):
    """Case 05: the ids of the prompt, as rendered and as used, hold one BOS with text and what was sent with ids."""
    server = start_toy(toy, "--trust-request-chat-template")
    bos = 1
    tokenize = lambda text: server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]  # noqa: E731
    plain = tokenize("a[[hello]]")
    assert bos not in plain
    for prompt, expected in [("a[[hello]]", [bos, *plain]), ("<s>a[[hello]]", [bos, *plain]), (plain, plain),
                             ([bos, *plain], [bos, *plain]), ([bos, bos, *plain], [bos, bos, *plain]), ([plain], plain)]:
        body = {"model": "toy", "prompt": prompt, "max_tokens": 20, "temperature": 0}
        (rendered,) = server.post("/v1/completions/render", body)
        assert rendered["token_ids"] == expected, prompt
        (choice,), usage = both(server, COMPLETIONS, {**body, "echo": True, "logprobs": 0})
        assert usage["prompt_tokens"] == len(expected)
        assert [row[0] for row in choice.logprobs][:len(expected)].count("<s>") == expected.count(bos)
    body = tokenize("x[[hello]]")
    for template in ["{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}", "<s>{{ messages[0].content }}"]:
        ask = {"messages": [{"role": "user", "content": "x[[hello]]"}], "chat_template": template, "max_tokens": 20, "temperature": 0}
        ids = server.post("/v1/chat/completions/render", ask)["token_ids"]
        assert ids == [bos, *body], template
        assert both(server, CHAT, ask)[1]["prompt_tokens"] == len(ids)
        bare = server.post("/v1/chat/completions/render", {**ask, "add_special_tokens": False})["token_ids"]
        assert bare == ([bos, *body] if "s>" in template or "bos" in template else body), "just what the template says"


# ---- where a reply ends

@PATHS
def test_stop_strings_are_found_wherever_tokens_part(server, path):
    """Case 11: every kind of stop string, over token borders or within a token, cuts the text at the same place in all modes."""
    drawn = random.Random(11)
    for script, text in [("fox", "The quick brown fox jumps"), ("emoji", "😊 done"), ("cut", f"{LETTERS} done"),
                         ("quote", 'say "hi"\n\\back')]:
        for number in range(12):
            begin = drawn.randrange(len(text))
            stops = [text[begin:begin + drawn.randint(1, 6)]] + drawn.choice([[], ["never"], [text[-2:], "nor this"]])
            end, stop = min((text.index(s) + len(s), s) for s in stops if s in text)
            first = min((s for s in stops if text[:end].endswith(s)), key=lambda s: -len(s))
            for include in (False, True):
                (choice,), _ = both(server, path, ask_for(path, script, stop=stops, include_stop_str_in_output=include))
                assert choice.text == (text[:end] if include else text[:end - len(first)]), (script, stops, include)
                assert choice.finish == "stop"
    assert both(server, path, ask_for(path, "fox", stop=["fox leaps", "q", "qu"][:1]))[0][0].text == "The quick brown fox jumps"


END_SOURCES = {  # sources of end tokens; which scripts stop: "hello" at </s>, "bye" at <|im_end|>, "over" at <|eot|>
    "a number each": ({"eos_token_id": "<|eot|>"}, {"eos_token_id": "<|im_end|>"}, {}, {"hello", "bye", "over"}),
    "a list in config.json": ({"eos_token_id": ["<|eot|>", "<|im_end|>"]}, {}, {"eos_token": {"content": "</s>"}},
                              {"hello", "bye", "over"}),
    "generation_config.json alone": ({"eos_token_id": None}, {"eos_token_id": ["</s>", "<|eot|>"]}, {"eos_token": None},
                                     {"hello", "over"}),
    "the tokenizer alone": ({"eos_token_id": None}, {}, {"eos_token": "<|im_end|>"}, {"bye"}),
}


def check_ends(server, stopping):
    for script, text, end in [("hello", "Hello, world!", "</s>"), ("bye", "Bye", "<|im_end|>"), ("over", "Over", "<|eot|>")]:
        for path in (CHAT, COMPLETIONS):
            (choice,), usage = both(server, path, ask_for(path, script, max_tokens=12))
            if script in stopping:
                assert (choice.text, choice.finish) == (text, "stop"), script
                assert usage["completion_tokens"] == {"hello": 5, "bye": 2, "over": 2}[script], "the end token counts"
            else:
                assert (choice.text, choice.finish, usage["completion_tokens"]) == (text, "length", 12), script
            (shown,), _ = both(server, path, ask_for(path, script, max_tokens=7, ignore_eos=True, skip_special_tokens=False))
            assert shown.text.startswith(text + end + end) and shown.finish == "length"


@pytest.mark.parametrize("source", END_SOURCES)
def test_end_tokens_of_every_source_stop(start_toy, tmp_path, source):
    """Case 13: the union of all end tokens stops, is counted and not shown; ignore_eos passes through it."""
    ids = toy_model.Toy().ids

    def to_ids(keys):
        one = lambda value: ids[value] if isinstance(value, str) else value  # noqa: E731
        return {k: [one(v) for v in value] if isinstance(value, list) else one(value) for k, value in keys.items()}

    config, generation, tokenizer, stopping = END_SOURCES[source]
    toy_model.make(tmp_path / "toy", to_ids(config), to_ids(generation), tokenizer)
    check_ends(start_toy(tmp_path / "toy"), stopping)


@pytest.mark.parametrize("ends", [{"eos": "</s>", "eot": "<|eot|>"}, {"eos": "<|eot|>", "eom": "</s>"}], ids=["eos, eot", "eos, eom"])
def test_end_tokens_of_a_gguf_stop(start_toy, tmp_path, ends):
    """Case 13 with GGUF's keys; <|im_end|> is known as an end token by its name there."""
    toy_model.make_gguf(tmp_path / "toy.gguf", ends)
    check_ends(start_toy(tmp_path / "toy.gguf"), {"hello", "bye", "over"})


def test_no_tokens_at_all(server):
    """Case 15: max_tokens 0 with echo scores the prompt; elsewhere, and of another kind, it is refused by name."""
    for prompt in ("Your answer: Yes", ["a", "Your answer: Yes"]):
        choices, usage = both(server, COMPLETIONS, {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0})
        assert [c.text for c in choices] == (prompt if isinstance(prompt, list) else [prompt])
        assert usage["completion_tokens"] == 0
        for choice in choices:
            assert choice.finish == "length" and choice.logprobs[0][1] is None
            assert all(row[1] <= 0 for row in choice.logprobs[1:])
    for path, values in [(CHAT, [0, -1, 1.5, "5", [], True, 2**63]), (COMPLETIONS, [-1, 1.5, "5", [], True, 2**63])]:
        for value in values:
            assert refused(server, path, ask_for(path, "hello", max_tokens=value))["param"] == "max_tokens", value
        assert both(server, path, ask_for(path, "hello", max_tokens=None))[0][0].text == "Hello, world!"


# ---- streams, logprobs, choices

@PATHS
def test_usage_comes_once_and_only_when_asked_for(server, path):
    """Case 17: stream_options absent, null, {} and false give no usage; true gives one chunk without choices, at the end."""
    for n in (1, 3):
        plain = {**ask_for(path, "coin", n=n, max_tokens=4), "stream": True}
        for options in ({}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
            status, _, answer = call(server, path, {**plain, **options})
            assert status == 200 and b'"usage":{' not in answer.replace(b" ", b"")
        _, usage = streamed(server, path, plain)  # checks the place of the one chunk
        assert usage["completion_tokens"] == 4 * n
    for stream in ({}, {"stream": False}):
        for options in ({}, {"include_usage": True}):
            error = refused(server, path, {**ask_for(path, "hello"), **stream, "stream_options": options})
            assert error["param"] == "stream_options"


@PATHS
def test_impossible_tokens_have_finite_logprobs(server, path):
    """Case 19: under a grammar, top_k 1 or allowed tokens, logprobs are numbers from -9999.0 to 0, never Infinity or NaN."""
    logprobs = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 20}
    echo = {} if path == CHAT else {"echo": True}
    for more in ({"response_format": enum_format("a", "b")}, {"top_k": 1, **echo}, {"allowed_token_ids": [70, 71]},
                 {"logit_bias": {"70": -100}}):
        (choice,), _ = both(server, path, ask_for(path, "hello", max_tokens=3, **logprobs, **more))
        assert len(choice.logprobs) >= 3
        for item in choice.logprobs:
            top = [t["logprob"] for t in item["top_logprobs"]] if path == CHAT else list((item[2] or {}).values())
            own = [item["logprob"]] if path == CHAT else [] if item[1] is None else [item[1]]
            assert all(isinstance(value, (int, float)) and -9999.0 <= value <= 0 and math.isfinite(value) for value in top + own)


@PATHS
def test_every_choice_comes_once(server, path):
    """Case 21: n choices of differing lengths, 50 times, each index once, in order, with one finish reason."""
    for seed in range(50):
        body = ask_for(path, "coin", n=8, temperature=1, seed=seed, max_tokens=6, stop=[" tails"])
        choices = list(whole(server, path, body)[0].values()) if seed % 5 else both(server, path, body)[0]
        assert len(choices) == 8
        for choice in choices:
            words = (choice.text or "").split()
            assert set(words) <= {"heads"} and choice.finish == ("length" if len(words) == 6 else "stop")
    lengths = {len((c.text or "").split()) for c in choices}
    assert len(lengths) > 1


def test_every_choice_comes_once_with_tools(server):
    """Case 21 with n = 2 and tools: each choice has its own calls."""
    tools = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}]
    for choice in both(server, CHAT, ask_for(CHAT, "calls", n=2, tools=tools))[0]:
        assert [name for name, _ in choice.calls] == ["get_time", "get_time"] and choice.finish == "tool_calls"


# ---- sampling

def expected_coin(bias, steps, prompt_count, presence=0.0, frequency=0.0, repetition=1.0):
    """What greedy sampling makes of " heads" (id lower, `bias` better) and " tails", whose raw logits are equal."""
    raw = 32 / math.sqrt(2)
    made, seen = {0: 0, 1: 0}, {0: prompt_count > 0, 1: False}
    words = []
    for _ in range(steps):
        logits = []
        for side in (0, 1):
            x = raw + (bias if side == 0 else 0)
            x = x / repetition if seen[side] or made[side] else x
            logits.append(x - (presence + frequency * made[side] if made[side] else 0))
        best = 0 if logits[0] >= logits[1] else 1
        made[best] += 1
        words.append(["heads", "tails"][best])
    return words


# Small enough that after 300 steps no other token is better than these two.
PENALTIES = [{"presence_penalty": 2}, {"frequency_penalty": 0.125}, {"presence_penalty": 2, "frequency_penalty": 0.0625},
             {"frequency_penalty": -2}, {"repetition_penalty": 1.5}, {"repetition_penalty": 0.8, "presence_penalty": 1.5}]


def coin_request(heads, penalties, steps):
    return {"model": "toy", "prompt": [[1] + [heads] * 50 + [toy_model.Toy().markers["coin"]]], "temperature": 0, "max_tokens": steps,
            "logit_bias": {str(heads): 1.3}, **penalties}


def expected_of(penalties, steps):
    short = {name.removesuffix("_penalty"): value for name, value in penalties.items()}
    return expected_coin(1.3, steps, 50, **short)


@pytest.mark.parametrize("penalties", [*PENALTIES, {"frequency_penalty": 2}, {"presence_penalty": 2, "frequency_penalty": 2}], ids=str)
def test_penalties_count_what_they_should(server, penalties):
    """Case 23: presence and frequency count what was generated, repetition the prompt too."""
    heads = toy_model.Toy().vocabulary.piece(" heads")
    (choice,), _ = both(server, COMPLETIONS, coin_request(heads, penalties, 18))
    assert choice.text.split() == expected_of(penalties, 18)
    if "repetition_penalty" not in penalties:
        assert choice.text.split()[0] == "heads", "the 50 of the prompt do not count"


def test_penalties_survive_preemption(start_toy, toy):
    """Case 23 after preemptions: a cache for two of six requests changes no token."""
    server = start_toy(toy, "--kv-cache-bytes", str(3 << 20), "--max-model-len", "448")
    heads, steps = toy_model.Toy().vocabulary.piece(" heads"), 300
    for mode in (whole, streamed):
        with concurrent.futures.ThreadPoolExecutor(len(PENALTIES)) as pool:
            with server.paused_workers():  # until all are there
                asked = [pool.submit(mode, server, COMPLETIONS, coin_request(heads, penalties, steps)) for penalties in PENALTIES]
                server.wait_requests(len(PENALTIES))
            for penalties, answer in zip(PENALTIES, asked, strict=True):
                assert answer.result()[0][0].text.split() == expected_of(penalties, steps), penalties
    assert server.metric("inferd_num_preemptions_total") > 0


@PATHS
def test_greedy_ignores_the_other_knobs(server, path):
    """Case 69: at temperature 0, top_p, top_k, min_p and seed change nothing; null is the default."""
    bias = {"logit_bias": {str(toy_model.Toy().vocabulary.piece(" tails")): 0.01}}  # the higher id is the better one, just so
    for knobs in ({}, {"top_p": 0.5}, {"top_k": 40}, {"top_k": 1, "min_p": 0.2}, {"seed": 7, "top_p": 0.01, "min_p": 1},
                  dict.fromkeys(["top_p", "top_k", "min_p", "seed", "repetition_penalty", "stop", "n"])):
        body = ask_for(path, "coin", max_tokens=20, **bias, **knobs)
        if knobs.get("n", 1) is None:
            assert [c.text for c in whole(server, path, body)[0].values()] == [" tails" * 20]
            continue
        assert both(server, path, body)[0][0].text == " tails" * 20, knobs


def test_request_beats_model_beats_built_in(start_toy, tmp_path):
    """Case 69: a model whose defaults lack a temperature; what a request says, or null, over what they say."""
    ids = toy_model.Toy().ids
    toy_model.make(tmp_path / "toy", generation_config={"eos_token_id": ids["</s>"], "top_p": 0.95, "top_k": 1})
    server = start_toy(tmp_path / "toy")

    def effective(**fields):
        made = server.post("/v1/chat/completions/render", ask_for(CHAT, "coin", **fields))["sampling_params"]
        return made["temperature"], made["top_p"], made["top_k"]

    assert effective(temperature=None) == (1, 0.95, 1)
    assert effective(temperature=None, top_p=None, top_k=None) == (1, 0.95, 1)
    assert effective(temperature=0.5, top_p=0.25, top_k=3) == (0.5, 0.25, 3)
    assert effective()[0] == 0
    # top_k 1 of the model holds unless the request says otherwise.
    plain = {"temperature": 1, "seed": 3, "max_tokens": 20}
    assert both(server, CHAT, ask_for(CHAT, "coin", **plain))[0][0].text == " heads" * 20
    assert set(both(server, CHAT, ask_for(CHAT, "coin", **plain, top_k=-1))[0][0].text.split()) == {"heads", "tails"}
