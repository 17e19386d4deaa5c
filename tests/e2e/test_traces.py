# SPDX-License-Identifier: Apache-2.0
"""--otlp-traces-endpoint before a receiver with OpenTelemetry's own messages."""

import concurrent.futures
import subprocess
import threading
import time

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from conftest import chat

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans, self.resources, self.failures, self.calls = [], [], 0, 0
        self.arrived = threading.Condition()

    def Export(self, request, context):
        with self.arrived:
            self.calls += 1
            if self.failures:
                self.failures -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            for resource in request.resource_spans:
                self.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self.arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait(self, count, seconds=20):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.spans) >= count, seconds), f"{len(self.spans)} spans, not {count}"
            return list(self.spans)


@pytest.fixture
def collector():
    service = Collector()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(service, server)
    service.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield service
    server.stop(0).wait(5)


def attributes(span):
    def plain(value):
        kind = value.WhichOneof("value")
        return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    return {a.key: plain(a.value) for a in span.attributes}


def test_a_request_is_a_child_of_its_callers_span(start, collector):
    server = start("--otlp-traces-endpoint", collector.endpoint)
    before = time.time_ns()
    reply = chat(server, "one two three", max_tokens=20, n=2, extra_headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"})
    span = collector.wait(1)[0]
    assert (span.trace_id.hex(), span.parent_span_id.hex(), len(span.span_id)) == (TRACE, PARENT, 8)
    assert span.name == "chat toy" and span.kind == span.SPAN_KIND_SERVER and span.status.code == 0
    assert before <= span.start_time_unix_nano <= span.end_time_unix_nano <= time.time_ns()
    told = attributes(span)
    usage = reply.usage
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.provider.name"] == "inferd"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "toy"
    assert told["gen_ai.response.id"] == reply.id and told["gen_ai.request.id"] == "mine"
    assert told["gen_ai.usage.input_tokens"] == told["gen_ai.usage.prompt_tokens"] == usage.prompt_tokens
    assert told["gen_ai.usage.output_tokens"] == told["gen_ai.usage.completion_tokens"] == usage.completion_tokens
    assert told["gen_ai.response.finish_reasons"] == [choice.finish_reason for choice in reply.choices]
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.temperature"], told["gen_ai.request.choice.count"]) == (20, 0.0, 2)
    assert 0 <= told["gen_ai.latency.time_in_queue"] <= told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"] < 60
    assert collector.resources[0]["service.name"] == "inferd" and collector.resources[0]["service.version"]
    with pytest.raises(Exception):
        chat(server, "x", max_tokens=-1)
    failed = collector.wait(2)[1]
    assert failed.status.code == 2 and failed.parent_span_id == b"" and attributes(failed)["error.type"] == "invalid_request_error"
    server.wait_metric("inferd_trace_spans_exported_total", 2, 10)
    server.stop()


def test_what_waits_is_sent_at_the_end(start, collector):
    server = start("--otlp-traces-endpoint", collector.endpoint)
    for _ in range(20):
        chat(server, "hello")
    server.stop()
    assert len(collector.spans) == 20


def test_a_collector_that_fails_is_tried_again(start, collector):
    server = start("--otlp-traces-endpoint", collector.endpoint)
    collector.failures = 2
    chat(server, "hello")
    collector.wait(1)
    assert collector.calls == 3
    server.wait_metric("inferd_trace_spans_exported_total", 1, 10)
    assert server.metric("inferd_trace_spans_dropped_total") == 0
    server.stop()


def test_no_collector_costs_no_request_anything(start):
    server = start("--otlp-traces-endpoint", "127.0.0.1:9")  # nobody listens there
    for _ in range(10):
        began = time.monotonic()
        chat(server, "hello")
        assert time.monotonic() - began < 2
    deadline = time.monotonic() + 20
    while server.metric("inferd_trace_spans_dropped_total") < 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 15


def test_a_bad_endpoint_ends_the_start(inferd, toy):
    ended = subprocess.run([inferd, "--model", str(toy), "--port", "0", "--grpc-port", "none", "--otlp-traces-endpoint", "collector"],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "http://HOST:4317" in ended.stderr, ended.stderr
