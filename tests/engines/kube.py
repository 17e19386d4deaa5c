# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane on loopback: etcd, API server, and on demand scheduler, controller manager and KWOK.

No kubelet, no controllers of LeaderWorkerSet or KServe: what those do is played from their contracts, and said so where it is.
"""

import json
import pathlib
import subprocess
import tarfile

import httpx
import yaml

import harness

TOKEN = "a-token-of-this-test"


class Refused(Exception):
    """The API server's words."""


def documents(path):
    return [document for document in yaml.safe_load_all(pathlib.Path(path).read_text()) if document]


class Cluster:
    """`apply`, `get`, `delete` by manifest; everything lives in `folder` and ends with stop()."""

    def __init__(self, folder, engine):
        self.folder, self.engine, self.processes = folder, engine, []
        etcd_client, etcd_peer, self.port = harness.free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.paths = {}
        self.start(engine("etcd") / "usr/bin/etcd", "--data-dir", folder / "etcd", "--unsafe-no-fsync",
                   "--listen-client-urls", f"http://127.0.0.1:{etcd_client}", "--advertise-client-urls",
                   f"http://127.0.0.1:{etcd_client}", "--listen-peer-urls", f"http://127.0.0.1:{etcd_peer}",
                   "--initial-advertise-peer-urls", f"http://127.0.0.1:{etcd_peer}",
                   "--initial-cluster", f"default=http://127.0.0.1:{etcd_peer}")
        (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", str(folder / "accounts.key"), "2048"], check=True, capture_output=True)
        api = self.start(
            engine("kubernetes") / "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd_client}",
            "--bind-address", "127.0.0.1", "--secure-port", self.port, "--cert-dir", folder / "certificates",
            "--token-auth-file", folder / "tokens.csv", "--authorization-mode", "RBAC",
            "--service-account-key-file", folder / "accounts.key", "--service-account-signing-key-file",
            folder / "accounts.key", "--service-account-issuer", "https://kubernetes.default.svc",
            "--disable-admission-plugins", "ServiceAccount", "--service-cluster-ip-range", "10.0.0.0/24",
            "--endpoint-reconciler-type", "none", "--event-ttl", "10m", "--request-timeout", "3m",
            "--feature-gates", "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true",
            "--runtime-config", "scheduling.k8s.io/v1alpha2=true")
        self.http = httpx.Client(base_url=self.url, verify=False, timeout=190, headers={"Authorization": f"Bearer {TOKEN}"})
        harness.eventually(lambda: api.alive() and self.http.get("/readyz").status_code == 200, 120, message=api.log)
        (folder / "kubeconfig").write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))

    def start(self, program, *arguments):
        self.processes.append(harness.Process(self.folder, [program, *arguments]))
        return self.processes[-1]

    def start_scheduler(self):
        port, = harness.free_ports(1)
        return self.start(self.engine("kubernetes") / "kube-scheduler", "--kubeconfig", self.folder / "kubeconfig",
                          "--bind-address", "127.0.0.1", "--secure-port", port, "--leader-elect=false",
                          "--feature-gates", "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true")

    def start_controllers(self, *controllers, **flags):
        port, = harness.free_ports(1)
        return self.start(self.engine("kubernetes") / "kube-controller-manager", "--kubeconfig", self.folder / "kubeconfig",
                          "--bind-address", "127.0.0.1", "--secure-port", port, "--leader-elect=false",
                          "--controllers", ",".join(controllers),
                          *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()))

    def start_kwok(self):
        """Plays the kubelets: pods that are bound become ready, pods that are deleted go."""
        stages = self.engine("definitions") / "kwok-stages"
        chosen = [stages / f"kustomize_stage_{name}.yaml" for name in
                  ("node_fast_node-initialize", "node_heartbeat_node-heartbeat", "pod_fast_pod-ready", "pod_fast_pod-delete")]
        (self.folder / "stages.yaml").write_text("\n---\n".join(path.read_text() for path in chosen))
        return self.start(self.engine("kwok") / "kwok", "--kubeconfig", self.folder / "kubeconfig", "--manage-all-nodes=true",
                          "--config", self.folder / "stages.yaml", "--server-address", f"127.0.0.1:{harness.free_ports(1)[0]}")

    def stop(self):
        for process in reversed(self.processes):
            process.end(10)

    def resource(self, api_version, kind):
        """(path of the group, plural, whether it lives in a namespace), by discovery."""
        if (api_version, kind) not in self.paths:
            root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
            reply = self.http.get(root)
            found = [r for r in reply.json().get("resources", []) if r["kind"] == kind and "/" not in r["name"]]
            if not found:
                raise Refused(f"the API server knows no {kind} of {api_version}")
            self.paths[api_version, kind] = (root, found[0]["name"], found[0]["namespaced"])
        return self.paths[api_version, kind]

    def path(self, manifest, namespace="default"):
        root, plural, namespaced = self.resource(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        middle = f"/namespaces/{metadata.get('namespace', namespace)}" if namespaced else ""
        return f"{root}{middle}/{plural}/{metadata['name']}"

    def apply(self, manifest, dry_run=False, namespace="default", subresource=""):
        """Server-side apply with strict validation of fields."""
        reply = self.http.patch(self.path(manifest, namespace) + subresource, content=json.dumps(manifest), params={
            "fieldManager": "test", "fieldValidation": "Strict", "force": "true", **({"dryRun": "All"} if dry_run else {})},
            headers={"Content-Type": "application/apply-patch+yaml"})
        if reply.status_code >= 300:
            raise Refused(reply.json().get("message", reply.text))
        return reply.json()

    def create(self, manifest, dry_run=False, namespace="default"):
        reply = self.http.post(self.path(manifest, namespace).rsplit("/", 1)[0], json=manifest,
                               params={"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})})
        if reply.status_code >= 300:
            raise Refused(reply.json().get("message", reply.text))
        return reply.json()

    def get(self, path, **parameters):
        reply = self.http.get(path, params=parameters)
        reply.raise_for_status()
        return reply.json()

    def pods(self, namespace, **labels):
        return self.get(f"/api/v1/namespaces/{namespace}/pods",
                        labelSelector=",".join(f"{k}={v}" for k, v in labels.items()))["items"]

    def patch(self, path, body):
        reply = self.http.patch(path, json=body, headers={"Content-Type": "application/merge-patch+json"})
        reply.raise_for_status()
        return reply.json()

    def delete(self, path, **parameters):
        return self.http.delete(path, params=parameters)

    def add_definitions(self, shared, only=""):
        """The custom resources our manifests are made of, or those whose files have `only` in their names (all take minutes on a
        busy machine)."""
        texts = []
        with tarfile.open(shared / "crds/crds.tar.xz") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".yaml") and only in member.name:
                    texts.append(archive.extractfile(member).read().decode())
        for path in sorted((self.engine("definitions")).glob("*/*.yaml")):
            if path.parent.name != "kwok-stages" and only in path.name:
                texts.append(path.read_text())
        names = []
        for text in texts:
            for document in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                if document and document["kind"] == "CustomResourceDefinition":
                    self.create(document)
                    names.append(document["metadata"]["name"])

        def established():
            items = self.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
            return all(any(c["type"] == "Established" and c["status"] == "True" for c in item.get("status", {}).get("conditions") or [])
                       for item in items)

        harness.eventually(established, 60)
        return names
