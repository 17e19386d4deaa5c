# SPDX-License-Identifier: Apache-2.0
"""Two hosts as two network namespaces joined by a veth pair: ranks spread over both, answers equal those of one host."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

MODELS = pathlib.Path(__file__).resolve().parents[1] / "data"
SECRET = "a secret of the two test hosts, long enough"
PROMPT = [5, 17, 42, 99, 3, 200, 64, 8]
TOKENS = 40
READY_SECONDS = 60


def sh(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def in_namespace(namespace, *command):
    return ["ip", "netns", "exec", namespace, *command]


def why_not():
    """Why this machine cannot run the test, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip command (iproute2)"
    probe = f"inferd-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


@pytest.fixture
def hosts():
    """Names of two namespaces with addresses 10.199.0.1 and 10.199.0.2."""
    reason = why_not()
    if reason:
        print(f"two-host test skipped: {reason}")
        pytest.skip(reason)
    names = [f"inferd{os.getpid()}a", f"inferd{os.getpid()}b"]
    links = [f"if{os.getpid()}a", f"if{os.getpid()}b"]
    try:
        for name in names:
            sh("ip", "netns", "add", name)
        sh("ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for number, (name, link) in enumerate(zip(names, links), 1):
            sh("ip", "link", "set", link, "netns", name)
            sh(*in_namespace(name, "ip", "addr", "add", f"10.199.0.{number}/24", "dev", link))
            sh(*in_namespace(name, "ip", "link", "set", link, "up"))
            sh(*in_namespace(name, "ip", "link", "set", "lo", "up"))
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Cluster:
    """A leader in the first namespace and an agent in the second."""

    def __init__(self, inferd, hosts, folder, model, flags, agent_secret=SECRET):
        self.hosts = hosts
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}
        common = ["--nnodes", "2", "--leader", "10.199.0.1:7000"]
        self.leader = self.start(hosts[0], "leader", SECRET, [
            inferd, "--model", str(MODELS / model), "--served-model-name", "m", "--port", "8000", "--node-rank", "0",
            "--data-address", "10.199.0.1", "--kv-cache-bytes", str(32 << 20), "--rendezvous-timeout", "20",
            *common, *flags])
        self.agent = self.start(hosts[1], "agent", agent_secret, [
            inferd, "--node-rank", "1", "--data-address", "10.199.0.2", "--rendezvous-timeout", "20", *common])

    def start(self, namespace, name, secret, command):
        secret_file = self.folder / f"{name}.secret"
        secret_file.write_text(secret + "\n")
        log = open(self.folder / f"{name}.log", "wb")
        # exec: the pid is that of inferd itself, so that signals reach it.
        return subprocess.Popen(in_namespace(namespace, *command, "--cluster-secret-file", str(secret_file)),
                                stdout=log, stderr=log, env=self.environment)

    def log(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def curl(self, path, body=None):
        command = ["python3", "-c", (
            "import sys, urllib.request\n"
            "data = sys.stdin.buffer.read() or None\n"
            "call = urllib.request.Request(sys.argv[1], data, {'Content-Type': 'application/json'})\n"
            "sys.stdout.buffer.write(urllib.request.urlopen(call, timeout=60).read())\n"),
            f"http://127.0.0.1:8000{path}"]
        done = subprocess.run(in_namespace(self.hosts[0], *command), capture_output=True, timeout=70,
                              input=b"" if body is None else json.dumps(body).encode())
        return done.stdout.decode() if done.returncode == 0 else None

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.leader.poll() is None, self.log()
            if self.curl("/readyz") is not None:
                return
            time.sleep(0.1)
        raise AssertionError("not ready in time\n" + self.log())

    def answer(self):
        reply = self.curl("/v1/completions", {"model": "m", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0,
                                              "ignore_eos": True, "logprobs": 0})
        assert reply is not None, self.log()
        choice = json.loads(reply)["choices"][0]
        return choice["text"], choice["logprobs"]["tokens"]

    def stop(self):
        self.leader.send_signal(signal.SIGTERM)
        assert self.leader.wait(40) == 0, self.log()
        assert self.agent.wait(20) == 0, self.log()

    def kill(self):
        for process in (self.leader, self.agent):
            if process.poll() is None:
                process.kill()
                process.wait()


def children(pid):
    return [int(p) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for p in (task / "children").read_text().split()]


@pytest.fixture
def cluster(inferd, hosts, tmp_path):
    made = []

    def start(model, *flags, **more):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Cluster(inferd, hosts, folder, model, flags, **more))
        return made[-1]

    yield start
    for each in made:
        each.kill()


@pytest.fixture(scope="module")
def alone(inferd, tmp_path_factory):
    """alone(model): text and tokens of one rank on one host."""
    cache = {}

    def answer(model):
        if model not in cache:
            folder = tmp_path_factory.mktemp("alone")
            port_file = folder / "port"
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}
            process = subprocess.Popen(
                [inferd, "--model", str(MODELS / model), "--served-model-name", "m", "--port", "0", "--port-file",
                 str(port_file), "--kv-cache-bytes", str(32 << 20)], env=environment, stderr=subprocess.DEVNULL)
            try:
                cache[model] = ask_alone(process, port_file)
            finally:
                process.terminate()
                process.wait(40)
        return cache[model]

    return answer


def ask_alone(process, port_file):
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None
        if port_file.exists() and port_file.read_text().strip():
            url = f"http://127.0.0.1:{port_file.read_text().strip()}"
            try:
                urllib.request.urlopen(url + "/readyz", timeout=5).read()
                body = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0,
                                   "ignore_eos": True, "logprobs": 0}).encode()
                call = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
                choice = json.loads(urllib.request.urlopen(call, timeout=60).read())["choices"][0]
                return choice["text"], choice["logprobs"]["tokens"]
            except urllib.error.HTTPError as error:
                assert error.code == 503, error.read()
        time.sleep(0.1)
    raise AssertionError("not ready in time")


@pytest.mark.parametrize("model, flags", [
    ("llama", ("--pp", "2")),
    ("llama", ("--tp", "2", "--allow-cross-host-tp")),
    ("mixtral", ("--ep", "2")),
    ("llama", ("--tp", "2", "--pp", "2")),
])
def test_ranks_on_two_hosts(cluster, alone, model, flags):
    server = cluster(model, *flags)
    server.wait_until_ready()
    assert len(children(server.leader.pid)) == len(children(server.agent.pid)) > 0
    assert server.answer() == alone(model)
    server.stop()


def test_a_worker_lost_on_the_other_host_is_replaced(cluster, alone):
    server = cluster("llama", "--pp", "2")
    server.wait_until_ready()
    assert server.answer() == alone("llama")
    (victim,) = children(server.agent.pid)
    os.kill(victim, signal.SIGKILL)
    assert server.answer() == alone("llama")
    assert children(server.agent.pid) != [victim]
    server.stop()


def test_a_host_with_another_secret_is_refused(cluster):
    server = cluster("llama", "--pp", "2", agent_secret="some other secret, as long as the first one")
    assert server.leader.wait(60) != 0
    assert "did not join" in server.log()
    assert "ready: " not in server.log()
