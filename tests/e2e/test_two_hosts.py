# SPDX-License-Identifier: Apache-2.0
"""Two and three hosts as network namespaces on one switch: ranks spread over them give the answers of one host, a lost worker is
replaced, links fail for a moment or for good, and who does not belong to the cluster is refused."""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from hosts import MODELS, READY_SECONDS, REQUEST, Cluster, Network, environment, why_not
from processes import children


@pytest.fixture
def cluster(inferd, tmp_path):
    """cluster(hosts, model, *flags): starts one; ended with the test."""
    reason = why_not()
    if reason:
        print(f"test of several hosts skipped: {reason}")
        pytest.skip(reason)
    made = []

    def start(hosts, model, *flags, **more):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        network = Network(hosts).__enter__()
        made.append(network)
        server = Cluster(inferd, network, folder, model, flags, **more)
        made.append(server)
        return server

    yield start
    for each in reversed(made):
        each.kill() if isinstance(each, Cluster) else each.__exit__()


@pytest.fixture(scope="module")
def alone(inferd, tmp_path_factory):
    """alone(model): text and tokens of one rank on one host."""
    cache = {}

    def answer(model):
        if model not in cache:
            folder = tmp_path_factory.mktemp("alone")
            port_file = folder / "port"
            process = subprocess.Popen(
                [inferd, "--model", str(MODELS / model), "--served-model-name", "m", "--port", "0", "--grpc-port", "none", "--port-file",
                 str(port_file), "--kv-cache-bytes", str(32 << 20)], env=environment(), stderr=subprocess.DEVNULL)
            try:
                cache[model] = ask_alone(process, port_file)
            finally:
                process.terminate()
                process.wait(40)
        return cache[model]

    return answer


def ask_alone(process, port_file):
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None
        if port_file.exists() and port_file.read_text().strip():
            url = f"http://127.0.0.1:{port_file.read_text().strip()}"
            try:
                urllib.request.urlopen(url + "/readyz", timeout=5).read()
                call = urllib.request.Request(url + "/v1/completions", json.dumps(REQUEST).encode(), {"Content-Type": "application/json"})
                choice = json.loads(urllib.request.urlopen(call, timeout=60).read())["choices"][0]
                return choice["text"], choice["logprobs"]["tokens"]
            except urllib.error.HTTPError as error:
                assert error.code == 503, error.read()
        time.sleep(0.1)
    raise AssertionError("not ready in time")


@pytest.mark.parametrize("hosts, model, flags", [
    (2, "llama", ("--pp", "2")),
    (2, "llama", ("--tp", "2", "--allow-cross-host-tp")),
    (2, "mixtral", ("--ep", "2")),
    (2, "llama", ("--tp", "2", "--pp", "2")),
    (3, "gemma2", ("--pp", "3")),
    (3, "llama", ("--tp", "3", "--allow-cross-host-tp")),
    (3, "gemma2", ("--tp", "2", "--pp", "3")),
])
def test_ranks_on_several_hosts(cluster, alone, hosts, model, flags):
    server = cluster(hosts, model, *flags)
    server.wait_until_ready()
    for process in (server.leader, *server.agents):
        assert len(children(process.pid)) == len(children(server.leader.pid)) > 0
    assert server.answer() == alone(model)
    server.stop()


def test_a_worker_lost_on_another_host_is_replaced(cluster, alone):
    server = cluster(2, "llama", "--pp", "2")
    server.wait_until_ready()
    assert server.answer() == alone("llama")
    (victim,) = children(server.agents[0].pid)
    os.kill(victim, signal.SIGKILL)
    assert server.answer() == alone("llama")
    assert children(server.agents[0].pid) != [victim]
    server.stop()


