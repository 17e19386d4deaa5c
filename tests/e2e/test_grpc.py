# SPDX-License-Identifier: Apache-2.0
"""The gRPC port, asked by clients of others: stubs made from our protos, the reflection and health clients of grpcio, and
tritonclient unchanged (gRPC and HTTP). What HTTP answers is the measure."""

import os
import pathlib
import queue
import subprocess
import sys
import threading

import grpc
import numpy
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from conftest import Server, chat, complete
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("INFERD_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "inferd")
SERVICES = ["inferd.v1.Inference", "inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine"]
DEADLINE = 60


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """(messages, service) of inferd.v1 and of VllmEngine, generated from the protos."""
    out = tmp_path_factory.mktemp("stubs")
    protos = ["inferd/v1/options.proto", "inferd/v1/inference.proto", "vllm/vllm_engine.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'proto'}", f"--python_out={out}",
                    f"--grpc_python_out={out}", *protos], check=True, timeout=DEADLINE)
    sys.path.insert(0, str(out))
    from inferd.v1 import inference_pb2, inference_pb2_grpc
    from vllm import vllm_engine_pb2, vllm_engine_pb2_grpc
    return inference_pb2, inference_pb2_grpc, vllm_engine_pb2, vllm_engine_pb2_grpc


@pytest.fixture(scope="session")
def address(shared_server, tmp_path_factory):
    return f"127.0.0.1:{shared_server.grpc_port}"


@pytest.fixture
def channel(server, address):
    with grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture
def ours(stubs, channel):
    return stubs[0], stubs[1].InferenceStub(channel)


def request(messages, script, **fields):
    return messages.ChatCompletionRequest(
        messages=[messages.ChatMessage(role="user", content=f"go [[{script}]]")], temperature=0, **fields)


