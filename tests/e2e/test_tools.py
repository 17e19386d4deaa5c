# SPDX-License-Identifier: Apache-2.0
"""Tool calls of a small real model, asked for by the official client, streamed and not."""

import json

import jsonschema
import openai
import pytest
from conftest import Server
from test_real_model import CACHE, FILES

MODEL = "qwen2.5-coder-0.5b"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]},
                                               "days": {"type": "integer", "minimum": 1, "maximum": 9}},
              "required": ["city", "unit", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "get_time", "description": "Local time of a city", "parameters": {
             "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}}]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def qwen(inferd, tmp_path_factory):
    path = CACHE / "models" / FILES[MODEL]
    assert path.exists(), f"{path} is missing: ./dev model {MODEL}"
    server = Server(inferd, path, tmp_path_factory.mktemp("qwen"), "--max-model-len", "2048", "--kv-cache-bytes", str(256 << 20))
    yield server
    server.stop()


def ask(server, **more):
    return server.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=TOOLS, max_tokens=200, **more)


def joined(stream):
    """[(name, arguments)], content and finish reason of a stream; ids and names come once, first."""
    calls, content, finish = [], None, None
    for chunk in stream:
        choice = chunk.choices[0]
        content = content if choice.delta.content is None else (content or "") + choice.delta.content
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls) and call.type == "function"
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
        finish = choice.finish_reason or finish
    return [tuple(call) for call in calls], content, finish


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_forced_calls_are_valid(qwen, choice, temperature):
    for seed in range(1 if temperature == 0 else 5):
        more = {"tool_choice": choice, "parallel_tool_calls": False, "seed": seed, "temperature": temperature}
        whole = ask(qwen, **more).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert whole.message.content is None
        assert len(whole.message.tool_calls) == 1
        function = whole.message.tool_calls[0].function
        assert choice == "required" or function.name == "get_time"
        jsonschema.validate(json.loads(function.arguments), SCHEMAS[function.name])
        assert joined(ask(qwen, stream=True, **more)) == ([(function.name, function.arguments)], None, "tool_calls")


def test_a_call_and_its_result_make_a_conversation(qwen):
    call = ask(qwen, tool_choice="required", parallel_tool_calls=False, temperature=0).choices[0].message
    messages = [{"role": "user", "content": "What is the weather in Paris?"}, call.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "21 degrees and sunny"}]
    reply = qwen.client.chat.completions.create(model="toy", messages=messages, tools=TOOLS, tool_choice="none", temperature=0,
                                                max_tokens=60)
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.content


def test_an_impossible_schema_is_named(qwen):
    tools = TOOLS + [{"type": "function", "function": {"name": "bad", "parameters": {
        "type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string", "pattern": "(?<=x)y"}}}}}}}]
    with pytest.raises(openai.BadRequestError) as error:
        qwen.client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "hi"}], tools=tools,
                                            tool_choice="required")
    assert error.value.body["param"] == "tools[2].function.parameters"
    assert "/tools/2/function/parameters/properties/a/properties/b/pattern" in error.value.body["message"]
