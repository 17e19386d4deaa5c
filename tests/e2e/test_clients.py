# SPDX-License-Identifier: Apache-2.0
"""Clients as people use them, unchanged, against the real model: anthropic, openai's responses, ollama, langchain, litellm, and from npm
openai and the AI SDK."""

import json
import os
import pathlib
import subprocess

import anthropic
import ollama
import openai
import pytest
from test_real_model import CACHE, RealServer

# litellm asks a host for its price list unless told to use its own copy.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

QUESTION = "What is the capital of France? Answer in one word."


@pytest.fixture(scope="module")
def real(inferd, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    server = RealServer(inferd, "qwen2.5-coder-0.5b", folder, "--threads", "2", "--files-dir", str(folder / "files"))
    try:
        yield server
        server.stop()
    finally:
        server.kill()


# ---- anthropic


@pytest.fixture(scope="module")
def claude(real):
    return anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0, timeout=60)


GREEDY = {"temperature": 0}  # sent as it is: the client has no argument for it


def asked(**more):
    return {"model": "toy", "max_tokens": 16, "messages": [{"role": "user", "content": QUESTION}], "extra_body": GREEDY, **more}


def ask(claude, **more):
    return claude.messages.create(**asked(**more))


def test_anthropic_answers(claude):
    message = ask(claude)
    assert "Paris" in message.content[0].text
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    counted = claude.messages.count_tokens(model="toy", messages=[{"role": "user", "content": QUESTION}])
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    assert 0 < usage.output_tokens <= 16
    assert ask(claude, max_tokens=1).stop_reason == "max_tokens"
    assert ask(claude, max_tokens=100_000).stop_reason == "end_turn"


def test_anthropic_stream_equals_the_answer(claude):
    for more in ({}, {"max_tokens": 1}, {"stop_sequences": ["ari"]}):
        whole = ask(claude, **more)
        with claude.messages.stream(**asked(**more)) as stream:
            texts = list(stream.text_stream)
            final = stream.get_final_message()
        assert "".join(texts) == whole.content[0].text == final.content[0].text
        assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
        assert final.usage.output_tokens == whole.usage.output_tokens
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "ari")


def test_anthropic_system_turns_and_prefill(claude):
    reply = ask(claude, system=[{"type": "text", "text": "You answer in whole sentences."}], messages=[
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
        {"role": "assistant", "content": "The capital of France is"}])
    assert reply.content[0].text.startswith(" Paris")


def test_anthropic_errors(claude):
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="nope", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as image:
        claude.messages.create(model="toy", max_tokens=1, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]}])
    assert image.value.body["error"]["type"] == "invalid_request_error"
    assert "messages[0].content[0].type" in image.value.body["error"]["message"]


# ---- openai: responses


def respond(real, text=QUESTION, **more):
    return real.client.responses.create(model="toy", input=text, **{"temperature": 0, "max_output_tokens": 16, **more})


def test_responses_stream_equals_the_answer(real):
    whole = respond(real)
    assert "Paris" in whole.output_text
    assert (whole.status, whole.error) == ("completed", None)
    events = list(respond(real, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:4]] == ["response.created", "response.in_progress", "response.output_item.added",
                                            "response.content_part.added"]
    assert [e.type for e in events[-4:]] == ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                                             "response.completed"]
    final = events[-1].response
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert deltas == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens
    with real.client.responses.stream(model="toy", input=QUESTION, temperature=0, max_output_tokens=16) as stream:
        assert stream.get_final_response().output_text == whole.output_text
    cut = respond(real, max_output_tokens=1)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_responses_are_kept_continued_and_deleted(real):
    first = respond(real, "My name is Zaphod. Greet me.", instructions="You are polite.", metadata={"turn": "1"})
    again = real.client.responses.retrieve(first.id)
    assert (again.output_text, again.metadata) == (first.output_text, {"turn": "1"})
    second = respond(real, "Repeat my name.", previous_response_id=first.id)
    assert "Zaphod" in second.output_text
    items = list(real.client.responses.input_items.list(second.id, order="asc"))
    assert [(i.role, i.content[0].text) for i in items] == [
        ("user", "My name is Zaphod. Greet me."), ("assistant", first.output_text), ("user", "Repeat my name.")]
    real.client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        real.client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        respond(real, previous_response_id=first.id)
    assert gone.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as background:
        respond(real, background=True)
    assert background.value.param == "background"


