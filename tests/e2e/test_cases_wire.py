# SPDX-License-Identifier: Apache-2.0
"""What other servers got wrong about numbers, bodies, connections, clients that leave and ends (docs/conformance.md). The workers
are held where a test looks at what runs, so that no machine is too fast or too slow."""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import struct
import threading
import time

import grpc
import pytest
from answers import CHAT, COMPLETIONS, ask_for, both, call, events, refused, strict_json, whole
from conftest import Server
from test_grpc import request as grpc_request
from test_grpc import stubs  # noqa: F401, a fixture

WAIT_S = 20


def eventually(check, seconds=WAIT_S):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def post_bytes(path, body, *fields, version="1.1"):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not any(field.lower().startswith(("content-length", "transfer-encoding", "no-length")) for field in fields):
        fields += (f"Content-Length: {len(raw)}",)
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json"]
    lines += [field for field in fields if field != "no-length"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


class Line:
    """A plain connection that reads answers one by one."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.data = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def fill(self):
        more = self.socket.recv(65536)
        self.data += more
        return bool(more)

    def read_until(self, mark):
        while mark not in self.data:
            assert self.fill(), f"closed before {mark!r}: {self.data[-300:]!r}"

    def answer(self):
        """Status, head and body of the next answer."""
        self.read_until(b"\r\n\r\n")
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        status = int(head.split()[1])
        length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if length:
            while len(self.data) < length[0]:
                assert self.fill()
            body, self.data = self.data[:length[0]], self.data[length[0]:]
            return status, head, body
        if status == 100:
            return status, head, b""
        assert b"HTTP/1.0" in head or b"close" in head.lower(), head
        while self.fill():
            pass
        return status, head, self.data

    def leave(self, reset):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


# ---- numbers and fields

RAW_FIELDS = [  # as written in the body, and the field that the refusal names (None: taken)
    ('"seed": 9223372036854775808', "seed"), ('"seed": 18446744073709551616', "seed"), ('"seed": -9223372036854775809', "seed"),
    ('"seed": 1e400', "seed"), ('"seed": "1"', "seed"), ('"seed": 1.5', "seed"), ('"seed": 1.0', None),
    ('"seed": 9223372036854775807', None),
    ('"seed": -9223372036854775808', None), ('"temperature": NaN', "temperature"), ('"temperature": -Infinity', "temperature"),
    ('"temperature": Infinity', "temperature"), ('"temperature": -1', "temperature"), ('"temperature": 1e308', "temperature"),
    ('"top_p": 0', "top_p"), ('"top_p": 1.0001', "top_p"), ('"top_p": 1', None), ('"top_k": 1e19', "top_k"), ('"min_p": -0.5', "min_p"),
    ('"n": 4294967297', "n"), ('"max_tokens": 1e30', "max_tokens"),
    ('"logit_bias": {"99999999999999999999": 1}', "logit_bias.99999999999999999999"),
    ('"presence_penalty": 1e39', "presence_penalty"), ('"stop_token_ids": [1e20]', "stop_token_ids[0]"),
    ('"a_field_nobody_knows": [{}]', None),
    ('"seed": 1, "seed": 2', "seed"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_numbers_out_of_range_are_refused_by_name(server, path):
    """Case 35: whatever number or literal a field holds, the answer names the field and the server lives on."""
    plain = {**ask_for(path, "hello")}
    for written, param in RAW_FIELDS:
        kept = {key: value for key, value in plain.items() if f'"{key}":' not in written}
        body = json.dumps(kept)[:-1] + ", " + written + "}"
        if param is None:
            status, _, answer = call(server, path, body.encode())
            assert status == 200, (written, answer)
        else:
            error = refused(server, path, body.encode())
            assert error["param"] == param, (written, error)
    for broken in (b"", b"{", b"[]", b"null", b'{"a":1}x', b"\xff\xfe", b'{"messages":"\xff"}', b'{"a":' * 5000):
        assert call(server, path, broken)[0] == 400


# ---- bodies and framing

def chunked(body, size, extension=b"", trailer=b""):
    parts = [body[i:i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension, p) for p in parts) + b"0%s\r\n%s\r\n" % (extension, trailer)


def hello_of(body):
    return strict_json(body)["choices"][0]["message"]["content"]


def test_bodies_in_every_framing(server):
    """Case 37: chunks of one byte, extensions, trailers and HTTP/1.0 are as good as a plain body; what is unclear is refused."""
    raw = json.dumps(ask_for(CHAT, "hello")).encode()
    framing = "Transfer-Encoding: chunked"
    good = [post_bytes(CHAT, raw), post_bytes(CHAT, chunked(raw, 1), framing), post_bytes(CHAT, chunked(raw, 7, b";a=b"), framing),
            post_bytes(CHAT, chunked(raw, 4096, b"", b"X-Checksum: 1\r\n"), framing), post_bytes(CHAT, raw, version="1.0"),
            post_bytes(CHAT, raw, "Content-Encoding: identity")]
    for data in good:
        for step in (len(data), 1 if len(data) < 600 else 97):
            with Line(server.port) as line:
                for begin in range(0, len(data), step):
                    line.send(data[begin:begin + step])
                status, _, body = line.answer()
                assert (status, hello_of(body)) == (200, "Hello, world!")
    bad = [(post_bytes(CHAT, b"", "Content-Length: 0"), 400), (post_bytes(CHAT, b"", "no-length"), 411),
           (post_bytes(CHAT, raw, "Content-Encoding: gzip"), 415), (post_bytes(CHAT, raw, "Content-Encoding: br"), 415),
           (post_bytes(CHAT, chunked(raw, 9), framing, "Content-Length: 5"), 400),
           (post_bytes(CHAT, raw, "Transfer-Encoding: gzip"), 400),
           (post_bytes(CHAT, chunked(raw, 9, b"", b"X-T: 1\r\n folded\r\n"), framing), 400),
           (post_bytes(CHAT, raw, "Expect: 200-maybe"), 417)]
    for data, expected in bad:
        with Line(server.port) as line:
            line.send(data)
            assert line.answer()[0] == expected, data[:200]


@pytest.mark.parametrize("patient", [True, False])
def test_expect_continue(server, patient):
    """Case 37: a client that waits for 100 gets it before its body is read; one that does not wait is served too."""
    raw = json.dumps(ask_for(CHAT, "hello")).encode()
    data = post_bytes(CHAT, raw, "Expect: 100-continue")
    head = len(data) - len(raw)
    with Line(server.port) as line:
        line.send(data[:head] if patient else data)
        status, _, body = line.answer()
        if patient:
            assert status == 100
            line.send(data[head:])
        if status == 100:
            status, _, body = line.answer()
        assert (status, hello_of(body)) == (200, "Hello, world!")


def test_pipelined_requests_are_answered_in_order(server):
    """Case 37: three requests in one packet, the slowest first."""
    with Line(server.port) as line:
        line.send(post_bytes(CHAT, ask_for(CHAT, "count", max_tokens=60)) + post_bytes(CHAT, ask_for(CHAT, "fox")) +
                  post_bytes(CHAT, ask_for(CHAT, "hello")))
        texts = [hello_of(line.answer()[2]) for _ in range(3)]
    assert len(texts[0].split()) == 60 and texts[1:] == ["The quick brown fox jumps", "Hello, world!"]


# ---- clients that leave

def aborted(server):
    (line,) = [x for x in server.get("/metrics").splitlines()
               if x.startswith("inferd_request_success_total{") and 'finished_reason="abort"' in x]
    return float(line.rsplit(" ", 1)[1])


class Proxy:
    """Passes bytes on; ends its server side when the client ends."""

    def __init__(self, port):
        self.upstream_port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        client, _ = self.listener.accept()
        upstream = socket.create_connection(("127.0.0.1", self.upstream_port))
        back = threading.Thread(target=self.pump, args=(upstream, client), daemon=True)
        back.start()
        self.pump(client, upstream)
        upstream.shutdown(socket.SHUT_RDWR)
        upstream.close()

    @staticmethod
    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)


@contextlib.contextmanager
def leaving(server, choices=1):
    """Inside, a request runs while no step ends, and the client leaves. Then the engine must have dropped it: counted once per
    choice, at most the tokens of the steps that were already planned, no pages."""
    before = aborted(server)
    with server.paused_workers():
        tokens = server.metric("inferd_generation_tokens_total")
        yield
        eventually(lambda: aborted(server) == before + choices)
    server.wait_metric("inferd_num_requests_running", 0, WAIT_S)
    server.wait_metric("inferd_kv_pages_used", 0, WAIT_S)
    # The step that ran and the one planned ahead of it; the counter may also lack what was under way when it was read.
    assert server.metric("inferd_generation_tokens_total") <= tokens + 4 * choices
    assert aborted(server) == before + choices


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
def test_a_client_that_leaves_in_prefill(server, stream, reset, proxied):
    """Case 39: gone before the first token."""
    line = Line(Proxy(server.port).port if proxied else server.port)
    with leaving(server):
        line.send(post_bytes(COMPLETIONS, {"prompt": "x" * 3000 + "[[count]]", "max_tokens": 900, "stream": stream}))
        server.wait_requests(1)
        line.leave(reset)


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
def test_a_client_that_leaves_a_stream(server, reset, proxied):
    """Case 39: gone in the middle of a stream of two choices, which goes on until then."""
    line = Line(Proxy(server.port).port if proxied else server.port)
    line.send(post_bytes(CHAT, ask_for(CHAT, "count", max_tokens=3900, stream=True, n=2)))
    line.read_until(b'"content":" two"')
    with leaving(server, choices=2):
        server.wait_requests(2)
        line.leave(reset)


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_a_client_that_leaves_while_it_waits_for_a_whole_answer(server, reset):
    """Case 39: nothing is written to this client, so only its end tells. What was generated is in the metrics."""
    tokens = server.metric("inferd_generation_tokens_total")
    line = Line(server.port)
    line.send(post_bytes(CHAT, ask_for(CHAT, "count", max_tokens=3900)))
    eventually(lambda: server.metric("inferd_generation_tokens_total") > tokens + 3)
    with leaving(server):
        server.wait_requests(1)
        line.leave(reset)


@pytest.mark.parametrize("decoding", [False, True], ids=["prefill", "decode"])
def test_a_grpc_call_that_is_cancelled(server, stubs, decoding):  # noqa: F811
    """Case 39 over gRPC: cancel before the first token, and in the middle of a stream."""
    messages, service = stubs[0], stubs[1]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service.InferenceStub(channel)
        stub.ModelInfo(messages.ModelInfoRequest(), timeout=WAIT_S)
        ask = grpc_request(messages, "count", max_tokens=3900)
        stream = None
        if decoding:
            stream = stub.ChatCompletionStream(ask, timeout=60)
            for chunk in stream:
                if any(c.delta.content == " two" for c in chunk.choices):
                    break
        with leaving(server):
            stream = stream or stub.ChatCompletionStream(ask, timeout=60)
            server.wait_requests(1)
            stream.cancel()


# ---- parts that a text model cannot take

def test_media_on_a_text_model_is_refused_unfetched(server):
    """Case 51: every kind of part that is no text, in every role, is a 400 with its path; nothing is fetched."""
    trap = socket.create_server(("127.0.0.1", 0))
    trap.setblocking(False)
    url = f"http://127.0.0.1:{trap.getsockname()[1]}/x.png"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
             {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}, {"type": "image_url", "image_url": url},
             {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, {"type": "video_url", "video_url": {"url": url}},
             {"type": "file", "file": {"file_id": "f"}}, {"type": "whatever"}, {"type": 5}, {"type": "image"}]
    fastest = float("inf")
    for part in parts:
        for number, role in enumerate(["system", "user", "tool", "assistant", "developer"]):
            messages = [{"role": "user", "content": "go"}] * number + [{"role": role, "content": [{"type": "text", "text": "a"}, part]}]
            begun = time.monotonic()
            error = refused(server, CHAT, {"messages": messages})
            assert error["param"] == f"messages[{number}].content[1].type", (part, role)
            fastest = min(fastest, time.monotonic() - begun)
    assert fastest < 0.1
    other = {"type": "input_image", "image_url": url}
    assert refused(server, "/v1/responses", {"input": [{"role": "user", "content": [other]}]})["param"].startswith("input[0].content[0]")
    image = {"type": "image", "source": {"type": "url", "url": url}}
    assert call(server, "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [image]}]})[0] == 400
    with pytest.raises(BlockingIOError):
        trap.accept()
    trap.close()


# ---- scoring long prompts

def scores(server, prompt):
    choices, _ = whole(server, COMPLETIONS, {"prompt": prompt, "echo": True, "logprobs": 20, "max_tokens": 0})
    return choices[0].logprobs


def test_scoring_the_longest_prompts_at_once(start):
    """Case 53: four prompts as long as the context, 20 logprobs a token, whatever the step's budget; others are served meanwhile."""
    prompt = "".join(chr(33 + i * 7 % 90) for i in range(4086)) + "[[hello]]"
    expected = None
    for budget in ("96", "4096"):
        server = start("--max-num-batched-tokens", budget)
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            asked = [pool.submit(scores, server, prompt) for _ in range(4)]
            other = pool.submit(both, server, CHAT, ask_for(CHAT, "hello"))
            assert other.result()[0][0].text == "Hello, world!"
            for one in asked:
                expected = expected or one.result()
                assert one.result() == expected
        assert len(expected) == 4088 and expected[0][1] is None  # with BOS
        server.wait_metric("inferd_kv_pages_used", 0, WAIT_S)
        server.stop()


def peak_bytes(server):
    (line,) = [x for pid in server.workers() for x in open(f"/proc/{pid}/status") if x.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def test_scoring_with_a_large_vocabulary_stays_within_its_memory(inferd, tmp_path):
    """Case 53 with 262,144 tokens in the vocabulary: the logits of four prompts are never all there, and the scores are those of
    one prompt alone."""
    from test_real_model import CACHE, FILES
    length = 96
    server = Server(inferd, CACHE / "models" / FILES["gemma-3-270m"], tmp_path, "--max-model-len", "512", "--threads", "2")
    try:
        prompt = [[2] + [1000 + i * 37 % 5000 for i in range(length - 1)]]
        body = {"prompt": prompt, "echo": True, "logprobs": 20, "max_tokens": 0}
        alone = strict_json(call(server, COMPLETIONS, body)[2])["choices"][0]["logprobs"]
        before = peak_bytes(server)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for status, _, answer in pool.map(lambda _: call(server, COMPLETIONS, body), range(4)):
                assert status == 200
                assert strict_json(answer)["choices"][0]["logprobs"] == alone
        assert peak_bytes(server) - before < 4 * length * 262144 * 4 / 4, "less than a quarter of all logits"
        server.wait_metric("inferd_kv_pages_used", 0, WAIT_S)
        server.stop()
    finally:
        server.kill()


# ---- the end

def test_a_drain_finishes_what_runs_and_what_waits(start):
    """Case 57: SIGTERM with 20 streams and 10 queued: readiness goes first, new requests are told to come again, all 30 end."""
    server = start("--max-num-seqs", "20", "--shutdown-timeout", "120", "--step-deadline-ms", "120000")
    lines = [Line(server.port) for _ in range(30)]
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    kept.request("GET", "/readyz")
    assert kept.getresponse().read() is not None
    with server.paused_workers():
        for number, line in enumerate(lines):
            line.send(post_bytes(CHAT, ask_for(CHAT, "count", max_tokens=120, stream=True)))
            server.wait_requests(number + 1)
        server.terminate()
        eventually(lambda: server.status("/readyz") == 503)
        assert server.status("/livez") == 200
        for body in (ask_for(CHAT, "hello"), ask_for(CHAT, "hello", stream=True)):
            status, headers, answer = call(server, CHAT, body)
            assert status == 503 and int(headers["retry-after"]) >= 1 and strict_json(answer)["error"]["message"]
        kept.request("POST", CHAT, json.dumps(ask_for(CHAT, "hello")), {"Content-Type": "application/json"})
        reply = kept.getresponse()
        assert reply.status == 503 and reply.getheader("retry-after") and reply.read()
    for line in lines:
        while line.fill():
            pass
        head, body = line.data.split(b"\r\n\r\n", 1)
        assert b" 200 " in head.split(b"\r\n")[0]
        data = decode_chunks(body) if b"transfer-encoding: chunked" in head.lower() else body
        text = "".join(c["delta"].get("content") or "" for chunk in events(data) for c in chunk["choices"])
        assert len(text.split()) == 120
    assert server.process.wait(120) == 0, server.log()


def decode_chunks(body):
    data = b""
    while body:
        size, body = body.split(b"\r\n", 1)
        data, body = data + body[:int(size, 16)], body[int(size, 16) + 2:]
    return data
