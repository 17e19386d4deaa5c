# SPDX-License-Identifier: Apache-2.0
"""The real scheduler, quota, preemption and HPA on 32 simulated nodes of 8 GPUs.

Contract, not controller: the LeaderWorkerSet controller is not to be had, so its pods are made here as it makes them (one
leader per group with the affinities of exclusive topology, its workers tied to the leader's domain once that is bound).
"""

import copy
import http.server
import json
import ssl
import subprocess
import threading
import time

import httpx
import pytest

import harness
from harness import chat_body, eventually
from kube import Cluster, Refused, documents

RACK, GPU, NODES, RACK_NODES = "topology.example.com/rack", "nvidia.com/gpu", 32, 4
GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"


def node(number):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": f"node-{number}", "labels": {RACK: f"rack-{number // RACK_NODES}", "kubernetes.io/hostname": f"node-{number}"},
        "annotations": {"kwok.x-k8s.io/node": "fake"}}}


@pytest.fixture
def cluster(tmp_path, shared, engine):
    for name in ("kubernetes", "etcd", "definitions", "kwok"):
        engine(name)
    made = Cluster(tmp_path / "cluster", engine)
    try:
        made.add_definitions(shared)
        for document in documents(harness.DEPLOY / "k8s/namespace.yaml"):
            if document["kind"] != "ResourceQuota":
                made.apply(document)
        capacity = {"cpu": "128", "memory": "1Ti", "pods": "110", GPU: "8", "nvidia.com/mig-1g.10gb": "0"}
        for number in range(NODES):
            made.create(node(number))
            share = {**capacity, GPU: "0", "nvidia.com/mig-1g.10gb": "56"} if number >= NODES - 2 else capacity
            made.patch(f"/api/v1/nodes/node-{number}/status", {"status": {
                "capacity": share, "allocatable": share, "conditions": [{"type": "Ready", "status": "True", "reason": "test", "message": ""}]}})
            made.patch(f"/api/v1/nodes/node-{number}", {"spec": {"taints": None}})
        made.start_scheduler()
        made.start_kwok()
        yield made
    finally:
        made.stop()


def lws():
    return next(d for d in documents(harness.DEPLOY / "k8s/lws.yaml") if d["kind"] == "LeaderWorkerSet")


def pod_of(manifest, group, index, topology=True):
    """What the controller makes of the manifest's template for place `index` of a group."""
    template = manifest["spec"]["leaderWorkerTemplate"]
    template = copy.deepcopy(template["leaderTemplate"] if index == 0 else template["workerTemplate"])
    name, key = manifest["metadata"]["name"], f"key-{manifest['metadata']['name']}-{group}"
    leader = f"{name}-{group}.{name}-{group}.{manifest['metadata']['namespace']}"
    size = str(manifest["spec"]["leaderWorkerTemplate"]["size"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": f"{name}-{group}" + (f"-{index}" if index else ""), "namespace": manifest["metadata"]["namespace"],
        "labels": {**template["metadata"]["labels"], GROUP_KEY: key, "leaderworkerset.sigs.k8s.io/name": name,
                   "leaderworkerset.sigs.k8s.io/group-index": str(group), "leaderworkerset.sigs.k8s.io/worker-index": str(index)}},
        "spec": template["spec"]}
    for container in pod["spec"]["containers"]:
        container["env"] = [{"name": "LWS_LEADER_ADDRESS", "value": leader}, {"name": "LWS_GROUP_SIZE", "value": size},
                            {"name": "LWS_WORKER_INDEX", "value": str(index)}, *container.get("env", [])]
    if index == 0 and topology:
        domain = manifest["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"]

        def term(*expressions):
            return {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchExpressions": list(expressions)}, "topologyKey": domain}]}

        mine = {"key": GROUP_KEY, "operator": "In", "values": [key]}
        pod["spec"]["affinity"] = {"podAffinity": term(mine), "podAntiAffinity": term(
            {"key": GROUP_KEY, "operator": "Exists"}, {**mine, "operator": "NotIn"})}
    return pod


def place_of(cluster, pod):
    return cluster.get(cluster.path(pod))["spec"].get("nodeName")


def claim(cluster):
    """Pods name the claim `models`; a volume for it."""
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "models"}, "spec": {
        "capacity": {"storage": "1Ti"}, "accessModes": ["ReadOnlyMany"], "storageClassName": "", "hostPath": {"path": "/models"},
        "claimRef": {"name": "models", "namespace": "team-ml"}}})
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {
        "name": "models", "namespace": "team-ml", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {
        "accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": "models", "resources": {"requests": {"storage": "1Ti"}}}})
    cluster.patch("/api/v1/namespaces/team-ml/persistentvolumeclaims/models/status", {"status": {"phase": "Bound"}})
    cluster.patch("/api/v1/persistentvolumes/models/status", {"status": {"phase": "Bound"}})


