# SPDX-License-Identifier: Apache-2.0
"""The rules by promtool, and a real Prometheus that scrapes a real server: every expression of the board returns data."""

import json
import subprocess
import threading

import httpx
import yaml

import harness
from harness import chat_body, eventually, free_ports, read_stream

FOLDER = harness.DEPLOY / "observability"


def test_rules_and_alerts(engine):
    promtool = engine("prometheus") / "usr/bin/promtool"
    done = subprocess.run([promtool, "test", "rules", "rules_test.yaml"], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = [rule["alert"] for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"] if "alert" in rule]
    tested = {case["alertname"] for case in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"][0]["alert_rule_test"]}
    assert set(alerts) == tested


def test_every_panel_shows_something(engine, inferd, spawn, tmp_path):
    folder = engine("prometheus") / "usr/bin"
    server = inferd("--max-num-seqs", "4")
    lint = subprocess.run([folder / "promtool", "check", "metrics"], input=httpx.get(server.url + "/metrics").content, capture_output=True, timeout=60)
    # vLLM's names have colons; a gauge that was given the suffix of counters keeps its name.
    errors = [line for line in lint.stderr.decode().splitlines() if "vllm:" not in line and "inferd_kv_pages_total" not in line]
    assert errors == [], errors
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    rules = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    rules["groups"][0]["interval"] = "1s"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    port, = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    prometheus = spawn([folder / "prometheus", f"--config.file={tmp_path / 'prometheus.yaml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
                        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"])
    prometheus.wait_for(url + "/-/ready")

    stop = threading.Event()

    def talk():
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                read_stream(client, server.url, chat_body("count", max_tokens=30))
                client.post(server.url + "/v1/completions", json={"model": "chat", "prompt": "one two three " * 60 + "[[fox]]", "max_tokens": 4})

    threads = [threading.Thread(target=talk) for _ in range(3)]
    for thread in threads:
        thread.start()
    board = json.loads((FOLDER / "grafana.json").read_text())
    expressions = [target["expr"].replace("$model", ".*") for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(expressions) >= 25

    def empty():
        missing = []
        for expression in expressions:
            answer = httpx.get(url + "/api/v1/query", params={"query": expression}, timeout=30).json()
            assert answer["status"] == "success", (expression, answer)
            if not any(sample["value"][1] != "NaN" for sample in answer["data"]["result"]):
                missing.append(expression)
        return missing

    try:
        eventually(lambda: empty() == [], 60, 1, message=lambda: f"no data: {empty()}")
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    names = {rule["name"] for group in httpx.get(url + "/api/v1/rules").json()["data"]["groups"] for rule in group["rules"]}
    assert "InferdNoReplicaReady" in names
    assert httpx.get(url + "/api/v1/alerts").json()["data"]["alerts"] == []
