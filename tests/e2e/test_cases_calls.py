# SPDX-License-Identifier: Apache-2.0
"""What other servers got wrong about tool calls and schemas (docs/conformance.md), whole and streamed alike. The toy recites
replies that hold calls, so that a test knows what the model would have said."""

import concurrent.futures
import json

import jsonschema
import pytest
from answers import CHAT, COMPLETIONS, ask_for, both, refused, streamed, whole
from test_templates import reference

WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "unit", "days"], "properties": {
    "city": {"type": "string", "maxLength": 16}, "unit": {"enum": ["celsius", "fahrenheit"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 9}}}
TIME = {"type": "object", "additionalProperties": False, "required": ["city"], "properties": {
    "city": {"type": "string", "maxLength": 12}}}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
SAID = {"city": 'Köln "{}" 😊 Ж', "unit": "celsius", "days": 3}  # the script "call"


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def tools_of(**more):
    return [tool(name, schema, **more) for name, schema in SCHEMAS.items()]


def named(name):
    return {"type": "function", "function": {"name": name}}


def check_calls(choice):
    """Every call is valid, and the finish reason says calls exactly when there are some and the reply was not cut."""
    for name, arguments in choice.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    if choice.finish != "length":
        assert choice.finish == ("tool_calls" if choice.calls else "stop")


# ---- calls

def test_arguments_streamed_are_the_arguments(server):
    """Case 29: nested quotes, braces within strings, escapes and cut characters: joined deltas are the whole arguments."""
    for more in ({}, {"parallel_tool_calls": False}, {"logprobs": True, "top_logprobs": 1}, {"n": 2}):
        for choice in both(server, CHAT, ask_for(CHAT, "call", tools=tools_of(), **more))[0]:
            assert [name for name, _ in choice.calls] == ["get_weather"]
            assert json.loads(choice.calls[0][1]) == SAID
            assert choice.text == "Let me look." and choice.finish == "tool_calls"
    (choice,), _ = both(server, CHAT, ask_for(CHAT, "calls", tools=tools_of()))
    assert [(name, json.loads(arguments)["city"]) for name, arguments in choice.calls] == [("get_time", "Rome"), ("get_time", "Bern")]
    assert choice.text is None


def test_arguments_cut_anywhere_stay_consistent(server):
    """Case 29 at every token limit: what was streamed is what the whole answer has, finish_reason is `length`."""
    count = both(server, CHAT, ask_for(CHAT, "call", tools=tools_of()))[1]["completion_tokens"]
    whole_arguments = both(server, CHAT, ask_for(CHAT, "call", tools=tools_of()))[0][0].calls[0][1]
    for tokens in range(1, count):
        (choice,), usage = both(server, CHAT, ask_for(CHAT, "call", tools=tools_of(), max_tokens=tokens))
        assert (choice.finish, usage["completion_tokens"]) == ("length", tokens)
        assert all(whole_arguments.startswith(arguments.rstrip("\ufffd")) for _, arguments in choice.calls)


@pytest.mark.parametrize("script", ["hello", "call", "calls", "kelvin", "half"])
@pytest.mark.parametrize("choice", ["absent", "auto", "none", "required", "get_time", "get_weather"])
def test_what_tool_choice_promises(server, script, choice):
    """Case 31: the whole product of choices and replies; calls are forced, free or absent as was said, in both modes."""
    fields = {} if choice == "absent" else {"tool_choice": named(choice) if choice in SCHEMAS else choice}
    for parallel in (True, False):
        (made,), _ = both(server, CHAT, ask_for(CHAT, script, tools=tools_of(), parallel_tool_calls=parallel, max_tokens=400, **fields))
        called = [name for name, _ in made.calls]
        if choice in ("absent", "auto"):
            expected = {"hello": [], "half": [], "call": ["get_weather"], "kelvin": ["get_weather"], "calls": ["get_time"] * 2}[script]
            assert called == (expected if parallel else expected[:1])
            assert made.finish == ("tool_calls" if called else "stop")
            if not called:
                assert made.text.startswith({"hello": "Hello, world!", "half": "Well: <tool_call>"}[script])
        elif choice == "none":
            assert called == [] and made.finish == "stop"
            assert ("<tool_call>" in made.text) == (script != "hello")
        else:
            assert called and (parallel or len(called) == 1) and made.finish == "tool_calls"
            assert choice == "required" or set(called) == {choice}
            check_calls(made)


