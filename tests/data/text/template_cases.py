# SPDX-License-Identifier: Apache-2.0
"""Chat templates and variables with what Jinja2, set up by transformers, renders from them (see make_text_cases.py)."""

import datetime
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOW = 1767225600 + 12 * 3600  # 2026-01-01 12:00 UTC: the same date in almost every zone

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & \"later\" for a city's <b>centre</b>/suburb 😊 天气 \\ \u007f \u2028 é",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "string"}, "a": {"type": "number", "default": 1.0, "minimum": 1e-7}},
                "required": ["b"],
                "x": [None, True, False, 0, -1, 18446744073709551615, 0.1, 1e16, 1.5e300, 123456789.125, 1e-5, 0.0001, []],
                "empty": {},
            },
        },
    }
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi, <there> & 'you' 😊"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"b": "Köln", "a": 2}}},
        {"id": "2", "type": "function", "function": {"name": "get_weather", "arguments": {"b": "東京"}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "{\"t\": 3}"},
    {"role": "tool", "tool_call_id": "2", "content": "sunny"},
    {"role": "assistant", "content": "Cold."},
    {"role": "user", "content": "Thanks"},
]
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}

SMALL = {
    "whitespace": "  {% if true %}\n  a\n  {% endif %}\n{%- for m in messages %}\n    {{ m.role }}\n{% endfor %}\n{# note #}\nend\n",
    "tojson": "{% for t in tools %}{{ t | tojson }}\n{{ t | tojson(indent=2) }}\n{{ t | tojson(ensure_ascii=True) }}\n"
              "{{ t | tojson(separators=(',', ':')) }}\n{{ t | tojson(sort_keys=true) }}\n{{ t | tojson(indent=4, ensure_ascii=True) }}"
              "{% endfor %}{{ none | tojson }}{{ 'x' | tojson }}{{ 1.0 | tojson }}{{ [1, 'a', (2, 3)] | tojson }}",
    "date": "{{ strftime_now('%d %B %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%b %y %%') }}",
    "namespace": "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}"
                 "{% endfor %}{{ ns.n }} {{ ns.last }}",
    "loop": "{% for m in messages %}{{ loop.index0 }}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}"
            "{{ loop.previtem.role if loop.previtem is defined else '-' }}{{ loop.nextitem.role if not loop.last else '-' }};{% endfor %}",
    "controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if m.role == 'tool' %}{% break %}{% endif %}"
                "{{ m.role }},{% endfor %}",
    "slices": "{% for m in messages[1:] %}{{ m.role }},{% endfor %}{% for m in messages[::-1] %}{{ m.role }},{% endfor %}"
              "{{ messages[-1].content }}{{ 'abcdef'[1:3] }}{{ 'abcdef'[-2:] }}{{ 'abc'[0] }}{{ messages[1:3] | length }}",
    "tests": "{% for x in ['s', 1, 1.5, true, none, [1], {'a': 1}, nope] %}{{ x is mapping }}{{ x is string }}{{ x is sequence }}{{ x is number }}"
             "{{ x is integer }}{{ x is boolean }}{{ x is none }}{{ x is defined }};{% endfor %}{{ 'a' is iterable }}{{ [] is iterable }}"
             "{{ none is iterable }}{{ 5 is iterable }}{{ {} is iterable }}{{ true is true }}{{ false is false }}{{ 1 is true }}",
    "strings": "{{ 'a b  c'.split() }}{{ 'x</think>y'.split('</think>')[-1] }}{{ '  s '.strip() }}|{{ 'nns'.lstrip('n') }}{{ 'a-b'.replace('-', '+') }}"
               "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'Hello World'.upper() }}{{ 'é ab'.title() }}{{ 'a,b'.split(',', 1) }}"
               "{{ 'aXbX'.rstrip('X') }}{{ 'ab' * 2 }}{{ ', '.join(['p', 'q']) }}{{ 'find'.find('n') }}{{ 'x' in 'xyz' }}{{ 'n' ~ 1 ~ none ~ true }}",
    "items": "{% for k, v in {'b': 1, 'a': [2]}.items() %}{{ k }}={{ v }},{% endfor %}{% for k, v in {'z': 0, 'y': none} | items %}{{ k }}={{ v }};{% endfor %}"
             "{{ {'b': 1, 'a': 2}.keys() | list }}{{ {'b': 1}.get('b') }}{{ {'b': 1}.get('c', 'd') }}{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "python_text": "{{ true }} {{ none }} {{ 1.0 }} {{ 1e20 }} {{ [1, 'a', none, true, 2.5] }} {{ {'k': 'v', 'n': {'x': [1]}} }} {{ (1, 2) }} {{ \"it's\" }} {{ [\"it's\", 'q\"'] }}"
                   "{{ [1e-7, 1e20, 2.0, [], {}, (1,)] }} {{ {'a': 1e-7} }} {{ 1e-7 | string }} {{ [0.5] | string }} {{ 'x' | string }} {{ none | string }} {{ 5 | string }}",
    "macro": "{% macro show(m, sep=': ') %}{{ m.role }}{{ sep }}{{ m.content or '' }}\n{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}{{ show(messages[0], sep='=') }}",
    "filters": "{{ nope | default('d') }}{{ '' | default('e', true) }}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | join('|') }}"
               "{{ messages | rejectattr('role', 'in', ['user', 'tool']) | list | length }}{{ [3, 1, 2] | sort | join(',') }}{{ ' t ' | trim }}{{ 'abc' | first }}"
               "{{ [1, 2] | last }}{{ 'aBc' | upper }}{{ 'aBc' | lower }}{{ 'hello world' | capitalize }}{{ 'a\nb' | indent(2) }}{{ [1, [2]] | string }}{{ '7' | int + 1 }}"
               "{{ messages | map(attribute='role') | unique | list }}{{ 'x' | replace('x', 'y') }}{{ 3.7 | int }}{{ '%s-%d' | format('a', 3) }}{{ 10 // 3 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 7 / 2 }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{%- generation -%}\n  {{ m.content }}{{ eos_token }}\n{% endgeneration %}{% else %}{{ m.role }}{% endif %}{% endfor %}"
                  "{% raw %}{% generation %}{% endraw %}",
    "specials": "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{% if not tools %}no{% endif %}",
    "undefined": "[{{ nope }}][{% for x in nope %}x{% endfor %}][{{ messages[0].nope }}][{{ messages[0]['nope'] is defined }}][{% if nope %}y{% else %}n{% endif %}]",
    "raise": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported: \"' + messages[0].content + '\" <é>') }}{% endif %}",
    "undefined_attribute": "{{ nope.x }}",
    "inline_if": "{{ 'a' if tools else 'b' }}{{ 'z' if tools }}{% set x = messages[0].content if messages[0].role == 'system' else '' %}{{ x }}{% set y %}block {{ x }}{% endset %}{{ y }}",
    "parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% elif m.content is iterable %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}|{% endfor %}",
}


def Render(source: str, variables: dict) -> dict:
    from transformers.utils import chat_template_utils

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(NOW)

    chat_template_utils.datetime = Clock
    template = chat_template_utils._compile_jinja_template(source)
    try:
        return {"text": template.render(**variables)}
    except Exception as error:
        return {"error": str(error)}


def TemplateCases() -> dict:
    cases = []

    def Add(name: str, source: str, variables: dict) -> None:
        passed = {"tools": None, "documents": None, "add_generation_prompt": False, **SPECIALS, **variables}
        # As text: the order of keys is part of the case.
        variables_json = json.dumps(variables, ensure_ascii=False)
        cases.append(dict(name=name, source=source, variables_json=variables_json, **Render(source, passed)))

    for name, source in SMALL.items():
        Add(name, source, {"messages": CHAT} if name == "specials" else {"messages": CHAT, "tools": TOOLS})
    Add("parts", SMALL["parts"], {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})
    qwen = (HERE / "qwen2.5_chat_template.jinja").read_text()
    for prompt in (False, True):
        Add("qwen", qwen, {"messages": CHAT, "tools": TOOLS, "add_generation_prompt": prompt})
        Add("qwen", qwen, {"messages": CHAT[:2], "add_generation_prompt": prompt})
        Add("qwen", qwen, {"messages": CHAT[1:2], "add_generation_prompt": prompt})
        Add("qwen", qwen, {"messages": CHAT[1:], "tools": TOOLS * 2, "add_generation_prompt": prompt})
    for content in (None, "", "text"):
        message = {"role": "assistant", "content": content, "tool_calls": CHAT[2]["tool_calls"]}
        Add("qwen", qwen, {"messages": [CHAT[1], message], "tools": TOOLS})
    return {"now_s": NOW, "specials": SPECIALS, "cases": cases}
