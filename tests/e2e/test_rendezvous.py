# SPDX-License-Identifier: Apache-2.0
"""The leader's name does not resolve at first, or never does. A DNS server of the test's own answers as those of clusters do: no such name,
then a name without an address, then the address."""

import os
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from hosts import MODELS, SECRET, environment

DNS = f"127.{64 + (os.getpid() >> 16) % 64}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # of this run alone
NAME = "leader-0.group.test"
NO_SUCH_NAME = 3
A = 1


class NameServer:
    """`state` is "absent", "empty" or "there"."""

    def __init__(self):
        self.state = "absent"
        self.asked = {"absent": 0, "empty": 0, "there": 0}
        self.first_asked = None  # monotonic
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((DNS, 53))
        self.socket.settimeout(0.1)
        self.closing = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def close(self):
        self.closing = True
        self.thread.join()
        self.socket.close()

    def run(self):
        while not self.closing:
            try:
                question, client = self.socket.recvfrom(512)
            except TimeoutError:
                continue
            self.first_asked = self.first_asked or time.monotonic()
            end = question.index(b"\0", 12) + 1
            kind = struct.unpack(">H", question[end:end + 2])[0]
            state = self.state
            self.asked[state] += kind == A
            has_address = state == "there" and kind == A
            head = question[:2] + struct.pack(">HHHHH", 0x8580 | (NO_SUCH_NAME if state == "absent" else 0), 1, has_address, 0, 0)
            answer = b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 0, 4) + socket.inet_aton("127.0.0.1") if has_address else b""
            self.socket.sendto(head + question[12:end + 4] + answer, client)

    def wait_asked(self, state, count):
        self.state = state
        deadline = time.monotonic() + 30
        while self.asked[state] < count:
            assert time.monotonic() < deadline, f"nobody asks: {self.asked}"
            time.sleep(0.02)


@pytest.fixture
def names():
    if os.geteuid() != 0:
        pytest.skip("a name server of one's own needs root")
    try:
        server = NameServer()
    except OSError as error:
        pytest.skip(f"no name server can be started here: {error}")
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    if probe.returncode != 0:
        server.close()
        pytest.skip("a mount namespace cannot be had here")
    yield server
    server.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Group:
    def __init__(self, inferd, folder):
        self.inferd, self.folder, self.processes = inferd, folder, []
        (folder / "secret").write_text(SECRET + "\n")
        (folder / "resolv.conf").write_text(f"nameserver {DNS}\noptions timeout:1 attempts:1\n")
        self.port = free_port()

    def start(self, name, rank, leader, timeout, *flags):
        command = [self.inferd, "--nnodes", "2", "--node-rank", str(rank), "--leader", leader, "--data-address", "127.0.0.1",
                   "--cluster-secret-file", str(self.folder / "secret"), "--rendezvous-timeout", str(timeout), *flags]
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', str(self.folder / "resolv.conf"), *command],
                stdout=log, stderr=log, env=environment())
        self.processes.append(process)
        return process

    def log(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def group(inferd, tmp_path):
    made = Group(inferd, tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_a_name_that_resolves_later_is_waited_for(names, group):
    leader = group.start("leader", 0, f"127.0.0.1:{group.port}", 60, "--model", str(MODELS / "llama"), "--tp", "2", "--allow-cross-host-tp",
                         "--port", "0", "--port-file", str(group.folder / "port"), "--grpc-port", "none", "--kv-cache-bytes", "32m")
    agent = group.start("agent", 1, f"{NAME}:{group.port}", 60)
    names.wait_asked("absent", 2)
    names.wait_asked("empty", 2)
    assert agent.poll() is None and leader.poll() is None, group.log()
    names.state = "there"
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline and leader.poll() is None and agent.poll() is None, group.log()
        try:
            port = (group.folder / "port").read_text().strip()
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200:
                break
        except (FileNotFoundError, ValueError, OSError):
            pass
        time.sleep(0.05)
    assert names.asked["there"] > 0
    leader.terminate()
    assert leader.wait(40) == 0, group.log()
    assert agent.wait(20) == 0, group.log()


def test_a_name_that_never_resolves_ends_with_status_4(names, group):
    agent = group.start("agent", 1, f"{NAME}:{group.port}", 5)
    assert agent.wait(30) == 4, group.log()
    assert 3 < time.monotonic() - names.first_asked < 9, "it ends in time"
    assert names.asked["absent"] >= 2, "it was tried again"
    assert f"the leader at {NAME}:{group.port} could not be reached within 5 s" in group.log()