# TCP sends again what was lost 0.2, 0.6, 1.4 and 3 s later: a link that is back within 2 s costs a pause of at most 3.
@pytest.mark.parametrize("hosts, model, flags, down_seconds, longest", [
    (2, "llama", ("--pp", "2"), 0.2, 4),
    (2, "llama", ("--tp", "2", "--allow-cross-host-tp"), 2, 8),
    (3, "gemma2", ("--pp", "3"), 2, 8),
])
def test_a_link_that_comes_back_costs_a_pause(cluster, alone, hosts, model, flags, down_seconds, longest):
    server = cluster(hosts, model, *flags)
    server.wait_until_ready()
    text, _ = alone(model)
    workers = [children(process.pid) for process in (server.leader, *server.agents)]
    client = server.load(down_seconds + 6)
    time.sleep(1)
    server.network.link(hosts - 1, "down")
    time.sleep(down_seconds)
    server.network.link(hosts - 1, "up")
    answers = server.answers(client)
    assert {(status, said) for _, _, status, said in answers} == {(200, text)}, server.log()
    pause = max(seconds for _, seconds, _, _ in answers)
    assert 0.15 < pause < longest, pause
    # Nothing was lost and begun again: the same processes, and no new generation.
    assert workers == [children(process.pid) for process in (server.leader, *server.agents)], server.log()
    assert "beginning generation" not in server.log()
    server.stop()


def test_a_link_that_stays_away_longer_begins_a_new_generation(cluster, alone):
    server = cluster(2, "llama", "--pp", "2")
    server.wait_until_ready()
    text, _ = alone("llama")
    client = server.load(22)
    time.sleep(1)
    server.network.link(1, "down")
    deadline = time.monotonic() + 15
    while "node 1 is gone" not in server.log(server.leader):
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.1)
    server.network.link(1, "up")
    answers = server.answers(client)
    assert {(status, said) for _, _, status, said in answers} == {(200, text)}, server.log()
    assert "is back after" in server.log(server.leader)
    server.stop()


def test_a_link_that_is_gone_for_good_ends_the_group_with_status_4(cluster):
    server = cluster(3, "gemma2", "--pp", "3", peer_timeout=3)
    server.wait_until_ready()
    client = server.load(20)
    time.sleep(1)
    server.network.link(2, "down")
    began = time.monotonic()
    assert server.leader.wait(30) == 4, server.log()
    # Noticed within 7 s (2 s until the next ping, 5 s for its answer), then away for --peer-timeout.
    assert time.monotonic() - began < 20, server.log()
    assert "node 2 has been away for 3000 ms" in server.log(server.leader)
    cut_off, near = server.agents[1], server.agents[0]
    assert cut_off.wait(30) == 4, server.log()
    assert near.wait(30) in (0, 4), server.log()
    # What ran is told; later nobody listens any more.
    answers = server.answers(client)
    statuses = [status for _, _, status, _ in answers]
    assert set(statuses) == {200, 503, 0} and statuses == sorted(statuses, key=[200, 503, 0].index), statuses


def test_a_host_with_another_secret_is_refused(cluster):
    server = cluster(2, "llama", "--pp", "2", agent_secret="some other secret, as long as the first one")
    assert server.leader.wait(60) == 4, server.log()
    assert "did not join" in server.log(server.leader)
    assert "ready: " not in server.log()
    assert server.agents[0].wait(60) == 4, server.log()
    assert "same cluster secret" in server.log(server.agents[0])


def test_who_does_not_belong_is_refused_and_the_cluster_goes_on(cluster, alone, inferd, tmp_path):
    # The same binary but for the name of its build.
    name, other = b"inferd 0.1.0 protocol 1", b"inferd 0.0.9 protocol 0"
    program = pathlib.Path(inferd).read_bytes()
    assert name in program
    old = tmp_path / "inferd-of-another-build"
    old.write_bytes(program.replace(name, other))
    old.chmod(0o755)

    server = cluster(3, "gemma2", "--pp", "3")
    server.wait_until_ready()
    refused = {
        "taken by another host": server.start_agent(2, rank=1),
        "not one of 1 to 2": server.start_agent(2, rank=7),
        "are taken": server.start_agent(2, rank=-1),
        other.decode(): server.start_agent(2, rank=2, inferd=str(old)),
    }
    for why, agent in refused.items():
        assert agent.wait(30) == 1, server.log(agent)
        assert why in server.log(agent)
    assert server.answer() == alone("gemma2")
    assert "beginning generation" not in server.log()
    server.stop()