@pytest.mark.parametrize("script", ["hello", "fox", "emoji", "quote", "nothing", "bye"])
def test_chats_are_those_of_http_whole_and_streamed(server, ours, script):
    messages, stub = ours
    http = chat(server, script)
    whole = stub.ChatCompletion(request(messages, script), timeout=DEADLINE)
    assert whole.choices[0].message.content == http.choices[0].message.content
    assert whole.choices[0].finish_reason == http.choices[0].finish_reason
    assert whole.usage.completion_tokens == http.usage.completion_tokens
    assert whole.usage.prompt_tokens == http.usage.prompt_tokens
    streaming = request(messages, script, stream_options=messages.StreamOptions(include_usage=True))
    chunks = list(stub.ChatCompletionStream(streaming, timeout=DEADLINE))
    assert "".join(c.delta.content for chunk in chunks for c in chunk.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions_and_tokens(server, ours):
    messages, stub = ours
    reply = stub.Completion(messages.CompletionRequest(prompt=["[[fox]]", "[[hello]]"], max_tokens=50, temperature=0),
                            timeout=DEADLINE)
    assert [c.text for c in reply.choices] == [complete(server, p, max_tokens=50).choices[0].text for p in ["[[fox]]", "[[hello]]"]]
    tokens = stub.Tokenize(messages.TokenizeRequest(prompt="[[fox]]"), timeout=DEADLINE).tokens
    assert list(tokens) == server.post("/tokenize", {"prompt": "[[fox]]"})["tokens"]
    by_ids = stub.Completion(messages.CompletionRequest(prompt_token_ids=[messages.TokenIds(ids=tokens)], max_tokens=50,
                                                        temperature=0), timeout=DEADLINE)
    assert by_ids.choices[0].text == reply.choices[0].text
    text = stub.Detokenize(messages.DetokenizeRequest(tokens=tokens, skip_special_tokens=True), timeout=DEADLINE).prompt
    assert text == "[[fox]]"
    assert stub.ModelInfo(messages.ModelInfoRequest(), timeout=DEADLINE).id == "toy"


def test_embeddings_are_those_of_http(server, ours):
    messages, stub = ours
    reply = stub.Embed(messages.EmbedRequest(input=["one", "two"]), timeout=DEADLINE)
    http = server.post("/v1/embeddings", {"input": ["one", "two"]})
    for ours_, theirs in zip(reply.data, http["data"], strict=True):
        assert list(ours_.embedding) == pytest.approx(theirs["embedding"], abs=1e-6)


def test_errors_have_code_and_parameter(server, ours):
    messages, stub = ours
    for fields, code, param in [({"n": 0}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
                                ({"model": "other"}, grpc.StatusCode.NOT_FOUND, "model"),
                                ({"max_tokens": 2**31 - 1}, grpc.StatusCode.INVALID_ARGUMENT, "messages")]:
        with pytest.raises(grpc.RpcError) as raised:
            stub.ChatCompletion(request(messages, "hello", **fields), timeout=DEADLINE)
        assert raised.value.code() == code
        assert dict(raised.value.trailing_metadata())["inferd-param"] == param
        assert raised.value.details()


def test_cancel_deadline_and_abort_free_the_cache(server, ours):
    messages, stub = ours
    endless = request(messages, "count")
    stream = stub.ChatCompletionStream(endless, timeout=DEADLINE)
    next(stream)
    stream.cancel()
    server.wait_metric("inferd_kv_pages_used", 0, 10)
    with pytest.raises(grpc.RpcError) as raised:
        for _ in stub.ChatCompletionStream(endless, timeout=0.2):
            pass
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.wait_metric("inferd_kv_pages_used", 0, 10)
    stream = stub.ChatCompletionStream(endless, timeout=DEADLINE)
    first = next(stream)
    assert list(stub.Abort(messages.AbortRequest(ids=[first.id]), timeout=DEADLINE).aborted) == [first.id]
    with pytest.raises(grpc.RpcError) as raised:
        for _ in stream:
            pass
    assert raised.value.code() == grpc.StatusCode.CANCELLED


def test_health_and_reflection(server, channel):
    health = health_pb2_grpc.HealthStub(channel)
    for name in ["", *SERVICES]:
        reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=DEADLINE)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING, name
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(SERVICES) <= set(database.get_services())
    file = database.FindFileContainingSymbol("inferd.v1.Inference.ChatCompletion")
    assert "ChatCompletionRequest" in [m.name for m in file.message_type]


def test_a_router_sends_tokens_and_gets_tokens(server, stubs, channel, ours):
    messages, stub = ours
    pb = stubs[2]
    router = stubs[3].VllmEngineStub(channel)
    ids = stub.Tokenize(messages.TokenizeRequest(prompt="[[fox]]"), timeout=DEADLINE).tokens
    ask = pb.GenerateRequest(request_id="r", tokenized=pb.TokenizedInput(input_ids=ids), stream=True,
                             sampling_params=pb.SamplingParams(temperature=0, max_tokens=50))
    answers = list(router.Generate(ask, timeout=DEADLINE))
    complete_ = answers[-1].complete
    assert [i for a in answers[:-1] for i in a.chunk.token_ids] == list(complete_.output_ids)
    assert complete_.finish_reason == "stop" and complete_.prompt_tokens == len(ids)
    text = stub.Detokenize(messages.DetokenizeRequest(tokens=[int(i) for i in complete_.output_ids],
                                                      skip_special_tokens=True), timeout=DEADLINE).prompt
    assert text == "The quick brown fox jumps"
    assert router.GetModelInfo(pb.GetModelInfoRequest(), timeout=DEADLINE).served_model_name == "toy"


def triton_input(module, text):
    tensor = module.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(numpy.array([text.encode()], dtype=object))
    return tensor


def test_tritonclient_over_grpc(server, address):
    with triton_grpc.InferenceServerClient(address) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("toy")
        assert client.get_server_metadata().name == "inferd"
        assert client.get_model_metadata("toy").outputs[0].name == "text_output"
        assert client.get_model_repository_index().models[0].state == "READY"
        reply = client.infer("toy", [triton_input(triton_grpc, "[[fox]]")], request_id="7",
                             parameters={"max_tokens": 50, "temperature": 0})
        assert reply.as_numpy("text_output").tolist() == [b"The quick brown fox jumps"]
        assert reply.get_response().id == "7"
        pieces = queue.Queue()
        client.start_stream(lambda result, error: pieces.put((result, error)))
        for number, script in enumerate(["fox", "hello"]):
            client.async_stream_infer("toy", [triton_input(triton_grpc, f"[[{script}]]")], request_id=str(number),
                                      enable_empty_final_response=True, parameters={"max_tokens": 50, "temperature": 0})
        texts, open_ = {"0": "", "1": ""}, {"0", "1"}
        while open_:
            result, error = pieces.get(timeout=DEADLINE)
            assert error is None
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                open_.remove(response.id)
            else:
                texts[response.id] += result.as_numpy("text_output")[0].decode()
        client.stop_stream()
        assert texts == {"0": "The quick brown fox jumps", "1": "Hello, world!"}


def test_tritonclient_over_http(server):
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("toy")
        assert client.get_model_metadata("toy")["inputs"][0]["name"] == "text_input"
        assert client.get_model_repository_index()[0]["state"] == "READY"
        reply = client.infer("toy", [triton_input(triton_http, "[[fox]]")], request_id="7",
                             parameters={"max_tokens": 50, "temperature": 0})
        assert reply.as_numpy("text_output").tolist() == [b"The quick brown fox jumps"]
        assert reply.get_response()["id"] == "7"
        wanted = triton_http.InferRequestedOutput("text_output", binary_data=False)
        reply = client.infer("toy", [triton_input(triton_http, "[[hello]]")], outputs=[wanted],
                             parameters={"max_tokens": 50, "temperature": 0})
        assert reply.as_numpy("text_output").tolist() == ["Hello, world!"]
    generated = server.post("/v2/models/toy/generate", {"text_input": "[[hello]]", "parameters": {"max_tokens": 50}})
    assert generated["text_output"] == "Hello, world!"


def test_sigterm_lets_a_stream_end(start, stubs):
    server = start()
    messages = stubs[0]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = stubs[1].InferenceStub(channel)
        stream = stub.ChatCompletionStream(request(messages, "count", max_tokens=300), timeout=DEADLINE)
        next(stream)
        server.terminate()
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
    assert server.process.wait(DEADLINE) == 0, server.log()


def test_a_real_model_says_the_same_over_every_protocol(inferd, stubs, tmp_path):
    path = CACHE / "models" / "gemma-3-270m-q4_k_m.gguf"
    assert path.exists(), f"{path} is missing: ./dev model gemma-3-270m"
    server = Server(inferd, path, tmp_path, "--max-model-len", "1024")
    try:
        prompt = "The capital of France is"
        http = complete(server, prompt, max_tokens=16).choices[0].text
        address = f"127.0.0.1:{server.grpc_port}"
        with triton_grpc.InferenceServerClient(address) as client:
            reply = client.infer("toy", [triton_input(triton_grpc, prompt)], parameters={"max_tokens": 16, "temperature": 0})
            assert reply.as_numpy("text_output").tolist() == [http.encode()]
        with grpc.insecure_channel(address) as channel:
            stub = stubs[1].InferenceStub(channel)
            ask = stubs[0].CompletionRequest(prompt=[prompt], max_tokens=16, temperature=0)
            assert stub.Completion(ask, timeout=DEADLINE).choices[0].text == http
            together = [None] * 4

            def stream(number):
                together[number] = "".join(c.text for r in stub.CompletionStream(ask, timeout=DEADLINE) for c in r.choices)

            threads = [threading.Thread(target=stream, args=[i]) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE)
            assert together == [http] * 4
        server.stop()
    finally:
        server.kill()
