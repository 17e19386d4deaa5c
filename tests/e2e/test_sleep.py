# SPDX-License-Identifier: Apache-2.0
"""--enable-sleep-mode: /sleep, /wake_up and /is_sleeping as vLLM has them."""

import hashlib
import json
import threading
import time
import urllib.error
import urllib.request

import pytest

import processes
from conftest import complete


def call(server, path, method="POST", key=None):
    """Status, headers and body as JSON."""
    request = urllib.request.Request(server.url + path, b"" if method == "POST" else None, method=method,
                                     headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, dict(reply.headers), json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.load(error)


def resident(server):
    """Bytes of all workers in memory."""
    return sum(map(processes.resident_bytes, server.workers()))


def prompt_of(number):
    return f"{number} " + "one two three four five six seven eight nine ten " * 10


@pytest.mark.parametrize("level", [1, 2])
def test_memory_goes_back_and_answers_come_back(start, level):
    server = start("--enable-sleep-mode", "--tp", "2")
    replies = [complete(server, prompt_of(number), max_tokens=8).choices[0].text for number in range(60)]
    before, workers = resident(server), server.workers()
    assert call(server, "/is_sleeping", "GET")[2]["is_sleeping"] is False
    status, _, body = call(server, f"/sleep?level={level}")
    assert (status, body) == (200, {"is_sleeping": True, "level": level})
    assert call(server, "/is_sleeping", "GET")[2] == {"is_sleeping": True, "level": level}
    deadline = time.monotonic() + 10
    while (now := resident(server)) > before - (4 << 20):  # a process that has ended takes a moment to be gone
        assert time.monotonic() < deadline, f"{before} bytes were resident, {now} are"
        time.sleep(0.02)
    # Asleep: not ready, and says so; alive.
    status, headers, body = call(server, "/readyz", "GET")
    assert status == 503 and body["status"] == "asleep"
    assert server.status("/livez") == 200
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps({"model": "toy", "prompt": "a"}).encode(),
                                     {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 503 and int(refused.value.headers["Retry-After"]) > 0
    assert "asleep" in json.load(refused.value)["error"]["message"]
    state = {1: "weights_offloaded", 2: "discard_all"}[level]
    assert f'vllm:engine_sleep_state{{model_name="toy",sleep_state="{state}"}} 1' in server.get("/metrics")
    assert call(server, "/wake_up")[0] == 200
    assert server.status("/readyz") == 200
    assert (server.workers() == workers) == (level == 1)
    assert [complete(server, prompt_of(number), max_tokens=8).choices[0].text for number in range(60)] == replies
    server.stop()


def test_a_stream_goes_on_after_a_nap(start):
    # A token takes some 40 ms.
    server = start("--enable-sleep-mode", "--device", "sim:H100@6/llama-3.1-8b", "--kv-cache-bytes", "0", "--max-model-len", "2048")
    asked = {"model": "toy", "prompt": "one two three four", "max_tokens": 40, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = server.client.completions.create(**asked).choices[0].text
    stream = server.client.completions.create(stream=True, **asked)
    text = next(iter(stream)).choices[0].text
    assert call(server, "/sleep?mode=keep")[0] == 200
    assert server.metric("inferd_num_requests_waiting") == 1, "it has not ended"
    assert call(server, "/wake_up")[0] == 200
    assert text + "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole
    server.stop()


def test_a_server_that_ends_asleep_does_not_wait_for_what_it_kept(start):
    server = start("--enable-sleep-mode", "--device", "sim:H100@6/llama-3.1-8b", "--kv-cache-bytes", "0", "--max-model-len", "2048",
                   "--shutdown-timeout", "120")
    stream = server.client.completions.create(model="toy", prompt="one two", max_tokens=1000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert call(server, "/sleep?mode=keep")[0] == 200
    server.stop()  # within less than the timeout


def test_bad_parameters_and_a_server_that_may_not_sleep(start, server, tmp_path):
    assert call(server, "/is_sleeping", "GET")[2]["is_sleeping"] is False
    status, _, body = call(server, "/sleep")
    assert status == 404 and "--enable-sleep-mode" in body["error"]["message"]
    assert call(server, "/wake_up")[0] == 404
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps({"keys": [
        {"name": "user", "sha256": hashlib.sha256(b"user-key").hexdigest()},
        {"name": "op", "sha256": hashlib.sha256(b"op-key").hexdigest(), "scopes": ["admin"]}]}))
    own = start("--enable-sleep-mode", "--api-key-file", str(keys))
    assert call(own, "/sleep")[0] == 401
    assert call(own, "/sleep", key="user-key")[0] == 403
    for path in ("/sleep?level=3", "/sleep?level=x", "/sleep?mode=hibernate"):
        status, _, body = call(own, path, key="op-key")
        assert status == 400 and body["error"]["param"] in ("level", "mode"), body
    assert call(own, "/sleep?level=2", key="op-key")[0] == 200
    own.stop()  # also from its sleep


def test_a_long_step_does_not_end_a_worker_that_goes_to_sleep(start):
    server = start("--enable-sleep-mode")
    (worker,) = server.workers()
    answered = []
    with server.paused_workers():  # a step that takes four seconds
        asking = threading.Thread(target=lambda: answered.append(complete(server, "[[count]]", max_tokens=5).choices[0].text))
        asking.start()
        server.wait_requests(1)
        falling = threading.Thread(target=lambda: answered.append(call(server, "/sleep?level=1&mode=keep")[0]))
        falling.start()
        time.sleep(4)
        assert answered == []
    falling.join(20)
    assert answered == [200]
    assert server.workers() == [worker]
    assert call(server, "/wake_up")[0] == 200
    asking.join(20)
    assert answered[1:] == [" one two three four five"]
    server.stop()


def test_a_killed_worker_is_gone_when_sleep_answers(start):
    server = start("--enable-sleep-mode")
    with server.paused_workers():  # it cannot end by itself
        assert call(server, "/sleep?level=2")[0] == 200
        assert server.workers() == []
    assert call(server, "/wake_up")[0] == 200
    assert complete(server, "[[count]]", max_tokens=5).choices[0].text == " one two three four five"
    server.stop()
