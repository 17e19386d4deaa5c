# SPDX-License-Identifier: Apache-2.0
"""Every manifest before a real API server: strict, with CEL rules, and wrong ones refused."""

import copy

import pytest

import harness
from kube import Cluster, Refused, documents

MANIFESTS = sorted(path for folder in ("k8s", "kserve", "gie") for path in (harness.DEPLOY / folder).glob("*.yaml"))


def pod_templates(document):
    """The pods a manifest makes."""
    spec, kind = document.get("spec", {}), document["kind"]
    if kind in ("Deployment", "StatefulSet"):
        return [spec["template"]]
    if kind == "LeaderWorkerSet":
        template = spec["leaderWorkerTemplate"]
        return [template[name] for name in ("leaderTemplate", "workerTemplate") if name in template]
    return []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, shared):
    def engine(name):
        if not (harness.ENGINES / name / "recipe").exists():
            pytest.skip(f"{name} is not in the cache; `./dev engines {name}` gets it")
        return harness.ENGINES / name

    for name in ("kubernetes", "etcd", "definitions"):
        engine(name)
    made = Cluster(tmp_path_factory.mktemp("cluster"), engine)
    try:
        names = made.add_definitions(shared)
        assert len(names) >= 20, names
        for document in documents(harness.DEPLOY / "k8s/namespace.yaml"):
            if document["kind"] != "ResourceQuota":
                made.apply(document)
        yield made
    finally:
        made.stop()


def check(cluster, document, namespace="team-ml"):
    cluster.apply(document, dry_run=True, namespace=namespace)
    for template in pod_templates(document):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template.get("metadata", {}), "name": "probe", "namespace": "team-ml"},
               "spec": copy.deepcopy(template["spec"])}
        if pod["spec"].get("priorityClassName", "").endswith("-inferd-serving"):  # the chart's own class, not made by a dry run
            del pod["spec"]["priorityClassName"]
        cluster.create(pod, dry_run=True)  # the namespace enforces the restricted profile on pods, not on what makes them


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_manifest_is_accepted(cluster, path):
    found = documents(path)
    assert found
    for document in found:
        check(cluster, document)


def at(document, path):
    for step in path[:-1]:
        document = document[step]
    return document


MISTAKES = {  # file, kind, path to the field, what to write there (None: remove it), what the server says
    "a misspelt field": ("k8s/lws.yaml", "LeaderWorkerSet", ["spec", "replicaz"], 2, "replicaz"),
    "a misspelt field deep inside": (
        "k8s/lws.yaml", "LeaderWorkerSet", ["spec", "leaderWorkerTemplate", "leaderTemplate", "spec", "containers", 0, "readinessProb"], {},
        "readinessProb"),
    "a policy that does not exist": (
        "k8s/lws.yaml", "LeaderWorkerSet", ["spec", "leaderWorkerTemplate", "restartPolicy"], "Always", "restartPolicy"),
    "a bound out of order": ("k8s/hpa.yaml", "HorizontalPodAutoscaler", ["spec", "minReplicas"], 9, "maxReplicas"),
    "an unknown kind of metric": ("k8s/hpa.yaml", "HorizontalPodAutoscaler", ["spec", "metrics", 0, "type"], "Extern", "type"),
    "a budget with both bounds": ("k8s/lws.yaml", "PodDisruptionBudget", ["spec", "minAvailable"], 1, "minAvailable"),
    "a quota that is no number": ("k8s/namespace.yaml", "ResourceQuota", ["spec", "hard", "requests.nvidia.com/gpu"], "many", "gpu"),
    "a selector that misses its pods": ("k8s/mig.yaml", "Deployment", ["spec", "selector", "matchLabels", "app"], "other", "selector"),
    "a pod that may be root": (
        "k8s/mig.yaml", "Deployment", ["spec", "template", "spec", "securityContext", "runAsNonRoot"], False, "runAsNonRoot"),
    "a class that does not exist": (
        "k8s/mig.yaml", "Deployment", ["spec", "template", "spec", "priorityClassName"], "nobody", "nobody"),
    "a scaler without a trigger": ("k8s/keda.yaml", "ScaledObject", ["spec", "triggers"], None, "triggers"),
    "replicas and scaling": (
        "kserve/llminferenceservice.yaml", "LLMInferenceService", ["spec", "scaling"],
        {"minReplicas": 1, "maxReplicas": 2, "keda": {}}, "scaling"),
    "a runtime with a misspelt probe": (
        "kserve/servingruntime.yaml", "ServingRuntime", ["spec", "containers", 0, "livenessprobe"], {}, "livenessprobe"),
    "a share above a hundred": (
        "kserve/inferenceservice.yaml", "InferenceService", ["spec", "predictor", "canaryTrafficPercent"], "ten", "canaryTrafficPercent"),
    "a pool without a port": ("gie/inferencepool.yaml", "InferencePool", ["spec", "targetPorts"], [], "targetPorts"),
    "a gang without a size": ("k8s/podgroup.yaml", "PodGroup", ["spec", "schedulingPolicy", "gang", "minCount"], 0, "minCount"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused(cluster, mistake):
    name, kind, path, value, says = mistake
    document = next(d for d in documents(harness.DEPLOY / name) if d["kind"] == kind)
    check(cluster, document)
    place = at(document, path)
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(Refused) as refused:
        check(cluster, document)
    assert says in str(refused.value), refused.value
