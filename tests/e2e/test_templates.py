# SPDX-License-Identifier: Apache-2.0
"""Public chat templates: what the server renders is, byte for byte, what transformers renders.

One server that takes chat_template from the request renders every template with every conversation; /tokenize and
/detokenize give the text back, the vocabulary being one that loses nothing.
"""
import json
import pathlib
import subprocess
import sys
import urllib.error

import jinja2
import pytest
from test_real_model import CACHE, RealServer
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIN_TEMPLATES = 40
NO_REFERENCE = object()  # templates that loop over tools without asking whether there are any break in Python, not here
# (template, conversation): why it may differ.
SAFE = "what is joined to a text marked `safe` is HTML-escaped in Python, by accident: no model was taught &quot; for a quote"
EXCEPTIONS = {("meetkai-functionary-medium-v3.1", title): SAFE
              for title in ["tools offered", "tool called", "tool answered", "thought and called"]}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Wetter <heute> & \"morgen\" / l'été 🌦 天气",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "city's name"},
            "days": {"type": "integer", "minimum": 1, "default": 3},
            "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "b_then_a", "description": "order of keys",
        "parameters": {"type": "object", "properties": {"b": {"type": "array", "items": {"type": "number"}}, "a": {"type": "boolean"}},
                       "required": ["b", "a"]}}},
]


def call(name, arguments, identifier="call00001"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "You answer <briefly> & in \"plain\" words."}
CALL_TURN = [user("How is it in Köln?"),
             assistant("", tool_calls=[call("get_weather", {"place": "Köln", "days": 2, "unit": "C"})]),
             {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"sky": "grey", "t": 7.5}'}]
THOUGHT = dict.fromkeys(["reasoning", "reasoning_content"], "Ask the <service>.")  # the server gives templates both names
CONVERSATIONS = {
    "one question": dict(messages=[user("What is 2 < 3 && \"x\"?")]),
    "with system": dict(messages=[SYSTEM, user("Hi 👋")]),
    "two turns": dict(messages=[SYSTEM, user("One?"), assistant("Eins."), user("Two?")]),
    "no generation prompt": dict(messages=[user("One?"), assistant("Eins.")], add_generation_prompt=False),
    "blank edges": dict(messages=[user("  indented\n\n"), assistant("\ttab "), user("\nnext")]),
    "thinking in the past": dict(messages=[user("7*6?"), assistant("<think>\n6*7\n</think>\n\n42"), user("Sure?")]),
    "tools offered": dict(messages=[SYSTEM, user("How is it in Köln?")], tools=TOOLS),
    "tool called": dict(messages=CALL_TURN, tools=TOOLS),
    "tool answered": dict(messages=[*CALL_TURN, assistant("Grey, 7.5 °C."), user("And tomorrow?")], tools=TOOLS),
    "thinking switched off": dict(messages=[SYSTEM, user("7*6?")], chat_template_kwargs={"enable_thinking": False, "thinking": False}),
    "thought and called": dict(messages=[CALL_TURN[0], {**CALL_TURN[1], **THOUGHT}, CALL_TURN[2]], tools=TOOLS,
                               chat_template_kwargs={"enable_thinking": True}),
    "other scripts": dict(messages=[user("Привет, 你好, नमस्ते, مرحبا"), assistant("日本語で"), user("é ñ ü stay?")]),
}


@pytest.fixture(scope="module")
def templates():
    done = subprocess.run([sys.executable, ROOT / "tools/templates.py", "--cache", CACHE], capture_output=True, text=True, check=True)
    found = {path.stem: path.read_text() for path in sorted(pathlib.Path(done.stdout.strip()).glob("*.jinja"))}
    assert len(found) >= MIN_TEMPLATES
    return found


@pytest.fixture(scope="module")
def server(inferd, tmp_path_factory):
    running = RealServer(inferd, "qwen2.5-coder-0.5b", tmp_path_factory.mktemp("templates"), "--trust-request-chat-template")
    yield running
    running.stop()


def specials(server):
    """What bos_token and the like are in this server's templates."""
    names = ["bos_token", "eos_token", "pad_token", "unk_token"]
    template = "\x01".join("{{ %s if %s is defined else '' }}" % (n, n) for n in names)
    values = render(server, template, dict(messages=[user("x")])).split("\x01")
    return {name: value for name, value in zip(names, values) if value}


def render(server, template, conversation):
    """The text of a prompt, or None when the template refuses the conversation."""
    body = {"chat_template": template, "add_special_tokens": False, **conversation}
    try:
        tokens = server.post("/tokenize", body)["tokens"]
    except urllib.error.HTTPError as error:
        answer = json.load(error)["error"]
        assert error.code == 400 and answer["param"] in ("messages", "chat_template"), answer
        return None
    return server.post("/detokenize", {"tokens": tokens})["prompt"]


def reference(template, conversation, special_tokens):
    try:
        rendered, _ = render_jinja_template(
            conversations=[conversation["messages"]], tools=conversation.get("tools"), chat_template=template,
            add_generation_prompt=conversation.get("add_generation_prompt", True),
            **special_tokens, **conversation.get("chat_template_kwargs", {}))
    except TypeError:
        return NO_REFERENCE
    except jinja2.TemplateError:
        return None
    return rendered[0]


def test_equal_to_transformers(server, templates):
    special_tokens = specials(server)
    wrong, equal, refused, unused = [], dict.fromkeys(templates, 0), 0, set(EXCEPTIONS)
    for name, template in templates.items():
        for title, conversation in CONVERSATIONS.items():
            expected = reference(template, conversation, special_tokens)
            if expected == "" or expected is NO_REFERENCE:  # an empty prompt is refused by the API
                continue
            got = render(server, template, conversation)
            if got != expected:  # once more, in case a template tells the time and the minute was over
                expected, got = reference(template, conversation, special_tokens), render(server, template, conversation)
            if got == expected:
                equal[name] += 1
                refused += expected is None
            elif (name, title) in unused:
                unused.remove((name, title))
            else:
                wrong.append((name, title, expected, got))
    report = "\n".join(f"{name} / {title}\n  expected {expected!r}\n  got      {got!r}" for name, title, expected, got in wrong[:5])
    total = sum(equal.values())
    assert not wrong, f"{len(wrong)} of {total + len(wrong)} differ\n{report}"
    assert not unused, f"no exception is needed for {unused}"
    whole = sum(count >= 10 for count in equal.values())
    print(f"{total} renderings of {len(templates)} templates equal ({refused} refused by both); {whole} templates in 10 or more")
    assert whole >= MIN_TEMPLATES
    assert refused < total / 4, "most templates take most conversations"
