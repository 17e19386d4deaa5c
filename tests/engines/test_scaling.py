# SPDX-License-Identifier: Apache-2.0
"""The real autoscaler scales a LeaderWorkerSet on the queue of a real server, and the real quota refuses what is too much.

Two things are played: the LeaderWorkerSet controller, of which the autoscaler sees a status alone, and what serves external
metrics to it (a Prometheus adapter), which here reads the server's /metrics itself.
"""

import concurrent.futures
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
import urllib.parse

import httpx
import pytest

import harness
from harness import chat_body, eventually
from kube import Cluster, Refused, documents
from test_scheduling import GPU, claim, lws, pod_of

METRICS = "external.metrics.k8s.io/v1beta1"
NAMES = ("inferd_num_requests_waiting", "inferd_kv_cache_usage_perc")


class ExternalMetrics:
    """Serves the metrics of `server` as external metrics, over TLS."""

    def __init__(self, folder, server):
        outer = self
        self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                found = re.fullmatch(rf"/apis/{METRICS}/namespaces/([\w-]+)/(\w+)", url.path)
                if url.path == f"/apis/{METRICS}":
                    self._answer(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": METRICS, "resources": [
                        {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
                        for name in NAMES]})
                elif found:
                    selector = urllib.parse.parse_qs(url.query).get("labelSelector", [""])[0]
                    outer.asked.append((found[1], found[2], selector))
                    labels = dict(pair.split("=") for pair in selector.split(",") if pair)
                    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                    self._answer(200, {"kind": "ExternalMetricValueList", "apiVersion": METRICS, "metadata": {}, "items": [
                        {"metricName": found[2], "metricLabels": labels, "timestamp": now, "value": f"{round(1000 * value)}m"}
                        for value in outer.values(server, found[2], labels)]})
                else:
                    self._answer(404, {})

            def _answer(self, code, body):
                text = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments):
                pass

        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-keyout", folder / "metrics.key", "-out", folder / "metrics.crt"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "metrics.crt", folder / "metrics.key")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def values(server, name, labels):
        for line in httpx.get(server.url + "/metrics", timeout=10).text.splitlines():
            found = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
            if found and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1])).items():
                yield float(found[2])

    @property
    def port(self):
        return self.server.server_address[1]


@pytest.fixture
def cluster(tmp_path, shared, engine):
    for name in ("kubernetes", "etcd", "definitions"):
        engine(name)
    made = Cluster(tmp_path / "cluster", engine)
    try:
        made.add_definitions(shared, only="leaderworkersets")
        for document in documents(harness.DEPLOY / "k8s/namespace.yaml"):
            made.apply(document)
        yield made
    finally:
        made.stop()


