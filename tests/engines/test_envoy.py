# SPDX-License-Identifier: Apache-2.0
"""deploy/envoy/envoy.yaml in a real Envoy, before real servers. Only addresses, ports and limits are changed."""

import signal
import subprocess
import threading

import httpx
import pytest
import yaml

import harness
from harness import FOX, chat_body, eventually, free_ports, read_stream

ONE = {"Authorization": "Bearer sk-change-me-one"}
TWO = {"Authorization": "Bearer sk-change-me-two"}


def http_filter(config, name):
    listener = config["static_resources"]["listeners"][0]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    return next(f["typed_config"] for f in filters if f["name"] == "envoy.filters.http." + name)


class Envoy:
    """The shipped configuration with the addresses of the test."""

    def __init__(self, tmp_path, spawn, stable, canary, ratelimit=1, change=lambda config: None, name="envoy"):
        config = yaml.safe_load((harness.DEPLOY / "envoy/envoy.yaml").read_text())
        listener, admin = free_ports(2)
        config["admin"]["address"]["socket_address"]["port_value"] = admin
        config["static_resources"]["listeners"][0]["address"]["socket_address"].update(
            address="127.0.0.1", port_value=listener)
        for cluster, ports in (("stable", stable), ("canary", canary), ("ratelimit", [ratelimit])):
            found = next(c for c in config["static_resources"]["clusters"] if c["name"] == cluster)
            found["load_assignment"]["endpoints"] = [{"lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports]}]
        change(config)
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        self.process = spawn([harness.VENV / "envoy", "-c", path, "--concurrency", "1", "--disable-hot-restart"], name=name)
        self.url, self.admin = f"http://127.0.0.1:{listener}", f"http://127.0.0.1:{admin}"
        self.process.wait_for(self.url + "/gateway/healthz")
        self.wait_healthy(len(stable) + len(canary))

    def healthy(self):
        return sum(int(line.rsplit(" ", 1)[1])
                   for line in httpx.get(self.admin + "/stats?filter=cluster.(stable|canary).membership_healthy").text.splitlines())

    def wait_healthy(self, count):
        eventually(lambda: self.healthy() == count, message=lambda: f"{self.healthy()} healthy, not {count}")


@pytest.fixture
def envoy(tmp_path, spawn):
    return lambda *arguments, **options: Envoy(tmp_path, spawn, *arguments, **options)


def chat(gateway, headers, **more):
    return httpx.post(gateway.url + "/v1/chat/completions", json=chat_body(**more), headers=headers, timeout=60)


def test_keys_routes_and_canary(envoy, inferd):
    """Keys, routes by model and version, 90 to 10 within 2 %, a dead canary costs nothing."""
    stable = inferd("--model-version", "v1", name="stable")
    canary = inferd("--model-version", "v2", name="canary")
    gateway = envoy([stable.port], [canary.port], change=lambda c: http_filter(c, "local_ratelimit")["descriptors"][0].update(
        token_bucket={"max_tokens": 100000, "tokens_per_fill": 100000, "fill_interval": "1s"}))

    refused = httpx.post(gateway.url + "/v1/chat/completions", json=chat_body())
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert chat(gateway, {"Authorization": "Bearer wrong"}).status_code == 401
    assert chat(gateway, {"x-api-key": "sk-change-me-two"}).json()["choices"][0]["message"]["content"] == FOX

    def version(headers, **more):
        reply = chat(gateway, headers, **more)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-inferd-model-version"]

    assert {version({**ONE, "x-inferd-model-version": "v2"}) for _ in range(10)} == {"v2"}
    assert {version(ONE, model="chat@v2") for _ in range(10)} == {"v2"}
    unknown = chat(gateway, ONE, model="other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert httpx.get(gateway.url + "/v1/models", headers=ONE).json()["data"][0]["id"] == "chat"
    assert httpx.get(gateway.url + "/metrics", headers=ONE).status_code == 404  # the operators' own business

    count = 3000
    with httpx.Client(headers=ONE, timeout=60) as client:
        seen = [client.post(gateway.url + "/v1/chat/completions", json=chat_body("hello")).headers["x-inferd-model-version"]
                for _ in range(count)]
    share = seen.count("v2") / count
    assert abs(share - 0.10) <= 0.02, share

    canary.kill()
    assert {version(ONE) for _ in range(100)} == {"v1"}


def test_requests_per_key_and_429_of_the_server(envoy, inferd):
    """A key over its rate gets 429, another does not; a full server's own 429 comes through with its Retry-After."""
    server = inferd("--max-num-seqs", "1", "--max-waiting", "1")
    gateway = envoy([server.port], [server.port], change=lambda c: http_filter(c, "local_ratelimit")["descriptors"][0].update(
        token_bucket={"max_tokens": 20, "tokens_per_fill": 1, "fill_interval": "3600s"}))
    seen = [httpx.get(gateway.url + "/v1/models", headers=ONE) for _ in range(40)]
    assert [r.status_code for r in seen] == [200] * 20 + [429] * 20
    assert seen[-1].headers["retry-after"] == "1"
    assert seen[-1].json()["error"]["type"] == "rate_limit_error"

    codes, held = [], []

    def ask(tokens):
        reply = chat(gateway, TWO, script="count", max_tokens=tokens)
        codes.append((reply.status_code, reply.headers.get("retry-after"), reply.json()))

    for tokens in (3000, 3000):
        held.append(threading.Thread(target=ask, args=(tokens,)))
        held[-1].start()
    eventually(lambda: server.metric("inferd_num_requests_running") + server.metric("inferd_num_requests_waiting") == 2)
    full = chat(gateway, TWO)
    assert full.status_code == 429, full.text
    assert int(full.headers["retry-after"]) >= 1
    assert full.json()["error"]["type"] == "rate_limit_error"
    for thread in held:
        thread.join(60)
    assert [code for code, _, _ in codes] == [200, 200]


def test_streams_come_as_they_are_made(envoy, inferd):
    """No event waits for the next: the first is there while the server is stopped in the middle."""
    server = inferd()
    gateway = envoy([server.port], [server.port])
    with httpx.Client(timeout=30, headers=ONE) as client, client.stream(
            "POST", gateway.url + "/v1/chat/completions", json=chat_body("count", max_tokens=4000, stream=True)) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.iter_lines()
        first = [next(lines) for _ in range(4)]
        assert server.metric("inferd_num_requests_running") == 1
        assert any(line.startswith("data: ") for line in first)


@pytest.mark.parametrize("how", ["kill", "drain"])
def test_a_replica_goes_under_load(envoy, inferd, how):
    """No plain request fails; a stream is whole or breaks with an error, and when it drains none breaks."""
    servers = [inferd("--drain-delay", "4", "--shutdown-timeout", "20") for _ in range(2)]
    gateway = envoy([s.port for s in servers], [servers[1].port], change=lambda c: http_filter(
        c, "local_ratelimit")["descriptors"][0].update(
            token_bucket={"max_tokens": 100000, "tokens_per_fill": 100000, "fill_interval": "1s"}))
    load = harness.Load(gateway.url, ONE)
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
    gateway.wait_healthy(2)  # of three places, two are the survivor's


class TokenLimits:
    """The shipped limits in a real rate limit service and a real Redis. An hour does not end in a test."""

    def __init__(self, tmp_path, spawn, redis, service, allowance):
        self.redis_port, self.grpc, port, debug = free_ports(4)
        self.programs = redis / "usr/bin"
        self.libraries = {"LD_LIBRARY_PATH": str(redis / "usr/lib/x86_64-linux-gnu")}
        self.redis = spawn([self.programs / "redis-server", "--port", self.redis_port, "--bind", "127.0.0.1", "--save", "",
                            "--dir", tmp_path], name="redis", environment=self.libraries)
        limits = yaml.safe_load((harness.DEPLOY / "envoy/ratelimit.yaml").read_text())
        for descriptor in limits["descriptors"]:
            assert descriptor["rate_limit"]["unit"] == "minute"
            descriptor["rate_limit"]["unit"] = "hour"
        named = next(d for d in limits["descriptors"] if d.get("value") == "team-two")
        named["rate_limit"]["requests_per_unit"] = allowance
        folder = tmp_path / "limits/inferd/config"
        folder.mkdir(parents=True)
        (folder / "inferd.yaml").write_text(yaml.safe_dump(limits))
        compose = yaml.safe_load((harness.ROOT / "docker/compose.yaml").read_text())
        self.service = spawn([service / "service_cmd"], name="ratelimit", environment={
            **compose["services"]["ratelimit"]["environment"], "REDIS_URL": f"127.0.0.1:{self.redis_port}",
            "RUNTIME_ROOT": str(tmp_path / "limits"), "HOST": "127.0.0.1", "GRPC_HOST": "127.0.0.1", "DEBUG_HOST": "127.0.0.1",
            "PORT": str(port), "GRPC_PORT": str(self.grpc), "DEBUG_PORT": str(debug), "LOG_LEVEL": "info"})
        self.service.wait_for(f"http://127.0.0.1:{port}/healthcheck")

    def _ask(self, *command):
        return subprocess.run([self.programs / "redis-cli", "-p", str(self.redis_port), *command], capture_output=True, text=True,
                              env=self.libraries, timeout=10, check=True).stdout.split()

    def counted(self, tenant):
        return sum(int(self._ask("get", key)[0]) for key in self._ask("keys", f"*{tenant}*"))

    def wait_counted(self, tenant, tokens):
        eventually(lambda: self.counted(tenant) == tokens,
                   message=lambda: f"{self.counted(tenant)}, not {tokens}\n" + self.service.log())


@pytest.fixture
def token_limits(tmp_path, spawn, engine):
    return lambda allowance: TokenLimits(tmp_path, spawn, engine("redis"), engine("ratelimit"), allowance)


def test_tokens_per_minute_in_redis(envoy, inferd, token_limits):
    """The allowance of a key is counted for all gateways together, by what answers say they used."""
    limits = token_limits(200)
    server = inferd()
    gateways = [envoy([server.port], [server.port], ratelimit=limits.grpc, name=f"envoy{i}") for i in range(2)]
    used, asked, left = 0, 0, []
    while (reply := chat(gateways[asked % 2], TWO, script="count", max_tokens=30)).status_code != 429:
        assert reply.status_code == 200, reply.text
        left.append(int(reply.headers["x-ratelimit-remaining"]))
        used += reply.json()["usage"]["total_tokens"]
        asked += 1
        limits.wait_counted("team-two", used)
        assert used < 400, "nothing is refused\n" + limits.service.log()
    assert used > 200 and left == sorted(left, reverse=True) and left[0] == 200 > left[-1] > 0
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(reply.headers["retry-after"]) <= 3600  # the end of the window, not a constant
    assert chat(gateways[asked % 2 - 1], TWO).status_code == 429  # the other gateway knows
    assert chat(gateways[0], ONE).status_code == 200  # another key has its own
    limits.redis.kill()
    assert chat(gateways[0], TWO).status_code == 200  # without the count requests go on


def test_tokens_of_streams_and_of_other_protocols(envoy, inferd, token_limits):
    """A stream counts as its answer would; one that its client leaves counts the events that came."""
    limits = token_limits(10**6)
    server = inferd("--enable-force-include-usage")
    gateway = envoy([server.port], [server.port], ratelimit=limits.grpc)
    whole = chat(gateway, TWO, script="count", max_tokens=50).json()["usage"]["total_tokens"]
    limits.wait_counted("team-two", whole)
    with httpx.Client(timeout=30, headers=TWO) as client:
        assert len(read_stream(client, gateway.url, chat_body("count", max_tokens=50)).split()) == 50
    limits.wait_counted("team-two", 2 * whole)
    reply = httpx.post(gateway.url + "/v1/messages", headers=TWO, timeout=30, json={
        "model": "chat", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "go [[count]]"}]})
    assert reply.status_code == 200 and "message_stop" in reply.text, reply.text
    limits.wait_counted("team-two", 3 * whole)
    reply = httpx.post(gateway.url + "/v1/responses", headers=TWO, timeout=30,
                       json={"model": "chat", "max_output_tokens": 50, "input": "go [[count]]"})
    assert reply.json()["usage"]["total_tokens"] == whole, reply.text
    limits.wait_counted("team-two", 4 * whole)
    # Anthropic's first event tells the prompt's tokens; those of the answer come with the last one.
    anthropic = {"model": "chat", "max_tokens": 4000, "stream": True, "messages": [{"role": "user", "content": "go [[count]]"}]}
    counted = 0
    for path, body in (("/v1/chat/completions", chat_body("count", max_tokens=4000, stream=True)), ("/v1/messages", anthropic)):
        with httpx.Client(timeout=30, headers=ONE) as client, client.stream("POST", gateway.url + path, json=body) as reply:
            events = 0
            for line in reply.iter_lines():
                events += line.startswith("data: ")
                if events == 100:
                    break
        eventually(lambda: counted + 100 <= limits.counted("team-one") < counted + 4000, message=lambda: str(limits.counted("team-one")))
        counted = limits.counted("team-one")


def test_without_the_rate_limit_service_requests_go_on(envoy, inferd):
    server = inferd()
    gateway = envoy([server.port], [server.port], ratelimit=free_ports(1)[0])
    assert chat(gateway, ONE).status_code == 200


def test_what_is_tried_again(envoy):
    """An inference that was refused with 503 goes to another replica, a little later; 429 and uploads are asked once."""
    for answer, path, model, attempts in ((503, "/v1/chat/completions", "chat", 2), (429, "/v1/chat/completions", "chat", 1),
                                          (503, "/v1/files", "", 1), (500, "/v1/chat/completions", "chat", 1)):
        replicas = [harness.FakeReplica(answer) for _ in range(2)]
        gateway = envoy([r.port for r in replicas], [replicas[0].port], name=f"envoy{answer}{model}")
        reply = httpx.post(gateway.url + path, json={"model": model}, headers=ONE, timeout=30)
        assert reply.status_code == answer
        assert reply.headers["retry-after"] == "7"  # the replica's own words
        assert reply.json()["error"]["message"] == "fake"
        seen = [len(r.seen) for r in replicas]
        assert sum(seen) >= attempts and (attempts > 1) == (sum(seen) > 1), (answer, path, seen)
        if attempts > 1:
            assert min(seen) >= 1, seen  # on another one, not the same again


def test_a_client_cannot_say_who_it_is(envoy):
    """Of the headers that name a tenant only the one goes on that the key gave."""
    replica = harness.FakeReplica(200)
    gateway = envoy([replica.port], [replica.port])
    assert chat(gateway, {**ONE, **harness.FORGED}).status_code == 200
    assert {name: replica.headers.get_all(name) for name in harness.FORGED if name in replica.headers} == {"X-Tenant": ["team-one"]}
