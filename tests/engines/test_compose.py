# SPDX-License-Identifier: Apache-2.0
"""docker/compose.yaml without Docker, which is not to be had here: its files are there, its names fit the configurations
they are used in, and the server takes its command lines."""

import re
import subprocess

import yaml

import harness

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
