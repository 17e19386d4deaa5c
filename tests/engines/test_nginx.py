# SPDX-License-Identifier: Apache-2.0
"""deploy/nginx/nginx.conf in a real nginx, before real servers. Only addresses, ports and limits are changed."""

import hashlib
import signal
import threading

import httpx
import pytest

import harness
from harness import FOX, chat_body, eventually, free_ports

ONE = {"Authorization": "Bearer sk-change-me-one"}
TWO = {"Authorization": "Bearer sk-change-me-two"}
PLENTY = ("rate=100r/s", "rate=100000r/s"), ("burst=100 ", "burst=100000 ")


@pytest.fixture
def nginx(tmp_path, spawn, engine):
    program = engine("nginx") / "usr/sbin/nginx"

    def run(stable, canary, *changes):
        port, = free_ports(1)
        text = (harness.DEPLOY / "nginx/nginx.conf").read_text()
        changes += (("listen 8080;", f"listen 127.0.0.1:{port};"), ("inferd-0:8000", f"127.0.0.1:{stable[0]}"),
                    ("server inferd-1:8000 max_fails=1 fail_timeout=2s;",
                     "".join(f"server 127.0.0.1:{p} max_fails=1 fail_timeout=2s;" for p in stable[1:])),
                    ("inferd-canary:8000", f"127.0.0.1:{canary}"))
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        folder = tmp_path / "nginx"
        (folder / "temp").mkdir(parents=True)
        (folder / "nginx.conf").write_text(text)
        (folder / "keys.conf").write_text((harness.DEPLOY / "nginx/keys.conf").read_text())
        process = spawn([program, "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off; user root;"], name="nginx")
        url = f"http://127.0.0.1:{port}"
        process.wait_for(url + "/gateway/healthz")
        return url

    return run


def chat(url, headers, path="", **more):
    return httpx.post(url + path + "/v1/chat/completions", json=chat_body(**more), headers=headers, timeout=60)


