# SPDX-License-Identifier: Apache-2.0
"""Tools and structured output through clients as people use them, against the real model: anthropic, openai, ollama, langchain, and from
npm openai and the AI SDK. The model is small, so calls are forced where what comes back must be one."""

import json
import pathlib
import subprocess
from typing import Literal

import anthropic
import jsonschema
import ollama
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from test_real_model import CACHE, RealServer

QUESTION = "What is the weather in Paris?"
TIMEOUT_S = 120
SUNNY = "It is sunny with 21 degrees."


class Weather(BaseModel):
    """Weather of a city"""

    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)
    unit: Literal["celsius", "fahrenheit"]
    days: Literal[1, 2, 3]


class Degrees(BaseModel):
    model_config = ConfigDict(extra="forbid")
    degrees: int = Field(ge=0, le=99)


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]},
                                               "days": {"enum": [1, 2, 3]}},
              "required": ["city", "unit", "days"], "additionalProperties": False}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
        "additionalProperties": False}
# The answer to a result, so that the number in it must be copied.
DEGREES = Degrees.model_json_schema()
SCHEMAS = {"get_weather": PARAMETERS, "get_time": CITY}
TEXTS = {"get_weather": "Weather of a city", "get_time": "Local time of a city"}


@pytest.fixture(scope="module")
def real(inferd, tmp_path_factory):
    server = RealServer(inferd, "qwen2.5-coder-0.5b", tmp_path_factory.mktemp("tools"), "--threads", "2")
    try:
        yield server
        server.stop()
    finally:
        server.kill()


# ---- anthropic


CLAUDE_TOOLS = [{"name": name, "description": TEXTS[name], "input_schema": SCHEMAS[name]} for name in SCHEMAS]


@pytest.fixture(scope="module")
def claude(real):
    return anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0, timeout=TIMEOUT_S)


def claude_asks(**more):
    return {"model": "toy", "max_tokens": 100, "tools": CLAUDE_TOOLS, "extra_body": {"temperature": 0},
            "messages": [{"role": "user", "content": QUESTION}], **more}


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_time"}])
def test_anthropic_forced_calls(claude, choice):
    whole = claude.messages.create(**claude_asks(tool_choice=choice))
    assert whole.stop_reason == "tool_use"
    [call] = whole.content
    assert call.type == "tool_use" and call.name == choice.get("name", call.name)
    jsonschema.validate(call.input, SCHEMAS[call.name])
    with claude.messages.stream(**claude_asks(tool_choice=choice)) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert json.loads("".join(pieces)) == call.input
    assert len(pieces) > 1
    assert [(block.type, block.name, block.input) for block in final.content] == [("tool_use", call.name, call.input)]
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)


def test_anthropic_round_of_tool_use(claude):
    first = claude.messages.create(**claude_asks(tool_choice={"type": "tool", "name": "get_weather"}))
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.content[0].id, "content": SUNNY}]}]
    counted = claude.messages.count_tokens(model="toy", tools=CLAUDE_TOOLS, messages=messages)
    second = claude.messages.create(**claude_asks(messages=messages))
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == counted.input_tokens
    assert counted.input_tokens > claude.messages.count_tokens(model="toy", messages=messages).input_tokens + 50
    last = claude.messages.create(**claude_asks(messages=messages, tool_choice={"type": "none"}, output_config={
        "format": {"type": "json_schema", "schema": DEGREES}}))
    assert last.stop_reason == "end_turn"
    assert json.loads(last.content[0].text) == {"degrees": 21}


def test_anthropic_parses_a_model(claude):
    asked = claude_asks()
    del asked["tools"]
    parsed = claude.messages.parse(**asked, output_format=Weather).parsed_output
    assert isinstance(parsed, Weather) and "Paris" in parsed.city


def test_anthropic_refuses_tools_of_its_own_makers(claude):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(**claude_asks(tools=[{"type": "web_search_20250305", "name": "web_search"}]))
    assert "tools[0].type" in error.value.body["error"]["message"]


# ---- openai: chat


