# SPDX-License-Identifier: Apache-2.0
"""The command lines of the chart, the ServingRuntime and the LLMInferenceService, started and probed as a kubelet would.

Contract, not controller: KServe's merging of config and service and its filling in of templates are done here.
"""

import copy
import re
import subprocess
import threading

import httpx
import pytest

import harness
from harness import chat_body, read_stream
from kube import documents
from kubelet import Kubelet
from test_manifests import GROUP, render

FIELDS = {"status.podIP": "127.0.0.1", "metadata.namespace": "team-ml"}
FLAGS = ("--threads=1", f"--kv-cache-bytes={64 << 20}", "--allowed-hosts=*")


def fill(container, **values):
    """Go templates of KServe with the values of a service."""
    container = copy.deepcopy(container)
    container["args"] = [re.sub(r"\{\{\s*\.([\w.]+)\s*\}\}", lambda match: values[match[1]], argument) for argument in container["args"]]
    return container


def chart(engine, folder, **values):
    rendered = render(engine, folder, {"model": {"source": "/models/toy", "servedNames": ["chat"]}, **values})
    return next(d for d in rendered if d["kind"] in ("Deployment", "LeaderWorkerSet", "StatefulSet"))["spec"]


def from_chart(engine, folder, toy):
    pod = chart(engine, folder, drain={"delaySeconds": 3, "timeoutSeconds": 30})["template"]["spec"]
    return pod, pod["containers"][0], {"/models/toy": toy}


def from_runtime(_, folder, toy):
    runtime = documents(harness.DEPLOY / "kserve/servingruntime.yaml")[0]["spec"]
    return {"terminationGracePeriodSeconds": 75}, fill(runtime["containers"][0], Name="chat"), {"/mnt/models": toy}


def from_llm_service(_, folder, toy):
    config, service = documents(harness.DEPLOY / "kserve/llminferenceservice.yaml")
    pod = config["spec"]["template"]
    container = fill(pod["containers"][0], **{"Spec.Model.Name": "chat", "ObjectMeta.Namespace": "team-ml", "ObjectMeta.Name": "chat"})
    tls = folder / "tls"
    tls.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", str(tls / "tls.key"), "-out", str(tls / "tls.crt")], check=True, capture_output=True)
    return pod, container, {"/mnt/models": toy, "/var/run/kserve/tls": tls}


@pytest.fixture
def kubelet(tmp_path, binary):
    started = []

    def run(*arguments, **options):
        started.append(Kubelet(tmp_path, binary, *arguments, **options))
        return started[-1]

    yield run
    for each in started:
        each.stop()


@pytest.mark.parametrize("source", [from_chart, from_runtime, from_llm_service])
def test_probes_under_load_and_an_orderly_end(kubelet, engine, tmp_path, toy, source):
    """No probe fails under load, no stream is dropped by the end, which fits into the grace period."""
    pod, container, mounts = source(engine, tmp_path, toy)
    port, = harness.free_ports(1)
    # A service called inferd in the namespace: unless links are off, a kubelet sets this.
    links = {} if pod.get("enableServiceLinks") is False else {"INFERD_PORT": "tcp://10.0.0.1:8080", "INFERD_SERVICE_HOST": "10.0.0.1"}
    unit = kubelet(pod, container, mounts, port, fields=FIELDS, variables=links, flags=FLAGS).start()
    scheme = container["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
    url = f"{scheme}://127.0.0.1:{port}"
    texts, problems, stop = [], [], threading.Event()

    def stream():
        with httpx.Client(verify=False, timeout=60) as client:
            while not stop.is_set():
                try:
                    texts.append(len(read_stream(client, url, chat_body("count", max_tokens=150)).split()))
                except httpx.HTTPStatusError as error:
                    assert error.response.status_code == 503
                    return  # refused before its first byte, as it should be once the delay is over
                except httpx.ConnectError:
                    return

    def prefill():
        with httpx.Client(verify=False, timeout=60) as client:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    reply = client.post(url + "/v1/completions", json={"model": "chat", "prompt": f"{number} one two three " * 200, "max_tokens": 1})
                except httpx.TransportError:
                    return
                if reply.status_code not in (200, 503):
                    problems.append(reply.text)

    def watched(work):
        try:
            work()
        except BaseException as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=watched, args=(work,)) for work in [stream] * 6 + [prefill] * 2]
    for thread in threads:
        thread.start()
    try:
        harness.eventually(lambda: unit.counts.get("readinessProbe", 0) >= 12 and len(texts) >= 10, 120,
                           message=lambda: f"{unit.counts} {texts} {problems[:3]}\n{unit.process.log()}")
        assert unit.failures == []
        assert unit.counts["livenessProbe"] >= 1
        status = unit.delete()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert status == 0, unit.process.log()
    assert problems == []
    assert set(texts) == {150}


def test_a_group_finds_itself(kubelet, engine, tmp_path, toy):
    """Leader and worker of the chart's LeaderWorkerSet, with the variables its controller sets; the worker comes first."""
    template = chart(engine, tmp_path, **{**GROUP, "device": "cpu", "accelerator": {}, "parallel": {"tp": 1, "pp": 2}})["leaderWorkerTemplate"]
    secret = tmp_path / "cluster"
    secret.mkdir()
    (secret / "secret").write_text("a secret of this test, long enough to be one\n")
    port, control = harness.free_ports(2)
    units = []
    for index, role in ((1, "workerTemplate"), (0, "leaderTemplate")):
        pod = template[role]["spec"]
        container = copy.deepcopy(pod["containers"][0])
        container["args"] = [a.replace(":7000", f":{control}") for a in container["args"]]
        variables = {"LWS_LEADER_ADDRESS": "localhost", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index)}
        units.append(kubelet(pod, container, {"/models/toy": toy, "/etc/inferd/cluster": secret}, port, fields=FIELDS,
                             variables=variables, flags=FLAGS if index == 0 else (), name=role))
    worker, leader = units
    leader.start()
    reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=chat_body(), timeout=60)
    assert reply.json()["choices"][0]["message"]["content"] == harness.FOX
    assert leader.delete() == 0, leader.process.log()
    assert worker.process.process.wait(30) == 0, worker.process.log()
