# SPDX-License-Identifier: Apache-2.0
"""The command lines of the chart, the plain manifests, the runtimes and the LLMInferenceService, started and probed as a kubelet would.

Contract, not controller: KServe's merging of config and service and its filling in of templates are done here.
"""

import copy
import re
import subprocess
import threading

import httpx
import pytest

import harness
import pods
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


def from_runtime(_, folder, toy, name="servingruntime"):
    runtime = documents(harness.DEPLOY / f"kserve/{name}.yaml")[0]["spec"]
    return {"terminationGracePeriodSeconds": 75}, fill(runtime["containers"][0], Name="chat"), {"/mnt/models": toy}


def from_cluster_runtime(engine, folder, toy):
    return from_runtime(engine, folder, toy, "clusterservingruntime")


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


def serves_and_ends(unit, url, model="chat"):
    """Streams and prefills run while the probes go on, and go on asking while the pod is deleted: no probe fails, no stream is
    dropped, the program ends with status 0 within its grace."""
    texts, problems, stop = [], [], threading.Event()

    def stream():
        with httpx.Client(verify=False, timeout=60) as client:
            while not stop.is_set():
                try:
                    texts.append(len(read_stream(client, url, chat_body("count", model=model, max_tokens=150)).split()))
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
                    reply = client.post(url + "/v1/completions", json={"model": model, "prompt": f"{number} one two three " * 200, "max_tokens": 1})
                except httpx.TransportError:
                    return
                if reply.status_code not in (200, 503):
                    problems.append(reply.text)

    def watched(work):
        try:
            with unit.network():
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


