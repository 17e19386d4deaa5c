#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many replicas of a device that is not there, and very many streams: the real front end, router, schedulers and workers.

Starts `inferd --device sim:PROFILE@SLOWER/MODEL --dp N`, opens all streams, reads each to its end, and prints one JSON line: what
was sent and got, time to the first token and per token at the devices' own speed (divided by SLOWER), what `inferd plan --simulate`
says for the same requests, the server's CPU time and memory, and the slowest answer of /readyz meanwhile. Exit status 1: a stream broke.

  tests/bench/fleet.py build/release/inferd --replicas 64 --streams 10000 --slower 24
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import toy_model  # noqa: E402
from processes import children, cpu_seconds, resident_bytes  # noqa: E402


BATCHED_TOKENS = 2048


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Server:
    def __init__(self, options, folder):
        toy_model.make(folder)
        port_file = folder / "port"
        self.log_path = folder / "log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [options.inferd, "--model", str(folder), "--served-model-name", "toy", "--port", "0", "--port-file", str(port_file),
                 "--grpc-port", "none", "--device", f"sim:{options.profile}@{options.slower:g}/{options.model}", "--dp",
                 str(options.replicas), "--max-num-seqs", str(options.rows), "--max-model-len", "1024", "--max-num-batched-tokens", str(BATCHED_TOKENS),
                 "--max-connections", str(options.streams + 100), "--max-waiting", str(options.streams), "--no-access-log",
                 "--io-threads", str(options.io_threads)], stdout=log, stderr=log, env=environment)
        began = time.monotonic()
        while time.monotonic() - began < options.start_seconds:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                self.port = int(port_file.read_text())
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5).read()
                self.ready_seconds = time.monotonic() - began
                return
            time.sleep(0.1)
        self.kill()
        raise RuntimeError("the server did not come up\n" + self.log())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def metric(self, name):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Stream:
    def __init__(self, port, number, options):
        prompt = random.Random(number).choices(range(1, 250), k=options.input)  # no prefix in common
        body = json.dumps({"model": "toy", "prompt": prompt, "max_tokens": options.output, "ignore_eos": True, "stream": True,
                           "stream_options": {"include_usage": True}, "temperature": 0})
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sent = time.monotonic()
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.socket.setblocking(False)
        self.first = self.last = 0.0
        self.tokens = 0
        self.tail = b""
        self.whole = False
        self.problem = None

    def read(self, now):
        """False: it is over."""
        try:
            part = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError as error:
            self.problem = str(error)
            return False
        if not part:
            self.problem = "ended before [DONE]"
            return False
        text = self.tail + part
        if not self.first:
            if b" 200 OK" not in text[:16]:
                self.problem = text[:300].decode(errors="replace")
                return False
        if b'"text":' in text:
            self.first = self.first or now
            self.last = now
        if b'"error"' in text:
            self.problem = text[:600].decode(errors="replace")
            return False
        if b"data: [DONE]" in text:
            self.tokens = int(re.findall(rb'"completion_tokens":(\d+)', text)[-1])
            self.whole = True
            return False
        self.tail = text[-500:]  # an event may be cut anywhere
        return True


