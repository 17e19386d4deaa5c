# SPDX-License-Identifier: Apache-2.0
"""The model's names change under load, and no request notices."""

import hashlib
import json
import threading
import urllib.error
import urllib.request

import openai

ADMIN, USER = "admin-secret-0123456789", "user-secret-0123456789"


def keys():
    return "keys:\n" + "".join(
        f"  - {{name: {scope}, sha256: {hashlib.sha256(key.encode()).hexdigest()}, scopes: [{scope}]}}\n"
        for scope, key in (("admin", ADMIN), ("inference", USER)))


def rename(server, key, names):
    request = urllib.request.Request(server.url + "/v1/served_model_name", json.dumps({"served_model_name": names}).encode(),
                                     {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)["served_model_name"]


def test_names_change_under_load(start, tmp_path):
    (tmp_path / "keys.yaml").write_text(keys())
    server = start("--api-key-file", str(tmp_path / "keys.yaml"))
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=USER, max_retries=0, timeout=60)
    name = ["toy"]
    ended = threading.Event()
    answered, failures, current = [], [], [None] * 6

    def ask(number):
        while not ended.is_set():
            asked = current[number] = name[0]
            try:
                stream = number % 2 == 0
                reply = client.chat.completions.create(model=asked, messages=[{"role": "user", "content": "go [[count]]"}],
                                                       temperature=0, max_tokens=40, stream=stream)
                if stream:
                    chunks = list(reply)
                    text, models = "".join(c.choices[0].delta.content or "" for c in chunks), {c.model for c in chunks}
                else:
                    text, models = reply.choices[0].message.content, {reply.model}
                assert len(text.split()) == 40
                assert len(models) == 1, "a reply changed its name"
                answered.append((asked, models.pop()))
            except Exception as error:  # whatever it is, it is a failed request
                failures.append(f"{asked}: {error!r}")

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(current))]
    for thread in threads:
        thread.start()

    def wait_answers(count):
        have = len(answered)
        while len(answered) < have + count and not failures:
            ended.wait(0.02)

    def switch(old, new):
        wait_answers(12)
        assert rename(server, ADMIN, [new, old]) == [new, old]
        name[0] = new
        while set(current) != {new} and not failures:  # nobody asks for the old one any more
            ended.wait(0.02)
        assert rename(server, ADMIN, [new]) == [new]
        wait_answers(12)

    try:
        switch("toy", "toy-v2")
        switch("toy-v2", "toy-v3")
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert {asked for asked, _ in answered} == {"toy", "toy-v2", "toy-v3"}
    assert ("toy-v3", "toy-v3") in answered
    assert [m.id for m in client.models.list()] == ["toy-v3"]
    try:
        rename(server, USER, ["mine"])
        raise AssertionError("a key without the scope changed the names")
    except urllib.error.HTTPError as error:
        assert error.code == 403
    server.stop()