# ---- ollama


@pytest.fixture(scope="module")
def llama(real):
    return ollama.Client(host=real.url, timeout=60)


def test_ollama_chat(llama):
    asked = {"model": "toy", "messages": [{"role": "user", "content": QUESTION}], "options": {"temperature": 0, "num_predict": 16}}
    whole = llama.chat(**asked)
    assert "Paris" in whole.message.content
    assert (whole.done, whole.done_reason) == (True, "stop")
    parts = list(llama.chat(**asked, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].eval_count, parts[-1].prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    assert whole.total_duration >= whole.prompt_eval_duration > 0


def test_ollama_generate_and_models(llama):
    whole = llama.generate("toy", QUESTION, system="Be brief.", options={"temperature": 0, "num_predict": 1})
    assert (whole.done_reason, whole.eval_count) == ("length", 1)
    raw = llama.generate("toy", "The capital of France is", raw=True, options={"temperature": 0, "num_predict": 4})
    assert "Paris" in raw.response
    listed = llama.list().models[0]
    assert (listed.model, listed.details.format) == ("toy", "gguf")
    assert llama.show("toy:latest").capabilities[0] == "completion"
    with pytest.raises(ollama.ResponseError) as missing:
        llama.generate("nope", "x")
    assert missing.value.status_code == 404


# ---- frameworks


def test_langchain(real):
    from langchain_openai import ChatOpenAI
    for responses in (False, True):
        model = ChatOpenAI(model="toy", base_url=real.url + "/v1", api_key="none", temperature=0, max_tokens=16, max_retries=0,
                           use_responses_api=responses)
        whole = model.invoke(QUESTION)
        assert "Paris" in whole.text
        assert whole.usage_metadata["output_tokens"] > 0
        assert "".join(chunk.text for chunk in model.stream(QUESTION)) == whole.text


@pytest.mark.parametrize("provider, path", [("openai", "/v1"), ("anthropic", ""), ("ollama_chat", "")])
def test_litellm(real, provider, path):
    import litellm
    asked = {"model": f"{provider}/toy", "api_base": real.url + path, "api_key": "none", "temperature": 0, "max_tokens": 16,
             "messages": [{"role": "user", "content": QUESTION}]}
    whole = litellm.completion(**asked)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens > 0
    parts = list(litellm.completion(**asked, stream=True))
    assert "".join(p.choices[0].delta.content or "" for p in parts) == whole.choices[0].message.content


# ---- routers


def test_rendered_ids_are_what_runs(real):
    chat = {"model": "toy", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16}
    rendered = real.post("/v1/chat/completions/render", chat)
    text = real.post("/v1/completions", {"model": "toy", "prompt": [rendered["token_ids"]], "temperature": 0, "max_tokens": 16})
    assert text["choices"][0]["text"] == real.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    assert json.loads(real.get("/v1/models"))["data"][0]["max_model_len"] == 1024


# ---- npm


def test_npm_clients(real):
    """openai and @ai-sdk/openai-compatible from npm; `./dev e2e` installs them."""
    folder = CACHE / "npm-e2e"
    assert (folder / "node_modules").is_dir(), f"{folder} is missing: ./dev e2e makes it"
    script = folder / "clients.mjs"
    script.write_bytes((pathlib.Path(__file__).parent / "npm" / "clients.mjs").read_bytes())
    run = subprocess.run(["node", str(script), real.url + "/v1"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    texts = json.loads(run.stdout)
    assert len(texts) == 7
    assert set(texts.values()) == {texts["chat"]} and "Paris" in texts["chat"]
