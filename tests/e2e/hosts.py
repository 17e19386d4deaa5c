# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces on one switch (a bridge in a namespace of its own), and a server spread over them."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

MODELS = pathlib.Path(__file__).resolve().parents[1] / "data"
SECRET = "a secret of the hosts under test, long enough"
PROMPT = [5, 17, 42, 99, 3, 200, 64, 8]
TOKENS = 40
READY_SECONDS = 60
REQUEST = {"model": "m", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0}

# Asks one thing after the other for some seconds; a line per answer: when it was sent, how long it took, status, text.
LOAD = """
import json, sys, time, urllib.error, urllib.request
url, body, end = sys.argv[1], sys.argv[2].encode(), time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    sent = time.monotonic()
    try:
        call = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(call, timeout=60) as reply:
            status, text = reply.status, json.load(reply)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError as error:
        status, text = 0, str(error)
    print(json.dumps([sent, time.monotonic() - sent, status, text]), flush=True)
"""


def sh(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def in_namespace(namespace, *command):
    return ["ip", "netns", "exec", namespace, *command]


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}


def why_not():
    """Why this machine cannot run the tests, or None."""
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


class Network:
    """`count` namespaces with the addresses 10.199.0.1, 10.199.0.2, ... on one switch."""

    def __init__(self, count):
        self.switch = f"inferd{os.getpid()}s"
        self.hosts = [f"inferd{os.getpid()}h{number}" for number in range(1, count + 1)]

    def __enter__(self):
        try:
            sh("ip", "netns", "add", self.switch)
            sh(*in_namespace(self.switch, "ip", "link", "add", "switch", "type", "bridge", "forward_delay", "0"))
            sh(*in_namespace(self.switch, "ip", "link", "set", "switch", "up"))
            for number, host in enumerate(self.hosts, 1):
                sh("ip", "netns", "add", host)
                sh("ip", "-n", self.switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
                sh("ip", "-n", self.switch, "link", "set", f"port{number}", "master", "switch", "up")
                sh("ip", "-n", host, "addr", "add", f"10.199.0.{number}/24", "dev", "eth0")
                sh("ip", "-n", host, "link", "set", "eth0", "up")
                sh("ip", "-n", host, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def link(self, host, state):
        """Pulls the cable of a host (0, 1, ...) at the switch, or puts it back: "down", "up"."""
        sh("ip", "-n", self.switch, "link", "set", f"port{host + 1}", state)


class Cluster:
    """A leader on the first host and an agent on each of the others."""

    def __init__(self, inferd, network, folder, model, flags, agent_secret=SECRET, peer_timeout=60):
        self.inferd = inferd
        self.network = network
        self.folder = folder
        self.common = ["--nnodes", str(len(network.hosts)), "--leader", "10.199.0.1:7000", "--rendezvous-timeout", "20",
                       "--peer-timeout", str(peer_timeout)]
        self.processes = []
        self.leader = self.start(0, "leader", SECRET, inferd, [
            "--model", str(MODELS / model), "--served-model-name", "m", "--port", "8000", "--grpc-port", "none", "--node-rank", "0",
            "--kv-cache-bytes", str(32 << 20), *flags])
        self.agents = [self.start_agent(host, secret=agent_secret) for host in range(1, len(network.hosts))]

    def start_agent(self, host, rank=None, secret=SECRET, inferd=None):
        rank = host if rank is None else rank
        return self.start(host, f"agent-{host}-{len(self.processes)}", secret, inferd or self.inferd, ["--node-rank", str(rank)])

    def start(self, host, name, secret, inferd, flags):
        secret_file = self.folder / f"{name}.secret"
        secret_file.write_text(secret + "\n")
        command = [inferd, *flags, "--data-address", f"10.199.0.{host + 1}", *self.common, "--cluster-secret-file", str(secret_file)]
        with open(self.folder / f"{name}.log", "wb") as log:
            # exec: the pid is that of inferd itself, so that signals reach it.
            process = subprocess.Popen(in_namespace(self.network.hosts[host], *command), stdout=log, stderr=log, env=environment())
        process.name = name
        self.processes.append(process)
        return process

    def log(self, process=None):
        paths = sorted(self.folder.glob("*.log")) if process is None else [self.folder / f"{process.name}.log"]
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def curl(self, path, body=None):
        command = ["python3", "-c", (
            "import sys, urllib.request\n"
            "data = sys.stdin.buffer.read() or None\n"
            "call = urllib.request.Request(sys.argv[1], data, {'Content-Type': 'application/json'})\n"
            "sys.stdout.buffer.write(urllib.request.urlopen(call, timeout=60).read())\n"),
            f"http://127.0.0.1:8000{path}"]
        done = subprocess.run(in_namespace(self.network.hosts[0], *command), capture_output=True, timeout=70,
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
        reply = self.curl("/v1/completions", REQUEST)
        assert reply is not None, self.log()
        choice = json.loads(reply)["choices"][0]
        return choice["text"], choice["logprobs"]["tokens"]

    def load(self, seconds):
        """Starts a client that asks for so long, and waits for its first answer; answers(it) are its (sent, seconds, status, text)."""
        client_log = self.folder / "client"
        with open(client_log, "wb") as out:
            client = subprocess.Popen(in_namespace(self.network.hosts[0], "python3", "-c", LOAD, "http://127.0.0.1:8000/v1/completions",
                                                   json.dumps(REQUEST), str(seconds)), stdout=out)
        client.name = "client"
        self.processes.append(client)
        began = time.monotonic()
        while client_log.stat().st_size == 0:
            assert time.monotonic() - began < 60, self.log()
            time.sleep(0.05)
        return client

    def answers(self, client):
        assert client.wait(120) == 0
        return [json.loads(line) for line in (self.folder / "client").read_text().splitlines()]

    def restarts(self):
        (line,) = [line for line in self.curl("/metrics").splitlines() if line.startswith("inferd_worker_restarts_total")]
        return float(line.rsplit(" ", 1)[1])

    def stop(self):
        self.leader.send_signal(signal.SIGTERM)
        assert self.leader.wait(40) == 0, self.log()
        for agent in self.agents:
            assert agent.wait(20) == 0, self.log()

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
