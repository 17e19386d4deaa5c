#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the server on a free port, asks one question over HTTP, checks the answer, stops the server."""
import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

QUESTION = "What is the capital of France? Answer with the name of the city only."
EXPECTED = "paris"
READY_SECONDS = 180


def request(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=120) as reply:
        return reply.read()


def wait_until_ready(server, port_file):
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode}")
        if port_file.exists() and (port := port_file.read_text().strip()):
            try:
                request(f"http://127.0.0.1:{port}/readyz")
                return f"http://127.0.0.1:{port}"
            except (urllib.error.URLError, ConnectionError):
                pass
        time.sleep(0.1)
    sys.exit(f"the server was not ready within {READY_SECONDS} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inferd", required=True)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port_file = pathlib.Path(folder) / "port"
        server = subprocess.Popen(
            [arguments.inferd, "serve", "--model", arguments.model, "--port", "0", "--port-file", str(port_file)])
        try:
            base = wait_until_ready(server, port_file)
            body = {"model": arguments.model, "temperature": 0, "max_tokens": 32,
                    "messages": [{"role": "user", "content": QUESTION}]}
            reply = json.loads(request(f"{base}/v1/chat/completions", body))
            answer = reply["choices"][0]["message"]["content"]
            print(f"asked:    {QUESTION}\nanswered: {answer}")
            if EXPECTED not in answer.lower():
                sys.exit(f"the answer does not name {EXPECTED}")
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                status = server.wait(timeout=40)
            except subprocess.TimeoutExpired:
                server.kill()
                sys.exit("the server did not stop within 40 s of SIGTERM")
    if status != 0:
        sys.exit(f"the server ended with status {status} after SIGTERM")
    print("right answer, clean stop")


if __name__ == "__main__":
    main()
