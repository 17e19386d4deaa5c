# SPDX-License-Identifier: Apache-2.0
"""API keys, limits and the usage ledger, with the official client."""

import hashlib
import json
import os
import subprocess
import time

import httpx
import openai
import pytest

SECRET = "key-for-the-end-to-end-tests"
KEYS = """
keys:
  - name: limited
    sha256: {limited}
    requests_per_minute: 60
    tokens_per_minute: 100000
  - name: slow
    sha256: {slow}
    requests_per_minute: 30
  - name: watcher
    sha256: {watcher}
    scopes: [metrics]
  - name: bound
    sha256: {bound}
    models: [other]
"""


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def client_of(server, key, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, timeout=60, **{"max_retries": 0, **more})


def ask(client, **more):
    messages = [{"role": "user", "content": "go [[hello]]"}]
    return client.chat.completions.create(model="toy", messages=messages, temperature=0, max_tokens=20, **more)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    names = ("limited", "slow", "watcher", "bound")
    (folder / "keys.yaml").write_text(KEYS.format(**{name: digest("secret-of-" + name) for name in names}))
    return folder


@pytest.fixture(scope="module")
def server(start, files):
    server = start("--api-key", SECRET, "--api-key-file", str(files / "keys.yaml"), "--usage-db", str(files / "usage.db"),
                   "--usage-log", str(files / "usage.jsonl"), "--allowed-origins", "https://app.example")
    server.client = client_of(server, SECRET)
    yield server
    server.stop()


def test_a_key_is_needed(server):
    assert ask(server.client).choices[0].message.content == "Hello, world!"
    for wrong in ("none", SECRET + "x", "secret-of-nobody"):
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(client_of(server, wrong))
        assert refused.value.response.headers["www-authenticate"].startswith("Bearer")
        assert refused.value.body["type"] == "authentication_error"
    assert httpx.get(server.url + "/metrics").status_code == 401
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/metrics", headers={"x-api-key": SECRET}).status_code == 200


def test_scopes_and_models(server):
    watcher = client_of(server, "secret-of-watcher")
    with pytest.raises(openai.PermissionDeniedError):
        ask(watcher)
    assert httpx.get(server.url + "/metrics", headers={"api-key": "secret-of-watcher"}).status_code == 200
    with pytest.raises(openai.PermissionDeniedError) as refused:
        ask(client_of(server, "secret-of-bound"))
    assert refused.value.param == "model"
    assert httpx.get(server.url + "/metrics", headers={"api-key": "secret-of-limited"}).status_code == 403


def test_limits_are_shown(server):
    answer = client_of(server, "secret-of-limited").chat.completions.with_raw_response.create(
        model="toy", messages=[{"role": "user", "content": "go [[hello]]"}], max_tokens=20)
    assert answer.headers["x-ratelimit-limit-requests"] == "60"
    assert 0 < int(answer.headers["x-ratelimit-remaining-requests"]) < 60
    assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
    assert len(answer.headers["x-inferd-model-version"]) == 12
    version = answer.headers["x-inferd-model-version"]
    named = client_of(server, SECRET).chat.completions.create(
        model=f"toy@{version}", messages=[{"role": "user", "content": "go [[hello]]"}], temperature=0)
    assert named.choices[0].message.content == "Hello, world!"
    with pytest.raises(openai.NotFoundError):
        client_of(server, SECRET).chat.completions.create(model="toy@other", messages=[{"role": "user", "content": "x"}])


def test_a_refused_client_that_waits_as_told_is_served(server):
    client = client_of(server, "secret-of-slow")
    for _ in range(40):
        try:
            ask(client)
        except openai.RateLimitError as refused:
            wait = int(refused.response.headers["retry-after-ms"]) / 1000
            assert 0 < wait <= 2.0  # one request every 2 s
            assert int(refused.response.headers["retry-after"]) >= wait
            time.sleep(wait)
            break
    else:
        raise AssertionError("40 requests within a minute passed a limit of 30")
    assert ask(client).choices[0].message.content == "Hello, world!"
    patient = client_of(server, "secret-of-slow", max_retries=5)  # the official client honours Retry-After itself
    for _ in range(2):
        assert ask(patient).choices[0].message.content == "Hello, world!"


def test_preflight(server):
    ask_first = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = httpx.options(server.url + "/v1/chat/completions", headers=ask_first)
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    foreign = httpx.options(server.url + "/v1/chat/completions", headers={**ask_first, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers
    assert httpx.post(server.url + "/v1/chat/completions", headers={"Origin": "https://app.example"}, json={}).status_code == 401


def test_a_changed_key_file_is_read_and_a_bad_one_is_not(server, files):
    path = files / "keys.yaml"
    good = path.read_text()
    path.write_text("keys: [nonsense]\n")
    deadline = time.monotonic() + 10
    while "stay as they were" not in server.log():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ask(client_of(server, "secret-of-limited")).choices
    path.write_text(good + f"  - {{name: late, sha256: {digest('secret-of-late')}}}\n")
    while True:
        try:
            assert ask(client_of(server, "secret-of-late")).choices
            break
        except openai.AuthenticationError:
            assert time.monotonic() < deadline + 10
            time.sleep(0.05)
    assert "secret-of" not in server.log() and SECRET not in server.log()


def test_usage_adds_up(server, inferd, files):
    streamed = list(ask(server.client, stream=True, stream_options={"include_usage": True}))[-1].usage
    deadline = time.monotonic() + 10
    while (files / "usage.jsonl").read_text().count("\n") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lines = [json.loads(line) for line in (files / "usage.jsonl").read_text().splitlines()]
    while lines[-1]["completion_tokens"] != streamed.completion_tokens or lines[-1]["key"] != "key-1":
        assert time.monotonic() < deadline
        time.sleep(0.05)
        lines = [json.loads(line) for line in (files / "usage.jsonl").read_text().splitlines()]
    assert lines[-1]["prompt_tokens"] == streamed.prompt_tokens
    assert lines[-1]["outcome"] == "done" and lines[-1]["total_ms"] >= lines[-1]["ttft_ms"] >= lines[-1]["queue_ms"] >= 0
    assert not any("hello" in json.dumps(line).lower() for line in lines)
    environment = {**os.environ, "INFERD_USAGE_DB": str(files / "usage.db")}
    printed = subprocess.run([inferd, "usage", "--by", "key", "--since", "1h", "--json"], env=environment, check=True,
                             capture_output=True, text=True, timeout=30).stdout
    rows = {row["key"]: row for row in map(json.loads, printed.splitlines())}
    for key, row in rows.items():
        of_key = [line for line in lines if line["key"] == key]
        assert row["requests"] == len(of_key)
        assert row["completion_tokens"] == sum(line["completion_tokens"] for line in of_key)
    assert {"key-1", "limited", "slow"} <= set(rows)
    table = subprocess.run([inferd, "usage"], env=environment, check=True, capture_output=True, text=True, timeout=30).stdout
    assert table.splitlines()[0].split()[:3] == ["key", "day", "requests"]
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([inferd, "usage", "--by", "nonsense"], env=environment, check=True, capture_output=True, timeout=30)