@pytest.mark.parametrize("source", [from_chart, from_runtime, from_cluster_runtime, from_llm_service])
def test_probes_under_load_and_an_orderly_end(kubelet, engine, tmp_path, toy, source):
    pod, container, mounts = source(engine, tmp_path, toy)
    port, = harness.free_ports(1)
    # A service called inferd in the namespace: unless links are off, a kubelet sets this.
    links = {} if pod.get("enableServiceLinks") is False else {"INFERD_PORT": "tcp://10.0.0.1:8080", "INFERD_SERVICE_HOST": "10.0.0.1"}
    unit = kubelet(pod, container, mounts, port, fields=FIELDS, variables=links, flags=FLAGS).start()
    scheme = container["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
    serves_and_ends(unit, f"{scheme}://127.0.0.1:{port}")


def on_cpus(container, **sizes):
    """A container of the manifests for GPUs on this host's CPUs: without the device, and with its sizes made smaller."""
    container = copy.deepcopy(container)
    container["args"] = [re.sub(r"^--(tp|pp)=\d+$", lambda m: f"--{m[1]}={sizes[m[1]]}", argument) for argument in container["args"]
                         if argument != "--device=cuda"]
    return container


def secret_of(folder):
    secret = folder / "cluster"
    secret.mkdir()
    (secret / "secret").write_text("a secret of this test, long enough to be one\n")
    return secret


def from_chart_group(engine, folder):
    return chart(engine, folder, **{**GROUP, "device": "cpu", "accelerator": {}, "parallel": {"tp": 1, "pp": 2}}), "/models/toy", "chat"


def from_lws(_, folder):
    group, = [d["spec"] for d in documents(harness.DEPLOY / "k8s/lws.yaml") if d["kind"] == "LeaderWorkerSet"]
    return group, "/models/llama-70b", "llama-70b"


@pytest.mark.parametrize("source", [from_chart_group, from_lws])
def test_a_group_finds_itself(kubelet, engine, tmp_path, toy, source):
    """Leader and worker of a LeaderWorkerSet in networks of their own, with the variables its controller sets; the worker comes first."""
    spec, path, name = source(engine, tmp_path)
    template = spec["leaderWorkerTemplate"]
    secret = secret_of(tmp_path)
    address = "group-0.group-0.team-ml"
    with pods.make(tmp_path, [[address], [f"{address.split('.')[0]}-1.{address.split('.', 1)[1]}"]]) as network:
        units = []
        for index, role in ((1, "workerTemplate"), (0, "leaderTemplate")):
            pod = template[role]["spec"]
            variables = {"LWS_LEADER_ADDRESS": address, "LWS_GROUP_SIZE": str(template["size"]), "LWS_WORKER_INDEX": str(index)}
            units.append(kubelet(pod, on_cpus(pod["containers"][0], tp=1, pp=2), {path: toy, "/etc/inferd/cluster": secret},
                                 fields={**FIELDS, "status.podIP": network.address(index)}, variables=variables,
                                 flags=FLAGS if index == 0 else (), name=role, place=(network, index)))
        worker, leader = units
        serves_and_ends(leader.start(), "http://127.0.0.1:8000", name)
        assert worker.process.process.wait(30) == 0, worker.process.log()


def test_a_stateful_set_finds_itself(kubelet, tmp_path, toy):
    """Both pods of deploy/k8s/statefulset.yaml in networks of their own, with the names, variables and ordinals that they would have."""
    stateful, = [d for d in documents(harness.DEPLOY / "k8s/statefulset.yaml") if d["kind"] == "StatefulSet"]
    spec = stateful["spec"]
    pod = spec["template"]["spec"]
    service = spec["serviceName"]
    secret = secret_of(tmp_path)
    members = [f"{stateful['metadata']['name']}-{ordinal}" for ordinal in range(spec["replicas"])]
    with pods.make(tmp_path, [[f"{name}.{service}.team-ml.svc"] for name in members]) as network:
        units = []
        for ordinal in (1, 0):
            fields = {"status.podIP": network.address(ordinal), "metadata.namespace": "team-ml", "metadata.name": members[ordinal],
                      "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal)}
            units.append(kubelet(pod, on_cpus(pod["containers"][0], tp=1, pp=2),
                                 {"/models/llama-70b": toy, "/etc/inferd/cluster": secret}, fields=fields, flags=FLAGS, name=members[ordinal],
                                 place=(network, ordinal)))
        worker, leader = units
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert worker.probe(kind) is None  # a member that does not lead has nothing to show
        serves_and_ends(leader.start(), "http://127.0.0.1:8000", "llama-70b")
        assert worker.process.process.wait(30) == 0, worker.process.log()


def test_the_nodes_of_a_runtime_find_one_another(kubelet, tmp_path, toy):
    """Head and worker of deploy/kserve/multinode.yaml in networks of their own, with the variables that KServe gives them."""
    runtime, = [d for d in documents(harness.DEPLOY / "kserve/multinode.yaml") if d["kind"] == "ServingRuntime"]
    spec = runtime["spec"]
    secret = secret_of(tmp_path)
    sizes = {"TENSOR_PARALLEL_SIZE": "1", "PIPELINE_PARALLEL_SIZE": str(spec["workerSpec"]["pipelineParallelSize"]),
             "RAY_NODE_COUNT": str(spec["workerSpec"]["pipelineParallelSize"]), "REQUEST_GPU_COUNT": "1"}
    head_service = "llama-70b-two-nodes-head-1"
    with pods.make(tmp_path, [[f"{head_service}.team-ml.svc"], ["worker"]]) as network:
        units = []
        for number, container, more in ((1, spec["workerSpec"]["containers"][0], {"HEAD_SVC": head_service}), (0, spec["containers"][0], {})):
            fields = {"status.podIP": network.address(number), "metadata.namespace": "team-ml"}
            units.append(kubelet({"terminationGracePeriodSeconds": 75}, on_cpus(fill(container, Name="llama-70b-two-nodes")),
                                 {"/mnt/models": toy, "/etc/inferd/cluster": secret}, fields=fields, variables={**sizes, **more},
                                 flags=FLAGS if number == 0 else (), name=container["name"], place=(network, number)))
        worker, leader = units
        serves_and_ends(leader.start(), "http://127.0.0.1:8080", "llama-70b-two-nodes")
        assert worker.process.process.wait(30) == 0, worker.process.log()