def test_chat_parses_a_model(real):
    asked = {"model": "toy", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 100}
    parsed = real.client.chat.completions.parse(**asked, response_format=Weather).choices[0].message.parsed
    assert isinstance(parsed, Weather) and "Paris" in parsed.city
    with real.client.chat.completions.stream(**asked, response_format=Weather) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    tool = openai.pydantic_function_tool(Weather)
    call = real.client.chat.completions.parse(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert isinstance(call.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)


# ---- openai: responses


FUNCTIONS = [{"type": "function", "name": name, "description": TEXTS[name], "parameters": SCHEMAS[name], "strict": True}
             for name in SCHEMAS]


def respond(real, asked=QUESTION, **more):
    return real.client.responses.create(model="toy", input=asked,
                                        **{"temperature": 0, "max_output_tokens": 100, "tools": FUNCTIONS, **more})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_time"}])
def test_responses_forced_calls(real, choice):
    more = {"tool_choice": choice, "parallel_tool_calls": False}
    whole = respond(real, **more)
    [call] = whole.output
    assert call.type == "function_call" and call.call_id
    assert choice == "required" or call.name == "get_time"
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    events = list(respond(real, stream=True, **more))
    types = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert types[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert types[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert "".join(deltas) == events[-3].arguments == call.arguments
    final = events[-1].response
    assert [(item.name, item.arguments) for item in final.output] == [(call.name, call.arguments)]
    assert final.tools == whole.tools


def test_responses_round_of_tool_use(real):
    first = respond(real, tool_choice={"type": "function", "name": "get_weather"})
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": SUNNY}
    more = {"tool_choice": "none", "text": {"format": {"type": "json_schema", "name": "degrees", "schema": DEGREES}}}
    second = respond(real, [result], previous_response_id=first.id, **more)
    assert json.loads(second.output_text) == {"degrees": 21}
    whole = respond(real, [{"role": "user", "content": QUESTION}, *first.output, result], store=False, **more)
    assert whole.output_text == second.output_text
    assert whole.usage.input_tokens == second.usage.input_tokens


def test_responses_parse_a_model(real):
    asked = {"model": "toy", "input": QUESTION, "temperature": 0, "max_output_tokens": 100}
    parsed = real.client.responses.parse(**asked, text_format=Weather).output_parsed
    assert isinstance(parsed, Weather) and "Paris" in parsed.city
    with real.client.responses.stream(**asked, text_format=Weather) as stream:
        assert stream.get_final_response().output_parsed == parsed
    any_json = real.client.responses.create(**asked, text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(any_json.output_text), dict)
    with pytest.raises(openai.BadRequestError) as error:
        respond(real, tools=[{"type": "web_search"}])
    assert error.value.param == "tools[0].type"


# ---- ollama


OLLAMA_TOOLS = [{"type": "function", "function": {"name": name, "description": TEXTS[name], "parameters": SCHEMAS[name]}}
                for name in SCHEMAS]


@pytest.fixture(scope="module")
def llama(real):
    return ollama.Client(host=real.url, timeout=TIMEOUT_S)


def test_ollama_calls_and_results(inferd, tmp_path_factory):
    # Ollama's API cannot force a call. This model writes one by itself, without the marks of its template: so it is read.
    server = RealServer(inferd, "qwen2.5-coder-0.5b", tmp_path_factory.mktemp("bare"), "--threads", "2",
                        "--tool-call-parser", "llama3_json")
    try:
        llama = ollama.Client(host=server.url, timeout=TIMEOUT_S)
        messages = [{"role": "user", "content": "What time is it in Paris?"}]
        asked = {"model": "toy", "options": {"temperature": 0, "num_predict": 100}}
        whole = llama.chat(**asked, messages=messages, tools=OLLAMA_TOOLS)
        [call] = whole.message.tool_calls
        assert call.function.name == "get_time"
        jsonschema.validate(call.function.arguments, CITY)
        parts = list(llama.chat(**asked, messages=messages, tools=OLLAMA_TOOLS, stream=True))
        assert [c.function for part in parts for c in part.message.tool_calls or []] == [call.function]
        assert "".join(part.message.content for part in parts) == whole.message.content == ""
        messages += [whole.message, {"role": "tool", "tool_name": "get_time", "content": "It is 12:47."}]
        times = {"type": "object", "properties": {"time": {"enum": ["09:12", "12:47", "18:30"]}}, "required": ["time"],
                 "additionalProperties": False}
        assert json.loads(llama.chat(**asked, messages=messages, format=times).message.content) == {"time": "12:47"}
        assert "tools" in llama.show("toy").capabilities
        server.stop()
    finally:
        server.kill()


def test_ollama_formats(llama):
    options = {"temperature": 0, "num_predict": 100}
    asked = {"model": "toy", "messages": [{"role": "user", "content": QUESTION}], "options": options}
    chat = llama.chat(**asked, format=Weather.model_json_schema())
    parsed = Weather.model_validate_json(chat.message.content)
    assert "Paris" in parsed.city
    parts = llama.chat(**asked, format=Weather.model_json_schema(), stream=True)
    assert "".join(part.message.content for part in parts) == chat.message.content
    generated = llama.generate("toy", QUESTION, format=Weather.model_json_schema(), options=options)
    assert isinstance(Weather.model_validate_json(generated.response), Weather)
    prompt = "Write a small JSON object with a single key."
    assert isinstance(json.loads(llama.generate("toy", prompt, format="json", options=options).response), dict)


# ---- frameworks


@pytest.mark.parametrize("responses", [False, True])
def test_langchain(real, responses):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="toy", base_url=real.url + "/v1", api_key="none", temperature=0, max_tokens=100, max_retries=0,
                       use_responses_api=responses)
    bound = model.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False)
    reply = bound.invoke(QUESTION)
    [call] = reply.tool_calls
    assert isinstance(Weather(**call["args"]), Weather)
    streamed = None
    for chunk in bound.stream(QUESTION):
        streamed = chunk if streamed is None else streamed + chunk
    assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [(call["name"], call["args"])]
    last = model.with_structured_output(Degrees, method="json_schema").invoke(
        [HumanMessage(QUESTION), reply, ToolMessage(SUNNY, tool_call_id=call["id"])])
    assert last.degrees == 21
    for method in ("json_schema", "function_calling"):
        parsed = model.with_structured_output(Weather, method=method).invoke(QUESTION)
        assert isinstance(parsed, Weather) and "Paris" in parsed.city


# ---- npm


def test_npm_clients(real):
    """openai and @ai-sdk/openai-compatible from npm; `./dev e2e` installs them."""
    folder = CACHE / "npm-e2e"
    assert (folder / "node_modules").is_dir(), f"{folder} is missing: ./dev e2e makes it"
    script = folder / "tools.mjs"
    script.write_bytes((pathlib.Path(__file__).parent / "npm" / "tools.mjs").read_bytes())
    run = subprocess.run(["node", str(script), real.url + "/v1"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    values = json.loads(run.stdout)
    assert len(values) == 8
    for value in values.values():
        jsonschema.validate(value, PARAMETERS)
