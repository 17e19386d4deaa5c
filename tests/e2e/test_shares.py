# SPDX-License-Identifier: Apache-2.0
"""More than the server can serve: shares of tenants by weight, and what is refused at once with a time to come back."""

import asyncio
import hashlib
import json
import random
import re
import time

import httpx
import pytest

# Two sequences at once, so that whoever asks waits for his turn.
FLAGS = ("--max-num-seqs", "2", "--no-enable-prefix-caching")
KEYS = """
keys:
  - {{name: big, sha256: {big}, weight: 3}}
  - {{name: small, sha256: {small}}}
  - {{name: gate, sha256: {gate}, scopes: [inference, gateway]}}
"""


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    path = tmp_path_factory.mktemp("shares") / "keys.yaml"
    path.write_text(KEYS.format(**{name: hashlib.sha256(f"secret-of-{name}".encode()).hexdigest()
                                   for name in ("big", "small", "gate")}))
    server = start(*FLAGS, "--api-key-file", str(path))
    yield server
    server.stop()


def body(number, tokens):
    return {"model": "toy", "prompt": [1 + (number * 37 + i) % 200 for i in range(8)], "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0}


class Client:
    """One connection. Does as little as it can: a client that is slow to ask again has nothing waiting."""

    def __init__(self, server):
        self.port = server.port
        self.reader = self.writer = None

    async def post(self, what, headers=()):
        """Status, headers, answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        text = json.dumps(what)
        lines = "".join(f"{name}: {value}\r\n" for name, value in dict(headers).items())
        self.writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}"
                          f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        got = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        return int(head.split(" ", 2)[1]), got, json.loads(await self.reader.readexactly(int(got["content-length"])))


async def served(server, tenants, seconds):
    """Tokens that each of (headers, streams, most tokens) got while all had work waiting."""
    tokens = [0] * len(tenants)
    begin = time.monotonic() + 0.5
    end = begin + seconds

    async def stream(index, headers, most, chance):
        client = Client(server)
        while time.monotonic() < end:
            status, _, answer = await client.post(body(chance.randrange(200), chance.randint(most // 2, most)), headers)
            assert status == 200, answer
            if begin < time.monotonic() < end:
                tokens[index] += answer["usage"]["total_tokens"]

    await asyncio.gather(*(stream(index, headers, most, random.Random(1000 * index + number))
                           for index, (headers, streams, most) in enumerate(tenants) for number in range(streams)))
    return tokens


def test_two_keys_get_tokens_by_weight_whatever_they_offer(server):
    big, small = ({"Authorization": f"Bearer secret-of-{name}"} for name in ("big", "small"))
    # The small one offers ten times as many requests, and longer ones.
    got = asyncio.run(served(server, [(big, 12, 60), (small, 120, 120)], 6))
    assert sum(got) > 1000, got
    assert got[0] / sum(got) == pytest.approx(0.75, rel=0.1), got


def test_tenants_of_a_gateway_get_tokens_by_the_weight_it_says(server):
    def header(name, weight):
        return {"Authorization": "Bearer secret-of-gate", "X-Inferd-Tenant": name, "X-Inferd-Weight": str(weight)}

    got = asyncio.run(served(server, [(header("one", 1), 100, 60), (header("two", 4), 12, 60)], 6))
    assert sum(got) > 1000, got
    assert got[1] / sum(got) == pytest.approx(0.8, rel=0.1), got
    refused = httpx.post(server.url + "/v1/completions", json=body(1, 1), headers=header("one", "much"))
    assert refused.status_code == 400 and "X-Inferd-Weight" in refused.json()["error"]["message"]


def send(server, number, tokens):
    return httpx.post(server.url + "/v1/completions", json=body(number, tokens), timeout=60)


def test_prompts_that_wait_are_counted_in_tokens(start):
    server = start("--max-num-seqs", "1", "--max-waiting-tokens", "20")
    assert send(server, 0, 4).status_code == 200

    async def run():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            # Eight tokens each: the third would make 24.
            with server.paused_workers():
                asked = []
                for number in range(2):
                    asked.append(asyncio.create_task(client.post("/v1/completions", json=body(number, 4))))
                    deadline = time.monotonic() + 10
                    while f"inferd_prompt_tokens_waiting {8 * (number + 1)}\n" not in re.sub(r"{.*}", "", (await client.get("/metrics")).text):
                        assert time.monotonic() < deadline
                        await asyncio.sleep(0.01)
                refused = await client.post("/v1/completions", json=body(3, 4))
                whole = await client.post("/v1/completions", json={**body(3, 4), "prompt": [7] * 40})
            return refused, whole, [await one for one in asked]

    refused, whole, answers = asyncio.run(run())
    assert refused.status_code == whole.status_code == 429, (refused.text, whole.text)
    assert "prompts of 16 tokens wait" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1 and int(refused.headers["retry-after-ms"]) >= 1
    assert all(answer.status_code == 200 for answer in answers)
    # With nobody before it a prompt above the bound is served.
    assert httpx.post(server.url + "/v1/completions", json={**body(3, 4), "prompt": [7] * 40}, timeout=60).status_code == 200
    server.stop()


def test_who_would_wait_too_long_is_told_when_to_come_back(start):
    bound_ms = 400
    server = start("--max-num-seqs", "1", "--max-predicted-wait-ms", str(bound_ms))
    waits, refusals, tries = [], [], []

    async def one(number, delay):
        await asyncio.sleep(delay)
        client = Client(server)
        for count in range(1, 200):
            began = time.monotonic()
            status, headers, answer = await client.post(body(number, 60))
            if status == 200:
                waits.append(time.monotonic() - began)
                tries.append(count)
                return
            assert status == 429 and "would wait about" in answer["error"]["message"], answer
            refusals.append(int(headers["retry-after-ms"]))
            await asyncio.sleep(refusals[-1] / 1000)
        raise AssertionError("never taken")

    async def run():
        # The rate is known after some that queued; then everybody comes at once.
        await asyncio.gather(*(one(number, 0) for number in range(20)))
        waits.clear(), tries.clear(), refusals.clear()
        await asyncio.gather(*(one(number, number * 0.002) for number in range(200)))

    asyncio.run(run())
    assert len(waits) == 200 and refusals, (len(waits), len(refusals))
    # Those that were taken had their answer soon; a step or two, and an answer, come on top of the wait.
    waits.sort()
    assert waits[len(waits) // 2] < 5 * bound_ms / 1000 and waits[-1] < 20 * bound_ms / 1000, waits[-1]
    assert len(set(refusals)) > len(refusals) // 4, "they would all come back at once"
    assert len(refusals) < 4 * len(waits) and max(tries) < 20, "what they were told was not true"
    print(f"{len(refusals)} refusals, {max(tries)} tries at most, wait {waits[100]:.2f} s, at most {waits[-1]:.2f} s")
    server.stop()