class Probe(threading.Thread):
    """Asks /readyz ten times a second."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/readyz"
        self.times, self.failures, self.over = [], 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            began = time.monotonic()
            try:
                urllib.request.urlopen(self.url, timeout=10).read()
                self.times.append(time.monotonic() - began)
            except OSError:
                self.failures += 1


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def simulated(options, sent, folder):
    """What `inferd plan --simulate`, the same router and schedulers in virtual time, says for requests sent at these seconds."""
    trace = folder / "trace"
    trace.write_text("".join(json.dumps({"arrival_s": at / options.slower, "input_tokens": options.input, "output_tokens": options.output}) + "\n"
                             for at in sent))
    done = subprocess.run([options.inferd, "plan", options.model, "--gpus", f"{options.replicas}x{options.profile}", "--tp", "1", "--pp", "1",
                           "--max-num-seqs", str(options.rows), "--max-num-batched-tokens", str(BATCHED_TOKENS), "--simulate", str(trace),
                           "--json"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    result = json.loads(done.stdout)["layouts"][0]["result"]
    return {name: {share: round(result[name][share], 2) for share in ("p50", "p99")} for name in ("ttft_ms", "tpot_ms")}


def run(options, server):
    before = cpu_seconds(server.process.pid), sum(map(cpu_seconds, children(server.process.pid)))
    empty = resident_bytes(server.process.pid)
    probe = Probe(server.port)
    poller = select.epoll()
    streams, open_streams = [], {}
    most_open, most_running, most_bytes = 0, 0.0, 0
    began = time.monotonic()
    next_look = began
    victims = collections.deque(children(server.process.pid)[:options.kill])
    kill_at = None
    while len(streams) < options.streams or open_streams:
        now = time.monotonic()
        # A few at a time, so that those that are open are read meanwhile.
        for _ in range(min(64, options.streams - len(streams))):
            stream = Stream(server.port, len(streams), options)
            streams.append(stream)
            open_streams[stream.socket.fileno()] = stream
            poller.register(stream.socket.fileno(), select.EPOLLIN)
        for number, _ in poller.poll(0 if len(streams) < options.streams else 0.2, 4096):
            stream = open_streams[number]
            if not stream.read(time.monotonic()):
                poller.unregister(number)
                stream.socket.close()
                del open_streams[number]
        most_open = max(most_open, len(open_streams))
        if len(streams) == options.streams and kill_at is None:
            kill_at = now + 2
        if victims and kill_at is not None and now > kill_at:
            os.kill(victims.popleft(), signal.SIGKILL)
        if now > next_look:
            next_look = now + 1
            most_bytes = max(most_bytes, resident_bytes(server.process.pid))
            most_running = max(most_running, server.metric("inferd_num_requests_running"))
            if now - began > options.seconds:
                raise RuntimeError(f"{len(open_streams)} streams are still open after {options.seconds} s\n" + server.log())
    seconds = time.monotonic() - began
    probe.over.set()
    after = cpu_seconds(server.process.pid), sum(map(cpu_seconds, children(server.process.pid)))
    broken = [s for s in streams if not s.whole or s.tokens != options.output]
    ttft = [(s.first - s.sent) / options.slower for s in streams if s.first]
    tpot = [(s.last - s.first) / (s.tokens - 1) / options.slower for s in streams if s.tokens > 1]
    return {
        "replicas": options.replicas, "streams": options.streams, "broken": len(broken), "open_at_once": most_open,
        "running_at_once": int(most_running), "seconds": round(seconds, 1), "tokens": sum(s.tokens for s in streams),
        "tokens_per_s": round(sum(s.tokens for s in streams) / seconds),
        "ttft_ms": {"p50": round(1e3 * quantile(ttft, .5), 1), "p99": round(1e3 * quantile(ttft, .99), 1)},
        "tpot_ms": {"p50": round(1e3 * quantile(tpot, .5), 2), "p99": round(1e3 * quantile(tpot, .99), 2)},
        "server_cpu_s": round(after[0] - before[0], 1), "workers_cpu_s": round(after[1] - before[1], 1),
        "server_bytes_per_stream": round((most_bytes - empty) / options.streams), "server_mib": most_bytes >> 20,
        "ready_s": round(server.ready_seconds, 1), "readyz_ms_p99": round(1e3 * quantile(probe.times, .99), 1), "readyz_failures": probe.failures,
        "restarts": int(server.metric("inferd_worker_restarts_total")),
    }, [s.problem or f"{s.tokens} tokens" for s in broken[:5]], [s.sent - began for s in streams]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inferd")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=256, help="--max-num-seqs of a replica")
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=100)
    parser.add_argument("--profile", default="H100")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--slower", type=float, default=24)
    parser.add_argument("--io-threads", type=int, default=1)
    parser.add_argument("--kill", type=int, default=0, help="workers to kill once all streams are open")
    parser.add_argument("--seconds", type=float, default=600, help="most for all streams")
    parser.add_argument("--start-seconds", type=float, default=300)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    options.inferd = os.path.abspath(options.inferd)
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, pathlib.Path(folder))
        try:
            result, problems, sent = run(options, server)
            result["exit_status"] = server.stop()
            result["simulated"] = simulated(options, sent, pathlib.Path(folder))
        finally:
            server.kill()
    print(json.dumps(result))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if result["broken"] or result["exit_status"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
