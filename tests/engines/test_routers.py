# SPDX-License-Identifier: Apache-2.0
"""sglang-router, smg and vllm-router as they are, before real servers: chats, prefix stickiness, the death of a worker."""

import httpx
import pytest

import harness
from harness import FOX, Load, chat_body, eventually, free_ports, read_stream

ROUTERS = {
    "sglang-router": ["sglang-router", "launch", "--policy", "cache_aware"],
    "smg": ["smg", "launch", "--policy", "cache_aware"],
    "vllm-router": ["vllm-router", "--policy", "cache_aware"],
}


@pytest.fixture(params=ROUTERS, ids=ROUTERS)
def router(request, spawn):
    def run(workers):
        port, metrics = free_ports(2)
        command = ROUTERS[request.param]
        process = spawn([harness.VENV / command[0], *command[1:], "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics,
                         "--worker-urls", *(w.url for w in workers)], name=request.param,
                        environment={"HF_HUB_OFFLINE": "1", "no_proxy": "*"})
        url = f"http://127.0.0.1:{port}"

        def ready():
            assert process.alive(), process.log()
            return httpx.post(url + "/v1/chat/completions", json=chat_body(), timeout=30).status_code == 200

        eventually(ready, 90, 0.2, message=process.log)
        return url

    return run


def generated(server):
    return server.metric("inferd_generation_tokens_total")


def test_chats_stickiness_and_the_death_of_a_worker(router, inferd):
    workers = [inferd(), inferd()]
    url = router(workers)
    with httpx.Client(timeout=60) as client:
        def ask(text="", **more):
            body = chat_body(**more)
            body["messages"][0]["content"] = text + body["messages"][0]["content"]
            reply = client.post(url + "/v1/chat/completions", json=body)
            return reply.status_code, reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else reply.text

        assert ask() == (200, FOX)
        assert len(read_stream(client, url, chat_body("count", max_tokens=40)).split()) == 40

        # A conversation's prompt goes back to the worker that has it, and that worker finds it in its cache.
        long = "one two three four five six seven " * 60
        hits = [w.metric("inferd_prefix_cache_hits_total") for w in workers]
        before = [generated(w) for w in workers]
        for _ in range(8):
            assert ask(long) == (200, FOX)
        shares = [generated(w) - b for w, b in zip(workers, before)]
        assert max(shares) / sum(shares) >= 7 / 8, shares
        favourite = shares.index(max(shares))
        assert workers[favourite].metric("inferd_prefix_cache_hits_total") - hits[favourite] > 6 * 200

        # Its death is survived: after what the router tries again by itself, all are answered by the other one.
        workers[favourite].kill()
        eventually(lambda: ask(long) == (200, FOX), 60, 0.2)
        assert [ask(f"{n} " + long) for n in range(10)] == [(200, FOX)] * 10
        assert generated(workers[1 - favourite]) > 0


def test_a_worker_dies_under_load(router, inferd):
    """The worker that all chats run on is killed. What the routers promise: a chat that has not begun to be answered is tried again
    on the other worker, a stream that has breaks with an error that its client sees, and what is asked afterwards is answered."""
    workers = [inferd(), inferd()]
    streams = 6
    load = Load(router(workers), {}, plain=6, streams=streams, tokens=300)
    try:
        load.wait_done(40)
        running = [w.metric("inferd_num_requests_running") for w in workers]
        assert max(running) > streams / 2, running  # the same prompt stays with one worker
        workers[running.index(max(running))].kill()
        load.wait_done(load.done() + 60, 90)
    finally:
        load.stop()
    assert load.failures == []
    assert load.silent_cuts == []
    assert load.streams_broken <= streams
