# SPDX-License-Identifier: Apache-2.0
"""Starts the real binary on a free port with the toy model. `pytest tests/e2e --inferd build/dev/inferd`."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest

import processes
import toy_model

START_SECONDS = 120
STOP_SECONDS = 40


def pytest_addoption(parser):
    parser.addoption("--inferd", required=True, help="path of the binary")


class Server:
    """A running server; `stop` must find it alive and see it end with status 0."""

    def __init__(self, binary, model, folder, *flags):
        self.port_file = folder / "port"
        self.grpc_port_file = folder / "grpc_port"
        self.log_path = folder / "log"
        if "--threads" not in flags:
            flags += ("--threads", "1")  # the toy needs no more, and a loaded machine does not like spinning threads
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [binary, "--model", str(model), "--served-model-name", "toy", "--port", "0",
                 "--port-file", str(self.port_file), "--grpc-port-file", str(self.grpc_port_file),
                 "--kv-cache-bytes", str(64 << 20), *flags],
                stdout=log, stderr=log, env=environment)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc_port(self):
        return int(self.grpc_port_file.read_text())

    def _wait(self):
        deadline = time.monotonic() + START_SECONDS
        self.port = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            if self.port is None and self.port_file.exists():
                self.port = int(self.port_file.read_text())
            if self.port is not None and self.status("/readyz") == 200:
                return
            time.sleep(0.05)
        raise AssertionError("not ready in time\n" + self.log())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            return reply.read().decode()

    def status(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)

    def metric(self, name):
        for line in self.get("/metrics").splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def wait_metric(self, name, value, seconds):
        deadline = time.monotonic() + seconds
        while (seen := self.metric(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {seen}, not {value}, after {seconds} s"
            time.sleep(0.02)

    def wait_requests(self, count, seconds=20):
        """Until so many choices run or wait."""
        deadline = time.monotonic() + seconds
        while (seen := self.metric("inferd_num_requests_running") + self.metric("inferd_num_requests_waiting")) != count:
            assert time.monotonic() < deadline, f"{seen} requests, not {count}, after {seconds} s"
            time.sleep(0.01)

    def workers(self):
        """The pids of the worker processes, in order of rank."""
        return sorted(processes.children(self.process.pid))

    @contextlib.contextmanager
    def paused_workers(self):
        """No step ends inside: what runs goes on running, however fast the machine is. Less than the step deadline."""
        workers = self.workers()
        assert workers
        try:
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):  # the server has ended it
                    os.kill(pid, signal.SIGCONT)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        assert self.process.poll() is None, "the server died\n" + self.log()
        self.terminate()
        assert self.process.wait(STOP_SECONDS) == 0, self.log()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def inferd(request):
    return os.path.abspath(request.config.getoption("--inferd"))


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    toy_model.make(folder)
    return folder


@pytest.fixture(scope="session")
def start(inferd, toy, tmp_path_factory):
    """start(*flags): a server of the test's own; ended at the end of the session if the test did not."""
    servers = []

    def run(*flags):
        servers.append(Server(inferd, toy, tmp_path_factory.mktemp("server"), *flags))
        return servers[-1]

    yield run
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def shared_server(start, tmp_path_factory):
    server = start("--files-dir", str(tmp_path_factory.mktemp("files")))
    yield server
    server.stop()


@pytest.fixture
def server(shared_server):
    """The shared server; after each test it is alive, idle and holds no KV pages."""
    yield shared_server
    shared_server.wait_metric("inferd_num_requests_running", 0, 5)
    shared_server.wait_metric("inferd_kv_pages_used", 0, 5)
    assert chat(shared_server, "hello").choices[0].message.content == "Hello, world!"


def chat(server, script, **more):
    return server.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": f"go [[{script}]]"}], temperature=0, **more)


def complete(server, prompt, **more):
    return server.client.completions.create(model="toy", prompt=prompt, temperature=0, **more)
