# SPDX-License-Identifier: Apache-2.0
"""Plays a kubelet for one container: mounts, variables, startup, readiness and liveness probes, preStop, SIGTERM, grace.

Follows the kubelet's rules: a probe that has not answered in timeoutSeconds has failed, readiness and liveness begin when
startup has succeeded, liveness ends with the deletion, grace counts from the deletion and includes preStop.
"""

import contextlib
import re
import signal
import subprocess
import threading
import time

import httpx

import harness


class Kubelet:
    def __init__(self, folder, binary, pod, container, mounts, port=None, fields=None, variables=None, flags=(), name="pod", place=None):
        """`mounts`: path in the container -> path here; `port`: a free one in place of the container's own. `place`: (Pods,
        number), the network of its own in which the container keeps its port and addresses."""
        self.pod, self.container, self.mounts, self.place = pod, container, mounts, place
        own = next((p["containerPort"] for p in container.get("ports", [])), None)
        port = own if port is None else port
        self.port_names = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
        self.ports = {own: port}
        self.environment = dict(variables or {})
        for entry in container.get("env", []):
            reference = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            self.environment[entry["name"]] = (fields or {})[reference] if reference else self.expand(entry.get("value", ""))
        assert container["command"] == ["/usr/local/bin/inferd"]
        args = [self.local(self.expand(argument)) for argument in container["args"]]
        args = [f"--port={port}" if argument == f"--port={own}" else argument for argument in args]
        if own is not None and f"--port={port}" not in args:
            args.append(f"--port={port}")
        if place is None:
            args = ["--host=127.0.0.1" if argument == "--host=0.0.0.0" else argument for argument in args]
        command = [binary, *args, *flags]
        self.process = harness.Process(folder, command if place is None else place[0].command(place[1], command), name=name,
                                       environment=self.environment)
        self.failures, self.counts, self.deleted = [], {}, threading.Event()
        self.threads = []

    def expand(self, text):
        return re.sub(r"\$\((\w+)\)", lambda match: self.environment.get(match[1], match[0]), text)

    def local(self, text):
        for there, here in sorted(self.mounts.items(), reverse=True):
            text = re.sub(rf"(^|=){re.escape(there)}(?=/|$)", lambda match: match[1] + str(here), text)
        return text

    def network(self):
        """A context in which the calling thread's connections are the container's own."""
        return contextlib.nullcontext() if self.place is None else self.place[0].inside(self.place[1])

    def url(self, get):
        port = self.port_names.get(get["port"], get["port"])
        return f"{get.get('scheme', 'HTTP').lower()}://127.0.0.1:{self.ports[port]}{get['path']}"

    def probe(self, kind):
        """None, or what went wrong."""
        probe = self.container[kind]
        begun = time.monotonic()
        try:
            if "exec" in probe:
                command = [self.local(part).replace(":8000/", f":{self.ports[8000]}/") for part in probe["exec"]["command"]]
                with self.network():
                    done = subprocess.run(command, capture_output=True, timeout=probe.get("timeoutSeconds", 1),
                                          env={"PATH": "/usr/bin:/bin", **self.environment})
                return None if done.returncode == 0 else f"{kind}: {done.stderr}"
            with self.network(), httpx.Client(verify=False, timeout=probe.get("timeoutSeconds", 1)) as client:
                status = client.get(self.url(probe["httpGet"])).status_code
            return None if 200 <= status < 400 else f"{kind}: {status}"
        except (httpx.HTTPError, subprocess.TimeoutExpired) as error:
            return f"{kind}: {error!r} after {time.monotonic() - begun:.2f} s"

    def start(self):
        """Until the startup probe has succeeded and the readiness probe too; then both are watched."""
        probe = self.container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            assert self.process.alive(), self.process.log()
            if self.probe("startupProbe") is None:
                break
            time.sleep(min(probe["periodSeconds"], 0.5))  # sooner than a kubelet, for the test's time
        else:
            raise AssertionError("the startup probe never succeeded\n" + self.process.log())
        harness.eventually(lambda: self.probe("readinessProbe") is None, 30, message=self.process.log)
        for kind in ("readinessProbe", "livenessProbe"):
            self.threads.append(threading.Thread(target=self.watch, args=(kind,)))
            self.threads[-1].start()
        return self

    def watch(self, kind):
        period = min(self.container[kind]["periodSeconds"], 2)
        while not self.deleted.wait(period):
            problem = self.probe(kind)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if problem is not None and not self.deleted.is_set():
                self.failures.append(problem)

    def delete(self):
        """The exit status; grace that runs out kills, as -9."""
        deadline = time.monotonic() + self.pod.get("terminationGracePeriodSeconds", 30)
        self.deleted.set()
        for thread in self.threads:
            thread.join()
        hook = self.container.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            time.sleep(hook["sleep"]["seconds"])
        if not self.process.alive():
            return self.process.process.returncode
        self.process.signal(signal.SIGTERM)
        try:
            return self.process.process.wait(max(deadline - time.monotonic(), 2))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -9

    def stop(self):
        self.deleted.set()
        self.process.kill()
