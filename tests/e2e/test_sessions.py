# SPDX-License-Identifier: Apache-2.0
"""X-Session-Id: the requests of a session go to one of several replicas, whatever their prompts are."""

import pytest

from conftest import complete
from processes import cpu_seconds


def shares(server, ask):
    """The part of the work that each worker does while `ask(number)` asks, in order of pid."""
    workers = server.workers()
    before = [cpu_seconds(pid) for pid in workers]
    for number in range(24):
        ask(number)
    spent = [cpu_seconds(pid) - old for pid, old in zip(workers, before)]
    assert sum(spent) > 0.1, f"too little work to tell: {spent}"
    return [seconds / sum(spent) for seconds in spent]


def prompt_of(*words):
    """Unlike all others from the first token on, so that no cache saves the work."""
    return " ".join(map(str, words)) + " one two three four five six seven eight nine ten " * 20


@pytest.fixture(scope="module")
def pair(start):
    server = start("--dp", "2", "--threads", "2", "--max-model-len", "2048")
    yield server
    server.stop()


def test_a_session_stays_at_its_replica(pair):
    def ask(session):
        def one(number):
            reply = pair.client.completions.with_raw_response.create(
                model="toy", prompt=prompt_of(session, number), max_tokens=100, temperature=0, extra_headers={"X-Session-Id": session})
            assert reply.headers["X-Session-Id"] == session
        return one

    homes = set()
    for session in ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"):
        parts = shares(pair, ask(session))
        assert max(parts) > 0.9, f"{session}: {parts}"
        homes.add(parts.index(max(parts)))
        if len(homes) == 2:
            break
    assert homes == {0, 1}, "all sessions went to one replica"


def test_without_one_requests_are_spread(pair):
    parts = shares(pair, lambda number: complete(pair, prompt_of("nobody", number), max_tokens=100))
    assert max(parts) < 0.9, parts
