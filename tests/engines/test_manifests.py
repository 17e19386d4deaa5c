# SPDX-License-Identifier: Apache-2.0
"""Every manifest and 16 sets of chart values before a real API server: strict, with CEL rules, and wrong ones refused."""

import copy
import json
import subprocess

import pytest
import yaml

import harness
from kube import Cluster, Refused, documents

CHART = harness.DEPLOY / "helm/inferd"
MANIFESTS = sorted(path for folder in ("k8s", "kserve", "gie") for path in (harness.DEPLOY / folder).glob("*.yaml"))

GPU = {"device": "cuda", "accelerator": {"resource": "nvidia.com/gpu"}}
GROUP = {"mode": "leaderWorkerSet", "groupSize": 2, "cluster": {"existingSecret": "inferd-cluster"}, "parallel": {"tp": 8, "pp": 2}, **GPU}
VALUES = {
    "defaults": {},
    "cpu, keys, metrics": {"auth": {"existingSecret": "keys"}, "serviceMonitor": {"enabled": True, "labels": {"release": "p"}}},
    "one gpu": GPU,
    "tp 4": {**GPU, "parallel": {"tp": 4}, "replicas": 3, "sharedMemory": "16Gi"},
    "two replicas in a pod": {**GPU, "parallel": {"tp": 2, "dp": 2}},
    "mig": {"device": "cuda", "accelerator": {"resource": "nvidia.com/mig-1g.10gb", "count": 1}, "replicas": 7},
    "priority": {"priorityClass": {"create": True}, "podDisruptionBudget": {"enabled": False}},
    "volume": {"model": {"source": "/models/llama", "servedNames": ["llama", "llama-70b"], "version": "v2", "claim": "models"}},
    "grpc": {"service": {"grpc": True}, "extraArgs": ["--max-num-seqs=128"], "extraEnv": [{"name": "TZ", "value": "UTC"}]},
    "hpa": {"autoscaling": {"kind": "hpa"}},
    "keda": {"autoscaling": {"kind": "keda", "minReplicas": 2, "maxReplicas": 8}},
    "group": GROUP,
    "group, rack, keda": {**GROUP, "topology": {"exclusiveKey": "example.com/rack"}, "autoscaling": {"kind": "keda"}, "replicas": 4},
    "group, hpa, pool": {**GROUP, "autoscaling": {"kind": "hpa"}, "inferencePool": {"enabled": True}},
    "stateful": {**GROUP, "mode": "statefulSet", "replicas": 2, "auth": {"existingSecret": "keys"}},
    "placed": {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}], "podLabels": {"team": "a"},
               "podAnnotations": {"note": "x"}, "image": {"repository": "r.example/inferd", "tag": "1", "pullSecrets": [{"name": "pull"}]},
               "serviceAccount": {"create": False, "name": "models"}},
}
WRONG_VALUES = {
    "tp over MIG slices": ({"accelerator": {"resource": "nvidia.com/mig-1g.10gb"}, "parallel": {"tp": 2}}, "no link"),
    "a group without a controller": ({"groupSize": 2}, "leaderWorkerSet or statefulSet"),
    "a group without a secret": ({**GROUP, "cluster": {"existingSecret": ""}}, "existingSecret"),
    "a scaled statefulset": ({**GROUP, "mode": "statefulSet", "autoscaling": {"kind": "hpa"}}, "cannot be scaled"),
    "ranks that cannot be dealt": ({**GROUP, "groupSize": 3}, "cannot be dealt"),
    "devices that are not used": ({"accelerator": {"resource": "nvidia.com/gpu"}}, "set device=cuda"),
    "an unknown mode": ({"mode": "daemonset"}, "mode"),
    "a misspelt key": ({"replica": 2}, "replica"),
    "a negative number": ({"replicas": -1}, "replicas"),
}


def helm(engine, *arguments):
    # A helm that was built from its module takes an old Kubernetes for granted.
    return subprocess.run([engine("helm") / "helm", *arguments, "--kube-version", "1.36.3"], capture_output=True, text=True, timeout=60)


def render(engine, folder, values, release="chat", namespace="team-ml"):
    path = folder / "values.yaml"
    path.write_text(json.dumps(values))
    done = helm(engine, "template", release, CHART, "-f", path, "--namespace", namespace)
    assert done.returncode == 0, done.stderr
    return [d for d in yaml.safe_load_all(done.stdout) if d]


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


def test_the_runtime_of_a_namespace_is_that_of_a_cluster():
    (one,), (everywhere,) = (documents(harness.DEPLOY / f"kserve/{name}.yaml") for name in ("servingruntime", "clusterservingruntime"))
    assert one["spec"] == everywhere["spec"]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_a_rendered_chart_is_accepted(cluster, engine, tmp_path, values):
    kinds = []
    for document in render(engine, tmp_path, values):
        check(cluster, document)
        kinds.append(document["kind"])
    assert "Service" in kinds
    wanted = {"deployment": "Deployment", "leaderWorkerSet": "LeaderWorkerSet", "statefulSet": "StatefulSet"}
    assert kinds.count(wanted[values.get("mode", "deployment")]) == (2 if values.get("mode") == "statefulSet" else 1)
    scaling = values.get("autoscaling", {}).get("kind")
    assert ("ScaledObject" in kinds, "HorizontalPodAutoscaler" in kinds) == (scaling == "keda", scaling == "hpa")


def test_the_chart_is_clean(engine, tmp_path):
    for number, values in enumerate(VALUES.values()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps(values))
        done = helm(engine, "lint", "--strict", CHART, "-f", path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values,says", WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_wrong_values_are_refused_with_a_reason(engine, tmp_path, values, says):
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    done = helm(engine, "template", "chat", CHART, "-f", path)
    assert done.returncode != 0
    assert says in done.stderr, done.stderr


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
