# SPDX-License-Identifier: Apache-2.0
"""Processes for the tests with real engines: each on loopback, on free ports, ended with its test, its log kept."""

import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx

import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CACHE = pathlib.Path(os.environ.get("INFERD_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "inferd")
ENGINES = CACHE / "engines"
VENV = pathlib.Path(sys.executable).parent


def free_ports(count):
    """Ports that nobody listens on. Held together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def eventually(check, seconds=30, every=0.05, message="it did not come true"):
    """The first true value of check(); what a refused connection means is left to the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if value := check():
                return value
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, message() if callable(message) else message
        time.sleep(every)


def wait_port(port, seconds=30):
    """Until something listens there."""
    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
    eventually(listens, seconds, message=f"nothing listens on {port}")


def status(url, **options):
    return httpx.get(url, timeout=5, **options).status_code


def pid_inside(process):
    """What this `subprocess.Popen` of `unshare --fork` has started, as this host numbers it; None once that has ended."""
    def look():
        return [None] if process.poll() is not None else processes.children(process.pid)
    return eventually(look)[0]


def signal_inside(process, number):
    """Signals what `unshare --fork` has started, if it lives."""
    if pid := pid_inside(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Process:
    """A program with its log in a folder of its own."""

    def __init__(self, folder, command, name=None, environment=None, **options):
        self.name = name or pathlib.Path(str(command[0])).name
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / f"{self.name}.log"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**clean, **(environment or {})}, **options)

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:]

    def alive(self):
        return self.process.poll() is None

    def wait_for(self, url, wanted=200, seconds=60, **options):
        def there():
            assert self.alive(), f"{self.name} ended with {self.process.returncode}\n{self.log()}"
            return status(url, **options) == wanted
        eventually(there, seconds, message=lambda: f"{self.name}: no {wanted} from {url}\n{self.log()}")

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, seconds=20):
        """SIGTERM, then SIGKILL. The exit status."""
        if self.alive():
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait(10)

    def kill(self):
        if self.alive():
            self.process.kill()
        self.process.wait(10)


class Inferd(Process):
    """The real server with the toy model, known as `chat` and as its folder."""

    def __init__(self, folder, binary, model, *flags, name="inferd", port=0, served=("chat",), environment=None):
        self.port_file = folder / f"{name}.port"
        self.port_file.unlink(missing_ok=True)
        flags = list(flags)
        if "--grpc-port" not in flags:
            flags += ["--grpc-port", "none"]
        super().__init__(folder, [binary, "serve", "--model", model, "--served-model-name", *served, "--port", port,
                                  "--port-file", self.port_file, "--threads", "1",
                                  "--kv-cache-bytes", 64 << 20, "--allowed-hosts", "*", *flags],
                         name=name, environment=environment)

    @property
    def port(self):
        return int(eventually(lambda: self.port_file.exists() and self.port_file.read_text().strip(), message=self.log))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def ready(self):
        self.wait_for(self.url + "/readyz")
        return self

    def metric(self, name):
        for line in httpx.get(self.url + "/metrics", timeout=10).text.splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")


def chat_body(script="fox", **more):
    return {"model": "chat", "temperature": 0, "messages": [{"role": "user", "content": f"go [[{script}]]"}], **more}


FOX = "The quick brown fox jumps"


class StreamCut(Exception):
    """A stream that ended without its last event, silently: what must never happen."""


def read_stream(client, url, body, headers=None):
    """The text of a streamed chat. An error event or a broken connection raises httpx.HTTPError, a silent cut StreamCut."""
    text, done = "", False
    with client.stream("POST", url + "/v1/chat/completions", json={**body, "stream": True}, headers=headers) as reply:
        if reply.status_code != 200:
            reply.read()
            reply.raise_for_status()
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise httpx.RemoteProtocolError(f"error event: {event['error']}")
                for choice in event.get("choices", []):
                    text += choice["delta"].get("content") or ""
    if not done:
        raise StreamCut(text)
    return text


class Load:
    """Clients that ask one request after another until they are stopped; what each got is counted."""

    def __init__(self, url, headers, plain=4, streams=4, tokens=60):
        self.url, self.headers, self.tokens = url, headers, tokens
        self.stop_event = threading.Event()
        self.lock = threading.Lock()
        self.plain_ok = self.streams_ok = self.streams_broken = 0
        self.failures, self.silent_cuts = [], []
        self.pool = concurrent.futures.ThreadPoolExecutor(plain + streams)
        self.futures = [self.pool.submit(self._plain) for _ in range(plain)]
        self.futures += [self.pool.submit(self._stream) for _ in range(streams)]

    def _plain(self):
        with httpx.Client(timeout=60, headers=self.headers) as client:
            while not self.stop_event.is_set():
                try:
                    reply = client.post(self.url + "/v1/chat/completions", json=chat_body("count", max_tokens=self.tokens))
                    good = reply.status_code == 200 and reply.json()["usage"]["completion_tokens"] == self.tokens
                    problem = None if good else f"{reply.status_code} {reply.text[:200]}"
                except httpx.HTTPError as error:
                    problem = repr(error)
                with self.lock:
                    if problem is None:
                        self.plain_ok += 1
                    else:
                        self.failures.append(problem)

    def _stream(self):
        with httpx.Client(timeout=60, headers=self.headers) as client:
            while not self.stop_event.is_set():
                try:
                    text = read_stream(client, self.url, chat_body("count", max_tokens=self.tokens))
                    with self.lock:
                        if len(text.split()) == self.tokens:
                            self.streams_ok += 1
                        else:
                            self.silent_cuts.append(text)
                except StreamCut as cut:
                    with self.lock:
                        self.silent_cuts.append(str(cut))
                except httpx.HTTPError:
                    with self.lock:
                        self.streams_broken += 1

    def done(self):
        return self.plain_ok + self.streams_ok

    def wait_done(self, count, seconds=60):
        eventually(lambda: self.done() >= count, seconds, message=lambda: f"{self.done()} of {count}; {self.failures[:3]}")

    def stop(self):
        self.stop_event.set()
        for future in self.futures:
            future.result(90)
        self.pool.shutdown()
        return self


# What a client could send to be somebody else's or more than it is (docs/security.md).
FORGED = {"X-Tenant": "other", "X-Inferd-Tenant": "other", "X-Inferd-Weight": "1000",
          "X-Gateway-Inference-Fairness-Id": "other", "X-Gateway-Inference-Objective": "urgent"}


class FakeReplica:
    """Ready, and answers every request with one status; counts what it was asked."""

    def __init__(self, answer):
        outer = self
        self.seen = []
        self.headers = None  # of the last POST

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self, code):
                body = b'{"error": {"message": "fake"}}'
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Retry-After", "7")
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self._answer(200)

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((self.path, time.monotonic()))
                outer.headers = self.headers
                self._answer(answer)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self.server.server_address[1]