def test_groups_quota_and_preemption(cluster):
    claim(cluster)
    manifest = lws()

    # Seven racks have GPUs on all their nodes and the eighth on two: room for eight groups, one rack each.
    leaders = [pod_of(manifest, group, 0) for group in range(8)]
    for pod in leaders:
        cluster.create(pod)
    eventually(lambda: all(place_of(cluster, pod) for pod in leaders), 60)
    workers = []
    for group, pod in enumerate(leaders):
        rack = int(place_of(cluster, pod).split("-")[1]) // RACK_NODES
        worker = pod_of(manifest, group, 1)
        worker["spec"]["nodeSelector"] = {RACK: f"rack-{rack}"}
        workers.append(worker)
        cluster.create(worker)
    eventually(lambda: all(place_of(cluster, pod) for pod in workers), 60)

    def rack_of(pod):
        return int(place_of(cluster, pod).split("-")[1]) // RACK_NODES

    racks = [{rack_of(leader), rack_of(worker)} for leader, worker in zip(leaders, workers)]
    assert all(len(rack) == 1 for rack in racks), racks
    assert len(set.union(*racks)) == 8, racks
    for leader, worker in zip(leaders, workers):
        assert place_of(cluster, leader) != place_of(cluster, worker)
    eventually(lambda: all(any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
                           for p in cluster.pods("team-ml", app="llama-70b")), 60)  # by KWOK

    # A ninth group finds no rack of its own, though GPUs are free.
    ninth = pod_of(manifest, 8, 0)
    cluster.create(ninth)
    eventually(lambda: any(c["type"] == "PodScheduled" and c["status"] == "False" and "affinity" in c["message"]
                           for c in cluster.get(cluster.path(ninth))["status"].get("conditions", [])), 30)
    cluster.delete(cluster.path(ninth), gracePeriodSeconds=0)

    # Batch jobs fill the rest. A serving pod that needs a node takes a batch job's, never a group's.
    batch = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"batch-{n}", "namespace": "default", "labels": {"app": "batch"}},
              "spec": {"priorityClassName": "gpu-batch", "terminationGracePeriodSeconds": 0, "containers": [
                  {"name": "c", "image": "x", "resources": {"limits": {GPU: "8"}}}]}} for n in range(14)]
    for pod in batch:
        cluster.create(pod)
    eventually(lambda: all(place_of(cluster, pod) for pod in batch), 30)  # 30 nodes: 16 serve, 14 have batch
    urgent = pod_of(manifest, 90, 0, topology=False)
    del urgent["metadata"]["labels"][GROUP_KEY]
    cluster.create(urgent)
    eventually(lambda: place_of(cluster, urgent), 60)
    left = {pod["metadata"]["name"] for pod in cluster.pods("default", app="batch")}
    assert len(left) == 13, left
    assert all(place_of(cluster, pod) for pod in leaders + workers)
    assert len(cluster.pods("team-ml", app="llama-70b")) == 17
    # The other way round: a batch job waits and takes no one's place.
    late = {**batch[0], "metadata": {"name": "late", "namespace": "default", "labels": {"app": "late"}}}
    cluster.create(late)
    eventually(lambda: any(c["type"] == "PodScheduled" and c["status"] == "False"
                           for c in cluster.get(cluster.path(late))["status"].get("conditions", [])), 30)
    assert len(cluster.pods("team-ml", app="llama-70b")) == 17
    assert len(cluster.pods("default", app="batch")) == 13


