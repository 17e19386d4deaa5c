# SPDX-License-Identifier: Apache-2.0
"""TLS and the Unix socket, with real clients."""

import os
import signal
import ssl
import subprocess
import time

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS = 60


def make_certificate(folder, days):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days),
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(folder / "key.pem.new"), "-out", str(folder / "cert.pem.new")],
        check=True, capture_output=True, timeout=30)
    for name in ("key.pem", "cert.pem"):
        os.replace(folder / f"{name}.new", folder / name)


def eventually(condition):
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def run(inferd, toy, tmp_path):
    processes = []

    def begin(*flags, grpc_port="none"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "LWS_"))}
        with open(tmp_path / "log", "wb") as log:
            processes.append(subprocess.Popen(
                [inferd, "--model", str(toy), "--served-model-name", "toy", "--port", "0", "--grpc-port", grpc_port,
                 "--grpc-port-file", str(tmp_path / "grpc_port"), "--threads", "1", "--kv-cache-bytes", str(64 << 20), "--port-file", str(tmp_path / "port"), *flags],
                stdout=log, stderr=log, env=environment))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def hello(client):
    return client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "go [[hello]]"}], temperature=0).choices[0].message.content


def test_tls_with_the_official_client_and_a_new_certificate(run, tmp_path):
    make_certificate(tmp_path, days=2)
    first = (tmp_path / "cert.pem").read_text()
    process = run("--ssl-certfile", str(tmp_path / "cert.pem"), "--ssl-keyfile", str(tmp_path / "key.pem"), "--enable-ssl-refresh")
    eventually(lambda: (tmp_path / "port").exists())
    port = int((tmp_path / "port").read_text())
    url = f"https://localhost:{port}"
    trusted = ssl.create_default_context(cadata=first)
    eventually(lambda: httpx.get(url + "/readyz", verify=trusted).status_code == 200)
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", http_client=httpx.Client(verify=trusted), max_retries=0)
    assert hello(client) == "Hello, world!"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "go [[fox]]"}], temperature=0, stream=True))
    assert text == "The quick brown fox jumps"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/readyz")
    make_certificate(tmp_path, days=3)
    eventually(lambda: ssl.get_server_certificate(("127.0.0.1", port)).strip() == (tmp_path / "cert.pem").read_text().strip())
    trusted = ssl.create_default_context(cadata=(tmp_path / "cert.pem").read_text())
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", http_client=httpx.Client(verify=trusted), max_retries=0)
    assert hello(client) == "Hello, world!"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def grpc_health(port, certificate):
    """The port's answer to a client that trusts the certificate; None: it cannot be reached that way."""
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate)
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        try:
            return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10).status
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
            return None


def test_grpc_over_tls_and_a_new_certificate(run, tmp_path):
    make_certificate(tmp_path, days=2)
    first = (tmp_path / "cert.pem").read_bytes()
    process = run("--ssl-certfile", str(tmp_path / "cert.pem"), "--ssl-keyfile", str(tmp_path / "key.pem"), "--enable-ssl-refresh",
                  grpc_port="0")
    eventually(lambda: (tmp_path / "grpc_port").exists())
    port = int((tmp_path / "grpc_port").read_text())
    serving = health_pb2.HealthCheckResponse.SERVING
    eventually(lambda: grpc_health(port, first) == serving)
    with grpc.insecure_channel(f"localhost:{port}") as plain, pytest.raises(grpc.RpcError):
        health_pb2_grpc.HealthStub(plain).Check(health_pb2.HealthCheckRequest(), timeout=10)
    make_certificate(tmp_path, days=3)
    eventually(lambda: grpc_health(port, (tmp_path / "cert.pem").read_bytes()) == serving)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def test_unix_socket(run, tmp_path):
    path = str(tmp_path / "socket")
    process = run("--uds", path)
    http = httpx.Client(transport=httpx.HTTPTransport(uds=path))
    eventually(lambda: os.path.exists(path) and http.get("http://any.name/readyz").status_code == 200)
    client = openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0)
    assert hello(client) == "Hello, world!"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert not os.path.exists(path)


def test_flags_that_do_not_belong_together(inferd, toy, tmp_path):
    make_certificate(tmp_path, days=2)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    for flags, says in ((["--ssl-certfile", cert], "--ssl-keyfile"), (["--ssl-ca-certs", cert], "--ssl-certfile"),
                        (["--ssl-certfile", cert, "--ssl-keyfile", cert], "--ssl-keyfile"),
                        (["--ssl-certfile", cert, "--ssl-keyfile", key, "--uds", str(tmp_path / "s")], "exclude"),
                        (["--api-key", "short"], "8 to 512"), (["--api-key-file", cert], "cert.pem")):
        ended = subprocess.run([inferd, "--model", str(toy), "--port", "0", "--grpc-port", "none", *flags],
                               capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode == 1 and says in ended.stderr, ended.stderr
