# SPDX-License-Identifier: Apache-2.0
"""docker/compose.yaml without Docker, which is not to be had here: its files are there, its names fit the configurations
they are used in, the server takes its command lines, and all of it runs as a set (compose_player.py)."""

import pathlib
import re
import subprocess

import httpx
import pytest
import yaml

import compose_player
import harness
import image_player
from harness import FOX, chat_body, eventually
from test_images import player  # noqa: F401, a fixture

DOCKER = harness.ROOT / "docker"


def test_names_files_and_command_lines(binary, tmp_path):
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services = compose["services"]
    names = set(services)
    for service in services.values():
        names.update((service.get("networks") or {}).get("default", {}).get("aliases", []) if service.get("networks") else [])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in compose["volumes"], volume
    envoy = yaml.safe_load((harness.DEPLOY / "envoy/envoy.yaml").read_text())
    for cluster in envoy["static_resources"]["clusters"]:
        for group in cluster.get("load_assignment", {}).get("endpoints", []):
            for endpoint in group["lb_endpoints"]:
                assert endpoint["endpoint"]["address"]["socket_address"]["address"] in names
    prometheus = yaml.safe_load((harness.DEPLOY / "observability/prometheus.yaml").read_text())
    for target in prometheus["scrape_configs"][0]["static_configs"][0]["targets"]:
        assert target.split(":")[0] in names
    server = services["inferd-0"]
    assert server["read_only"] is True and server["cap_drop"] == ["ALL"]
    done = subprocess.run([binary, *server["command"], "--print-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    grace = int(re.fullmatch(r"(\d+)s", server["stop_grace_period"])[1])
    assert grace >= config["http"]["drain_delay_s"] + config["http"]["shutdown_timeout_s"] + 5


def test_the_set_runs(player, engine, toy, tmp_path):  # noqa: F811
    """Gateway, two replicas, limits in Redis and Prometheus, as the file starts them: healthy, a chat through the gateway, both
    replicas scraped, one replica stopped and missed by nobody, and every replica ends within its grace."""
    for name in ("redis", "prometheus", "ratelimit"):
        engine(name)  # before the image takes its time
    try:
        final = player.play(harness.ROOT / "docker/Dockerfile.cpu")["final"]
    except image_player.Unavailable as reason:
        pytest.skip(str(reason))
    key = {"Authorization": "Bearer sk-change-me-one"}
    with compose_player.Compose(tmp_path, final, toy, engine) as made:
        replicas = [name for name, spec in made.services.items() if spec["image"].startswith("inferd:")]
        assert len(replicas) == 2

        def logs():
            return "\n".join(f"== {name}\n{service.log()[-1500:]}" for name, service in made.running.items())

        def chat(**headers):
            with made.inside("gateway"):
                return httpx.post(made.published("gateway") + "/v1/chat/completions", json=chat_body(), headers=headers, timeout=30)

        def query(expression):
            with made.inside("prometheus"):
                reply = httpx.get(made.published("prometheus") + "/api/v1/query", params={"query": expression}, timeout=10).json()
            return {each["metric"]["instance"].split(":")[0]: float(each["value"][1]) for each in reply["data"]["result"]}

        def soon(check):
            eventually(lambda: made.tend() or check(), 60, 0.5, logs)

        for name in replicas:
            soon(made.running[name].healthy)
        soon(lambda: chat(**key).status_code == 200)
        assert chat(**key).json()["choices"][0]["message"]["content"] == FOX
        # Counted in Redis, once the service has found it.
        soon(lambda: int(chat(**key).headers.get("x-ratelimit-remaining", 0)) > 0)
        assert chat().status_code == 401

        soon(lambda: query("up") == {name: 1 for name in replicas})
        for _ in range(20):
            assert chat(**key).status_code == 200
        soon(lambda: min(query("inferd_generation_tokens_total").values()) > 0)  # both took their share
        with made.inside("prometheus"):
            groups = httpx.get(made.published("prometheus") + "/api/v1/rules", timeout=10).json()["data"]["groups"]
        assert groups and {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}

        assert made.stop(replicas[1]) == 0, logs()
        assert [chat(**key).status_code for _ in range(20)] == [200] * 20
        soon(lambda: query("up") == {replicas[0]: 1, replicas[1]: 0})
        assert made.stop(replicas[0]) == 0, logs()
        made.running["redis"].process.kill()  # one that ends by itself keeps nothing else from ending
    assert all(service.process.poll() is not None for service in made.running.values())
    assert not any(pathlib.Path(f"/run/netns/{name}").exists() for name in made.network.hosts)