def test_quota(cluster):
    """16 GPUs and 7 slices for the team: the third 8-GPU pod and the eighth slice are refused."""
    quota = next(d for d in documents(harness.DEPLOY / "k8s/namespace.yaml") if d["kind"] == "ResourceQuota")
    cluster.start_controllers("resourcequota-controller")
    cluster.apply(quota)
    path = "/api/v1/namespaces/team-ml/resourcequotas/gpu-quota"
    eventually(lambda: cluster.get(path).get("status", {}).get("used"), 60)
    for index in range(2):
        cluster.create(pod_of(lws(), 0, index, topology=False))
    with pytest.raises(Refused, match="exceeded quota: gpu-quota.*requests.nvidia.com/gpu"):
        cluster.create(pod_of(lws(), 1, 0, topology=False))
    template = documents(harness.DEPLOY / "k8s/mig.yaml")[0]["spec"]["template"]

    def slice_pod(number):
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": f"slice-{number}", "namespace": "team-ml"},
                "spec": copy.deepcopy(template["spec"])}

    for number in range(7):
        cluster.create(slice_pod(number))
    with pytest.raises(Refused, match="exceeded quota: gpu-quota.*mig-1g.10gb"):
        cluster.create(slice_pod(7))


class ExternalMetrics:
    """The external metrics API, answering with a real server's queue, as an adapter for Prometheus would."""

    def __init__(self, folder, read):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-keyout", str(folder / "metrics.key"), "-out", str(folder / "metrics.crt")], check=True, capture_output=True)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if "inferd_num_requests_waiting" in self.path:
                    answer = {"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {}, "items": [
                        {"metricName": "inferd_num_requests_waiting", "metricLabels": {}, "value": str(int(read())),
                         "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}]}
                else:
                    answer = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1", "resources": [
                        {"name": "inferd_num_requests_waiting", "singularName": "", "namespaced": True,
                         "kind": "ExternalMetricValueList", "verbs": ["get"]}]}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "metrics.crt", folder / "metrics.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self.server.server_address[1]


def test_hpa_on_the_queue_of_a_real_server(cluster, inferd, tmp_path):
    """deploy/k8s/hpa.yaml: 1 to 5 groups while requests wait, and back to 1. Its windows are shortened."""
    server = inferd("--max-num-seqs", "1")
    metrics = ExternalMetrics(tmp_path, lambda: server.metric("inferd_num_requests_waiting"))
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": "default"}, "spec": {
        "type": "ExternalName", "externalName": "localhost", "ports": [{"port": metrics.port}]}})
    cluster.apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
                   "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                            "insecureSkipTLSVerify": True, "service": {"name": "metrics", "namespace": "default", "port": metrics.port}}})
    eventually(lambda: any(c["type"] == "Available" and c["status"] == "True" for c in cluster.get(
        "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io").get("status", {}).get("conditions", [])), 60)
    manifest = {**lws()}
    manifest["spec"]["replicas"] = 1
    cluster.apply(manifest)
    path = cluster.path(manifest)
    hpa = documents(harness.DEPLOY / "k8s/hpa.yaml")[0]
    hpa["spec"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 1}]}

    def follow():
        """As the controller: the status says what the specification asks for."""
        spec = cluster.get(path)["spec"]["replicas"]
        cluster.patch(path + "/status", {"status": {"replicas": spec, "readyReplicas": spec,
                                                    "hpaPodSelector": "app=llama-70b,role=leader"}})
        return spec

    assert follow() == 1
    cluster.start_controllers("horizontal-pod-autoscaler-controller", horizontal_pod_autoscaler_sync_period="1s",
                              horizontal_pod_autoscaler_downscale_stabilization="1s")
    cluster.apply(hpa)

    def ask():
        with httpx.Client(timeout=120) as client:
            client.post(server.url + "/v1/chat/completions", json=chat_body("count", max_tokens=3900))

    threads = [threading.Thread(target=ask) for _ in range(60)]
    for thread in threads:
        thread.start()
    seen = []
    try:
        eventually(lambda: seen.append(follow()) or seen[-1] == 5, 90, 0.3,
                   message=lambda: f"{seen} {cluster.get(cluster.path(hpa)).get('status')}")
    finally:
        httpx.post(server.url + "/abort", json={}, timeout=10)
    for thread in threads:
        thread.join(120)
    assert server.metric("inferd_num_requests_waiting") == 0
    eventually(lambda: seen.append(follow()) or seen[-1] == 1, 90, 0.3,
               message=lambda: f"{seen} {cluster.get(cluster.path(hpa)).get('status')}")