def test_forced_calls_at_a_high_temperature_are_valid(server):
    """Case 31: 100 forced calls drawn at temperature 1.5, every one of a tool there is and of its schema."""
    for forced in ("required", named("get_time"), named("get_weather")):
        body = ask_for(CHAT, "call", tools=tools_of(), tool_choice=forced, parallel_tool_calls=False, temperature=1.5, seed=31)
        for choice in both(server, CHAT, {**body, "n": 17})[0]:
            assert choice.finish == "tool_calls" and len(choice.calls) == 1
            assert forced == "required" or choice.calls[0][0] == forced["function"]["name"]
            check_calls(choice)


def test_tool_choice_without_tools(server):
    """Case 31: no tools, or an empty list, with required or a name is refused; with auto and none they are a plain chat."""
    for tools in ({}, {"tools": []}, {"tools": None}):
        for forced in ("required", named("get_time")):
            assert refused(server, CHAT, ask_for(CHAT, "hello", tool_choice=forced, **tools))["param"] == "tool_choice"
        for free in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": None}):
            (choice,), _ = both(server, CHAT, ask_for(CHAT, "hello", **tools, **free))
            assert (choice.text, choice.finish, choice.calls) == ("Hello, world!", "stop", [])
    error = refused(server, CHAT, ask_for(CHAT, "hello", tools=tools_of(), tool_choice=named("nobody")))
    assert error["param"] == "tool_choice.function.name"


# ---- strict tools with a free choice

def test_strict_tools_hold_their_schema_behind_the_marker(server):
    """Case 31, strict: text is free, but a call that the model begins is valid, even if it would say something else."""
    loose, strict = tools_of(), tools_of(strict=True)
    (free,), _ = both(server, CHAT, ask_for(CHAT, "kelvin", tools=loose))
    assert json.loads(free.calls[0][1])["unit"] == "kelvin", "the model breaks the schema where it may"
    for script, text in [("kelvin", "Hm."), ("half", "Well:"), ("call", "Let me look."), ("calls", None), ("hello", "Hello, world!")]:
        for choice in ("auto", None):
            (made,), _ = both(server, CHAT, ask_for(CHAT, script, tools=strict, tool_choice=choice, max_tokens=400))
            assert bool(made.calls) == (script != "hello")
            assert (made.text or "").startswith(text or "")
            check_calls(made)
    left, right = (both(server, CHAT, ask_for(CHAT, "calls", tools=tools))[0][0].calls for tools in (loose, strict))
    assert left == right, "what is valid is left as it is"
    mixed = [tool("get_weather", WEATHER, strict=True), tool("get_time", TIME)]
    (made,), _ = both(server, CHAT, ask_for(CHAT, "kelvin", tools=mixed, max_tokens=400))
    assert json.loads(made.calls[0][1])["unit"] != "kelvin"


def test_many_strict_requests_at_once_all_end(server):
    """Case 31, strict, under load: 96 requests over 24 connections, streamed and not, each within the client's time limit."""
    def ask(number):
        script = ["kelvin", "half", "call", "calls", "hello"][number % 5]
        body = ask_for(CHAT, script, tools=tools_of(strict=True), max_tokens=300, temperature=number % 3 / 2, seed=number,
                       n=1 + number % 2)
        choices, usage = (streamed if number % 2 else whole)(server, CHAT, body)
        assert usage["completion_tokens"] > 0
        return choices.values()

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        for choices in pool.map(ask, range(96)):
            for choice in choices:
                if choice.finish != "length":
                    check_calls(choice)


# ---- schemas

PATTERNS = [r"^\d+$", r"\S", r"^[\w-]+$", "^(a|b){2,5}$", "x", r"^\s?\w$", r"^[^\W_]{1,3}$"]
UNSUPPORTED = {"(?=a)b": "lookahead", "(?<!a)b": "lookbehind", r"(a)\1": "backreference", r"\bword": "word boundary"}


def with_pattern(pattern):
    """The pattern three objects deep."""
    schema = {"type": "string", "pattern": pattern, "maxLength": 8}
    for name in ("c", "b", "a"):
        schema = {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}
    return schema


def thirty_tools(place, schema, **more):
    tools = [{"type": "function", "function": {"name": f"t{i}"}} for i in range(30)]
    tools[3] = tool("t3", {"type": "object", "properties": {}, "additionalProperties": False})
    tools[place] = tool(f"t{place}", schema, **more)
    return tools


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_in_one_tool_of_many(server, pattern):
    """Case 27: a pattern deep in one of thirty tools is enforced there and spoils none of the others."""
    schema = with_pattern(pattern)
    tools = thirty_tools(17, schema)
    body = ask_for(CHAT, "hello", tools=tools, temperature=1.5, parallel_tool_calls=False, seed=27)
    for choice in both(server, CHAT, {**body, "tool_choice": named("t17"), "n": 12})[0]:
        assert choice.finish == "tool_calls" and choice.calls[0][0] == "t17"
        jsonschema.validate(json.loads(choice.calls[0][1]), schema)
    (choice,), _ = both(server, CHAT, {**body, "tool_choice": named("t3")})
    assert [(name, json.loads(arguments)) for name, arguments in choice.calls] == [("t3", {})]
    names = {c.calls[0][0] for c in both(server, CHAT, {**body, "tool_choice": "required", "n": 12, "max_tokens": 60})[0]}
    assert len(names) > 1 and names <= {f"t{i}" for i in range(30)}


