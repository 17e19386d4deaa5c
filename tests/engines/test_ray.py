# SPDX-License-Identifier: Apache-2.0
"""integrations/ray_serve under a real Ray Serve: deploy two applications from the shipped file, stream, scale 1 to 3 to 1,
kill a daemon and recover, 429 when overloaded. Models, sizes and delays are changed for the test."""

import collections
import os
import secrets
import sys
import threading
import time

import httpx
import pytest
import yaml

ray = pytest.importorskip("ray", reason="Ray is not installed; `./dev test cluster-engines` has it")

import harness  # noqa: E402
from harness import FOX, chat_body, eventually, free_ports, read_stream  # noqa: E402

APP = harness.ROOT / "integrations/ray_serve"


@pytest.fixture(scope="module")
def url(binary, toy, tmp_path_factory):
    os.environ.update(RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5", RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",
                      PYTHONPATH=str(APP), RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", HF_HUB_OFFLINE="1",
                      RAY_AUTH_TOKEN=secrets.token_hex(32))  # else Ray keeps one in the home folder
    sys.path.insert(0, str(APP))
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema
    port, = free_ports(1)
    config = yaml.safe_load((APP / "serve_config.yaml").read_text())
    config["http_options"].update(host="127.0.0.1", port=port)
    for application in config["applications"]:
        application["args"].update(model=str(toy), served_model_name="chat", binary=str(binary), drain_seconds=10, flags=[
            "--threads", "1", "--kv-cache-bytes", str(64 << 20)])
        deployment = application["deployments"][0]
        deployment["ray_actor_options"] = {"num_cpus": 0.1}
        deployment.update(health_check_period_s=1, graceful_shutdown_timeout_s=15)
    chat, small = config["applications"]
    chat["deployments"][0].update(max_ongoing_requests=6, max_queued_requests=200)
    scaling = chat["deployments"][0]["autoscaling_config"]
    scaling.update(max_replicas=3, upscale_delay_s=1, downscale_delay_s=2, metrics_interval_s=0.5,
                   look_back_period_s=1)
    scaling["policy"]["policy_kwargs"]["requests_per_replica"] = 4
    small["deployments"][0].update(num_replicas=1, max_ongoing_requests=4, max_queued_requests=4)
    begun = time.monotonic()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=str(tmp_path_factory.mktemp("r"))[:80])
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 600})
        began_to_deploy = time.monotonic()
        _get_global_client().deploy_apps(ServeDeploySchema(**config))

        def running():
            states = serve.status().applications
            assert not any(s.status == "DEPLOY_FAILED" for s in states.values()), states
            return len(states) == 2 and all(s.status == "RUNNING" for s in states.values())

        eventually(running, 180, 0.5, message=lambda: serve.status())
        print(f"Ray and Serve up after {began_to_deploy - begun:.1f} s, both applications {time.monotonic() - began_to_deploy:.1f} s later")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def daemons(application=None):
    """The daemons' pids, leaders only."""
    import psutil
    return [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] and p.info["cmdline"][1:2] == ["serve"]
            and any("inferd-" in a and a.endswith("/port") for a in p.info["cmdline"])]


def replicas(application):
    from ray import serve
    states = serve.status().applications[application].deployments["Inferd"].replica_states
    return {str(getattr(state, "value", state)): count for state, count in states.items()}.get("RUNNING", 0)


def ask(client, url, **more):
    reply = client.post(url + "/v1/chat/completions", json=chat_body(**more))
    return reply


def test_two_applications_and_streams(url):
    with httpx.Client(timeout=60) as client:
        for prefix in ("/chat", "/small"):
            eventually(lambda: ask(client, url + prefix).status_code == 200, 30)
            assert ask(client, url + prefix).json()["choices"][0]["message"]["content"] == FOX
            assert client.get(url + prefix + "/v1/models").json()["data"][0]["id"] == "chat"
        bad = client.post(url + "/chat/v1/chat/completions", json={"model": "nobody", "messages": []})
        assert bad.status_code in (400, 404) and "error" in bad.json()  # the daemon's own answer
        text = read_stream(client, url + "/chat", chat_body("count", max_tokens=300))
        assert len(text.split()) == 300
        with client.stream("POST", url + "/chat/v1/chat/completions", json=chat_body("count", max_tokens=3900, stream=True)) as reply:
            chunks = reply.iter_text()
            first = next(chunks)
            assert "[DONE]" not in first  # it came before the end was made


def test_scales_on_the_queue_of_the_daemons(url):
    assert replicas("chat") == 1
    stop, failures = threading.Event(), []

    def talk():
        with httpx.Client(timeout=120) as client:
            while not stop.is_set():
                reply = ask(client, url + "/chat", script="count", max_tokens=1500)
                if reply.status_code != 200:
                    failures.append((reply.status_code, reply.text[:200]))

    threads = [threading.Thread(target=talk) for _ in range(16)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: replicas("chat") == 3, 90, 0.5, message=lambda: f"{replicas('chat')} replicas")
        print(f"1 to 3 replicas after {time.monotonic() - begun:.1f} s")
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert failures == []
    begun = time.monotonic()
    eventually(lambda: replicas("chat") == 1, 90, 0.5, message=lambda: f"{replicas('chat')} replicas")
    print(f"3 to 1 replicas {time.monotonic() - begun:.1f} s after the last answer")
    eventually(lambda: len(daemons()) == 2, 30, message=lambda: daemons())  # their daemons ended with them


def test_overload_is_429(url):
    """The replica takes four, four more wait for it, the rest is refused."""
    answers = collections.Counter()
    lock = threading.Lock()

    def talk(began=None):
        with httpx.Client(timeout=120) as client:
            body = chat_body("count", max_tokens=1500, stream=True)
            with client.stream("POST", url + "/small/v1/chat/completions", json=body) as reply:
                text = ""
                for chunk in reply.iter_text():
                    text += chunk
                    if began is not None:
                        began.release()
                        began = None
            with lock:
                answers[reply.status_code] += 1
                if reply.status_code == 200:
                    assert text.rstrip().endswith("[DONE]")
                else:
                    assert reply.headers["retry-after"] == "1"

    # Forty at once that find the replica idle may all come before the first of them is handed to it, and four are answered.
    began = threading.Semaphore(0)
    threads = [threading.Thread(target=talk, args=(began,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        assert began.acquire(timeout=60), answers
    threads += [threading.Thread(target=talk) for _ in range(36)]
    for thread in threads[4:]:
        thread.start()
    for thread in threads:
        thread.join(180)
    print(f"of 40 at once {answers[200]} answered, {answers[429]} refused")
    assert set(answers) == {200, 429} and answers[200] >= 8 and answers[200] + answers[429] == 40, answers


def test_a_daemon_dies_and_is_replaced(url):
    eventually(lambda: len(daemons()) == 2, 30)
    before = set(daemons())
    for pid in before:
        os.kill(pid, 9)
    begun = time.monotonic()
    with httpx.Client(timeout=60) as client:
        first = ask(client, url + "/chat")
        assert first.status_code in (500, 503)  # at once, not after a time-out
        assert time.monotonic() - begun < 10
        eventually(lambda: ask(client, url + "/chat").status_code == 200, 90, 0.2)
        recovered = time.monotonic() - begun
        eventually(lambda: ask(client, url + "/small").status_code == 200, 90, 0.2)
        assert ask(client, url + "/chat").json()["choices"][0]["message"]["content"] == FOX
    print(f"recovered after {recovered:.1f} s")
    assert before.isdisjoint(daemons())