def test_keys_routes_and_canary(nginx, inferd):
    """Keys, routes by model and version, 90 to 10 within 2 %, a dead canary costs nothing."""
    stable = inferd("--model-version", "v1", name="stable")
    canary = inferd("--model-version", "v2", name="canary")
    url = nginx([stable.port], canary.port, *PLENTY)
    refused = httpx.post(url + "/v1/chat/completions", json=chat_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert chat(url, {"Authorization": "Bearer wrong"}).status_code == 401
    assert chat(url, {"x-api-key": "sk-change-me-two"}).json()["choices"][0]["message"]["content"] == FOX
    assert chat(url, ONE, path="/models/chat").json()["choices"][0]["message"]["content"] == FOX
    assert chat(url, ONE, path="/models/other").status_code == 404
    unknown = chat(url, ONE, model="other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")  # the server's own words
    assert httpx.get(url + "/metrics", headers=ONE).status_code == 404

    def version(headers):
        reply = chat(url, headers)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-inferd-model-version"]

    assert {version({**ONE, "x-inferd-model-version": "v2"}) for _ in range(10)} == {"v2"}
    assert {version({**ONE, "x-inferd-model-version": "v1"}) for _ in range(10)} == {"v1"}
    count = 3000
    with httpx.Client(headers=ONE, timeout=60) as client:
        seen = [client.post(url + "/v1/chat/completions", json=chat_body("hello")).headers["x-inferd-model-version"]
                for _ in range(count)]
    share = seen.count("v2") / count
    assert abs(share - 0.10) <= 0.02, share
    canary.kill()
    assert {version(ONE) for _ in range(100)} == {"v1"}


def test_requests_per_key_and_tokens_of_the_server(nginx, inferd, tmp_path):
    """nginx holds requests per key; tokens per key are held by the server, whose 429 comes through with its Retry-After."""
    keys = tmp_path / "keys.yaml"
    digests = [hashlib.sha256(f"sk-change-me-{n}".encode()).hexdigest() for n in ("one", "two")]
    keys.write_text(f"keys:\n- {{name: team-one, sha256: {digests[0]}}}\n- {{name: team-two, sha256: {digests[1]}, tokens_per_minute: 300}}\n")
    server = inferd("--api-key-file", keys)
    url = nginx([server.port], server.port, ("rate=100r/s", "rate=1r/m"), ("burst=100 ", "burst=9 "))
    seen = [httpx.get(url + "/v1/models", headers=ONE) for _ in range(20)]
    assert [r.status_code for r in seen] == [200] * 10 + [429] * 10
    assert seen[-1].headers["retry-after"] == "1"
    assert seen[-1].json()["error"]["type"] == "rate_limit_error"
    replies = [chat(url, TWO, script="count", max_tokens=120) for _ in range(5)]
    assert [r.status_code for r in replies[:2]] == [200, 200]
    assert replies[-1].status_code == 429
    assert int(replies[-1].headers["retry-after"]) > 1
    assert replies[-1].json()["error"]["code"] == "rate_limit_exceeded"


def test_a_full_server_and_streams(nginx, inferd):
    """A full server's 429 comes through; events are not held back."""
    server = inferd("--max-num-seqs", "1", "--max-waiting", "1")
    url = nginx([server.port], server.port, *PLENTY)
    with httpx.Client(timeout=30, headers=ONE) as client, client.stream(
            "POST", url + "/v1/chat/completions", json=chat_body("count", max_tokens=4000, stream=True)) as reply:
        lines = reply.iter_lines()
        assert any([next(lines).startswith("data: ") for _ in range(4)])
        assert server.metric("inferd_num_requests_running") == 1
        waiting = threading.Thread(target=chat, args=(url, TWO))
        waiting.start()
        eventually(lambda: server.metric("inferd_num_requests_waiting") == 1)
        full = chat(url, TWO)
        assert full.status_code == 429, full.text
        assert full.json()["error"]["type"] == "rate_limit_error"
        assert int(full.headers["retry-after"]) >= 1
    waiting.join(60)


@pytest.mark.parametrize("how", ["kill", "drain"])
def test_a_replica_goes_under_load(nginx, inferd, how):
    """No plain request fails; a stream is whole or breaks with an error, and when it drains none breaks."""
    servers = [inferd("--drain-delay", "2", "--shutdown-timeout", "20") for _ in range(2)]
    url = nginx([s.port for s in servers], servers[1].port, *PLENTY)
    load = harness.Load(url, {**ONE, "x-inferd-model-version": "v1"})
    load.wait_done(60)
    assert servers[0].metric("inferd_generation_tokens_total") > 0
    if how == "kill":
        servers[0].kill()
    else:
        servers[0].signal(signal.SIGTERM)
        assert servers[0].process.wait(40) == 0, servers[0].log()
    load.wait_done(load.done() + 60)
    load.stop()
    assert load.failures == []
    assert load.silent_cuts == []
    if how == "drain":
        assert load.streams_broken == 0


@pytest.mark.parametrize("answer,path,attempts", [(503, "/v1/chat/completions", 2), (429, "/v1/chat/completions", 1),
                                                  (503, "/v1/files", 1), (500, "/v1/chat/completions", 1)])
def test_what_is_tried_again(nginx, answer, path, attempts):
    """An inference that was refused with 503 goes to another replica; 429 and uploads are asked once."""
    replicas = [harness.FakeReplica(answer) for _ in range(2)]
    url = nginx([r.port for r in replicas], replicas[0].port, *PLENTY)
    reply = httpx.post(url + path, json={"model": "chat"}, headers={**ONE, "x-inferd-model-version": "v1"}, timeout=30)
    assert reply.status_code == answer
    assert reply.json()["error"]["message"] == "fake"
    assert [len(r.seen) for r in replicas].count(1) == attempts
    assert sum(len(r.seen) for r in replicas) == attempts


def test_a_client_cannot_say_who_it_is(nginx):
    """Of the headers that name a tenant only the one goes on that the key gave."""
    replica = harness.FakeReplica(200)
    url = nginx([replica.port], replica.port)
    assert chat(url, {**ONE, **harness.FORGED, "x-inferd-model-version": "v1"}).status_code == 200
    assert {name: replica.headers.get_all(name) for name in harness.FORGED if name in replica.headers} == {"X-Tenant": ["team-one"]}