class Scaled:
    """deploy/k8s/lws.yaml at one group and deploy/k8s/hpa.yaml with its waits made shorter, in a running autoscaler that reads the
    metrics of `server`. The controller of LeaderWorkerSets is played: all groups that are wanted are there."""

    def __init__(self, cluster, server, folder):
        self.cluster = cluster
        self.metrics = ExternalMetrics(folder, server)
        cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": "default"},
                       "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self.metrics.port}]}})
        cluster.apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
                       "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                                "insecureSkipTLSVerify": True, "service": {"name": "metrics", "namespace": "default", "port": self.metrics.port}}})
        eventually(lambda: cluster.http.get(f"/apis/{METRICS}").status_code == 200, 60)
        manifest = lws()
        manifest["spec"]["replicas"] = 1
        cluster.apply(manifest)
        self.path = cluster.path(manifest)
        hpa, = documents(harness.DEPLOY / "k8s/hpa.yaml")
        self.most_waiting = int(hpa["spec"]["metrics"][0]["external"]["target"]["averageValue"])
        hpa["spec"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": 3, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 2}]}
        cluster.apply(hpa)
        self.hpa_path = cluster.path(hpa)

    def __enter__(self):
        self.over = threading.Event()
        self.controller = threading.Thread(target=self._control)
        self.controller.start()
        try:
            manager = self.cluster.start_controllers("horizontal-pod-autoscaler-controller", horizontal_pod_autoscaler_sync_period="1s")
            eventually(lambda: len(self.metrics.asked) >= 6, 60, message=manager.log)
            assert set(self.metrics.asked) == {("team-ml", name, "model_name=llama-70b") for name in NAMES}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.over.set()
        self.controller.join(30)

    def _control(self):
        while not self.over.is_set():
            wanted = self.replicas()
            self.cluster.patch(self.path + "/status", {"status": {"replicas": wanted, "readyReplicas": wanted,
                                                                  "hpaPodSelector": "leaderworkerset.sigs.k8s.io/name=llama-70b"}})
            self.over.wait(0.3)

    def replicas(self):
        return self.cluster.get(self.path)["spec"]["replicas"]

    def status(self):
        return json.dumps(self.cluster.get(self.hpa_path)["status"])


def test_queue_scales_groups_up_and_down(cluster, inferd, tmp_path):
    """1 -> 5 -> 1 on inferd_num_requests_waiting."""
    server = inferd("--max-num-seqs", "1", "--max-waiting", "100", served=("llama-70b", "chat"))
    seen, asking = [], threading.Event()
    asking.set()

    def client():
        with httpx.Client(timeout=120) as http_client:
            while asking.is_set():
                http_client.post(server.url + "/v1/chat/completions", json=chat_body("count", max_tokens=200))

    clients = [threading.Thread(target=client) for _ in range(41)]
    with Scaled(cluster, server, tmp_path) as groups:
        assert groups.replicas() == 1  # nothing waits
        for thread in clients:
            thread.start()
        try:
            eventually(lambda: server.metric("inferd_num_requests_waiting") == 40)
            eventually(lambda: groups.replicas() == 5, 60, message=groups.status)
        finally:
            asking.clear()
            for thread in clients:
                thread.join(120)

        def went_down():
            seen.append(groups.replicas())
            return seen[-1] == 1

        eventually(went_down, 60, message=groups.status)
    steps = [a for a, b in zip(seen, [*seen[1:], None]) if a != b]
    assert steps == [5, 4, 3, 2, 1], steps  # one group at a time


def test_kv_use_scales_groups(cluster, inferd, tmp_path):
    """1 -> 2 -> 1 on inferd_kv_cache_usage_perc while too few requests wait to ask for it: a cache filled beyond four fifths wants a second group."""
    server = inferd("--kv-cache-bytes", str(8 << 20), served=("llama-70b", "chat"))
    tokens = 32 * httpx.get(server.url + "/load").json()["kv_pages_total"]
    prompt = tokens * 9 // 10
    waiting, asking = [], threading.Event()
    asking.set()

    def client():
        with httpx.Client(timeout=120) as http_client:
            while asking.is_set():
                reply = http_client.post(server.url + "/v1/completions", json={
                    "model": "chat", "prompt": [7] * prompt, "max_tokens": tokens - prompt - 32, "ignore_eos": True})
                assert reply.status_code == 200, reply.text

    with Scaled(cluster, server, tmp_path) as groups, concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert groups.replicas() == 1
        asked = pool.submit(client)

        def went_up():
            waiting.append(server.metric("inferd_num_requests_waiting"))
            return groups.replicas() == 2

        try:
            eventually(went_up, 60, message=groups.status)
        finally:
            asking.clear()
            asked.result(120)  # raises what the client met
        assert sum(waiting) / len(waiting) < groups.most_waiting
        eventually(lambda: groups.replicas() == 1, 60, message=groups.status)


def test_quota(cluster):
    """deploy/k8s/namespace.yaml: two pods of 8 GPUs and seven slices; more is refused until one goes."""
    claim(cluster)
    cluster.start_controllers("resourcequota-controller")
    quota = "/api/v1/namespaces/team-ml/resourcequotas/gpu-quota"
    eventually(lambda: cluster.get(quota).get("status", {}).get("hard"), 60)
    pods = [pod_of(lws(), group, 0, topology=False) for group in range(3)]
    for pod in pods[:2]:
        cluster.create(pod)
    with pytest.raises(Refused, match="exceeded quota: gpu-quota.*requests.nvidia.com/gpu"):
        cluster.create(pods[2])
    template = next(d for d in documents(harness.DEPLOY / "k8s/mig.yaml") if d["kind"] == "Deployment")["spec"]["template"]
    slices = [{"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
               "metadata": {"name": f"small-{n}", "namespace": "team-ml", "labels": template["metadata"]["labels"]}} for n in range(8)]
    for pod in slices[:7]:
        cluster.create(pod)
    with pytest.raises(Refused, match="exceeded quota: gpu-quota.*mig-1g.10gb"):
        cluster.create(slices[7])
    assert cluster.get(quota)["status"]["used"] == {f"requests.{GPU}": "16", "requests.nvidia.com/mig-1g.10gb": "7"}
    cluster.delete(cluster.path(pods[0]), gracePeriodSeconds=0)

    def fits():
        try:
            return cluster.create(pods[2])
        except Refused:
            return None

    eventually(fits, 60)