@pytest.mark.parametrize("pattern", UNSUPPORTED)
@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tool_choice": named("t17")}, {"strict": True}], ids=str)
def test_a_pattern_that_cannot_be_enforced_is_named(server, pattern, fields):
    """Case 27: lookaround, backreferences and the like are a 400 that says which tool, where in its schema, and what."""
    strict = {"strict": fields["strict"]} if "strict" in fields else {}
    choice = {k: v for k, v in fields.items() if k != "strict"}
    error = refused(server, CHAT, ask_for(CHAT, "hello", tools=thirty_tools(17, with_pattern(pattern), **strict), **choice))
    assert error["param"] == "tools[17].function.parameters"
    assert "/tools/17/function/parameters/properties/a/properties/b/properties/c/pattern" in error["message"]
    assert UNSUPPORTED[pattern] in error["message"]


def test_references_and_recursion_in_a_tool(server):
    """Case 25: enums behind chains of references, old keywords, siblings and recursion hold in a tool's schema too."""
    schema = {
        "type": "object", "additionalProperties": False, "required": ["color", "side", "same", "next"], "properties": {
            "color": {"$ref": "#/$defs/chain"}, "side": {"$ref": "#/definitions/old", "description": "d"},
            "same": {"$ref": "#/properties/color"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]}},
        "$defs": {"chain": {"$ref": "#/$defs/color"}, "color": {"enum": ["red", "green", "blue"]},
                  "link": {"type": "object", "additionalProperties": False, "required": ["next"], "properties": {
                      "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]}}}},
        "definitions": {"old": {"type": "string", "enum": ["north", "south"]}}}
    for more in ({"tools": [tool("f", schema)], "tool_choice": "required", "parallel_tool_calls": False},
                 {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}):
        seen = set()
        for choice in both(server, CHAT, ask_for(CHAT, "hello", n=50, temperature=1.5, seed=25, **more))[0]:
            if choice.finish != "length":
                value = json.loads(choice.calls[0][1] if choice.calls else choice.text)
                jsonschema.validate(value, schema)
                seen.add(value["color"])
        assert seen == {"red", "green", "blue"}
    remote = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json#/b"}}}
    error = refused(server, CHAT, ask_for(CHAT, "hello", tools=[tool("f", remote)], tool_choice="required"))
    assert error["param"] == "tools[0].function.parameters" and "https://example.com/a.json" in error["message"]
    assert "https://example.com/a.json" in refused(server, COMPLETIONS, ask_for(COMPLETIONS, "hello", guided_json=remote))["message"]


# ---- history

def test_history_without_content(server):
    """Case 33: content null, absent, "" or [] beside tool calls, results in parts, arguments as text or object: one prompt, which
    is the reference's."""
    from toy_model import TEMPLATE
    messages = [{"role": "user", "content": "go"}, None,
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]},
                {"role": "user", "content": "[[hello]]"}]
    for arguments in ({}, {"city": "Köln <&> \"x\"", "days": [1, 2.5, None]}):
        prompts = set()
        for content in ({"content": None}, {}, {"content": ""}, {"content": []}):
            for given in (arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)):
                call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": given}}
                messages[1] = {"role": "assistant", "tool_calls": [call], **content}
                ask = {"messages": messages, "tools": tools_of(), "temperature": 0}
                ids = server.post("/tokenize", {"messages": messages, "tools": tools_of(), "add_special_tokens": False})["tokens"]
                prompts.add(server.post("/detokenize", {"tokens": ids})["prompt"])
                assert both(server, CHAT, ask)[0][0].text == "Hello, world!"
        call["function"]["arguments"] = arguments
        told = [messages[0], {"role": "assistant", "content": "", "tool_calls": [call]}, {**messages[2], "content": "4\n2"},
                messages[3]]
        expected = reference(TEMPLATE, {"messages": told, "tools": tools_of()}, {"bos_token": "<s>", "eos_token": "</s>"})
        assert prompts == {expected}
    for content in ({"content": None}, {}):
        for role in ("user", "system", "tool"):
            error = refused(server, CHAT, {"messages": [{"role": "user", "content": "x"}, {"role": role, **content}]})
            assert error["param"] == "messages[1].content", role
    assert refused(server, CHAT, {"messages": [{"role": "assistant", "content": None}]})["param"] == "messages[0].content"
