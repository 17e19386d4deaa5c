# SPDX-License-Identifier: Apache-2.0
"""The real scheduler, preemption and controllers of Kubernetes on 32 simulated nodes of 8 GPUs.

Contract, not controller: the LeaderWorkerSet controller is not to be had, so its pods are made here as it makes them (one
leader per group with the affinities of exclusive topology, its workers tied to the leader's domain once that is bound).
"""

import copy

import pytest

import harness
from harness import eventually
from kube import Cluster, documents

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
        made.add_definitions(shared, only="leaderworkersets")
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


def test_groups_and_preemption(cluster):
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


def test_the_controllers_of_kubernetes(cluster):
    """deploy/k8s/statefulset.yaml and mig.yaml by their real controllers: hosts come together, on nodes of their own, with the ordinal
    that the server takes its rank from; only the first gets requests; a host that goes is replaced; seven slices serve."""
    claim(cluster)
    cluster.start_controllers("statefulset-controller", "deployment-controller", "replicaset-controller", "endpointslice-controller")
    for name in ("statefulset", "mig"):
        for document in documents(harness.DEPLOY / f"k8s/{name}.yaml"):
            cluster.apply(document)

    def members():
        pods = cluster.pods("team-ml", app="llama-70b-set")
        placed = {pod["metadata"]["name"]: pod for pod in pods if pod["spec"].get("nodeName") and pod["status"].get("podIP")}
        return placed if len(placed) == 2 else None

    pods = eventually(members, 60)
    assert set(pods) == {"llama-70b-set-0", "llama-70b-set-1"}
    assert [pods[name]["metadata"]["labels"]["apps.kubernetes.io/pod-index"] for name in sorted(pods)] == ["0", "1"]
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2

    def behind(service):
        slices = cluster.get("/apis/discovery.k8s.io/v1/namespaces/team-ml/endpointslices", labelSelector=f"kubernetes.io/service-name={service}")
        return {endpoint["targetRef"]["name"] for each in slices["items"] for endpoint in each.get("endpoints") or []}

    eventually(lambda: behind("llama-70b-hosts") == set(pods), 30, message=lambda: behind("llama-70b-hosts"))
    eventually(lambda: behind("llama-70b-set") == {"llama-70b-set-0"}, 30, message=lambda: behind("llama-70b-set"))
    gone = pods["llama-70b-set-1"]["metadata"]["uid"]
    cluster.delete("/api/v1/namespaces/team-ml/pods/llama-70b-set-1", gracePeriodSeconds=0)
    eventually(lambda: (again := members()) and again["llama-70b-set-1"]["metadata"]["uid"] != gone, 60)
    eventually(lambda: cluster.get("/apis/apps/v1/namespaces/team-ml/deployments/small").get("status", {}).get("readyReplicas") == 7, 60)
