# SPDX-License-Identifier: Apache-2.0
"""inferd under Ray Serve: each replica runs the daemon on a free port and passes requests through.

A replica is ready only when its model is loaded, reports the daemon's own queue and KV use for autoscaling, is replaced
when the daemon dies, and ends the daemon with SIGTERM so that what runs may finish. serve_config.yaml shows the settings.
Needs `ray[serve]` and the `inferd` binary on each node; no vLLM.
"""

import asyncio
import collections
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import aiohttp
import starlette.requests
import starlette.responses
from ray import serve

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
START_SECONDS = 3600


class QueueAndKvPolicy:
    """How many replicas are wanted: enough that each has at most `requests_per_replica` that run or wait and `kv_use` of its
    KV cache in use. Ray applies the delays and bounds of autoscaling_config to the answer."""

    def __init__(self, requests_per_replica=16, kv_use=0.8):
        self.requests_per_replica = requests_per_replica
        self.kv_use = kv_use

    def __call__(self, context):
        metrics = context.aggregated_metrics or {}

        def values(name):
            return list(metrics.get(name, {}).values())

        # What the daemons have, or with what still waits before them.
        requests = max(sum(values("running")) + sum(values("waiting")), context.total_num_requests)
        kv = values("kv_use")
        wanted = max(requests / self.requests_per_replica,
                     context.current_num_replicas * (sum(kv) / len(kv)) / self.kv_use if kv else 0.0)
        return max(wanted, context.capacity_adjusted_min_replicas), {}


@serve.deployment(max_ongoing_requests=64, max_queued_requests=128)
class Inferd:
    async def __init__(self, model, served_model_name=None, flags=(), binary=None, drain_seconds=30):
        binary = binary or os.environ.get("INFERD_BINARY") or shutil.which("inferd")
        if binary is None:
            raise RuntimeError("no inferd binary: put it on the PATH or give the argument `binary`")
        self.drain_seconds = drain_seconds
        self.folder = tempfile.TemporaryDirectory(prefix="inferd-")
        port_file = os.path.join(self.folder.name, "port")
        command = [binary, "serve", "--model", model, "--host", "127.0.0.1", "--port", "0", "--port-file", port_file,
                   "--grpc-port", "none", "--shutdown-timeout", str(drain_seconds), *map(str, flags)]
        if served_model_name:
            command += ["--served-model-name", served_model_name]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERD_")}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env=environment)
        self.last_lines = collections.deque(maxlen=20)
        threading.Thread(target=self._read_log, daemon=True).start()
        # No limits here: Ray's max_ongoing_requests and the daemon's queue are the limits.
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False,
                                             timeout=aiohttp.ClientTimeout(total=None, sock_connect=5))
        self.url = None
        deadline = time.monotonic() + START_SECONDS
        while not await self._ready(port_file):
            if self.process.poll() is not None:
                raise RuntimeError(f"inferd ended with {self.process.returncode}: " + "\n".join(self.last_lines))
            if time.monotonic() > deadline:
                raise RuntimeError(f"inferd was not ready after {START_SECONDS} s: " + "\n".join(self.last_lines))
            await asyncio.sleep(0.1)

    def _read_log(self):
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.last_lines.append(text)
            print(text, flush=True)  # into the replica's log

    async def _ready(self, port_file):
        if self.url is None:
            if not os.path.exists(port_file):
                return False
            with open(port_file) as file:
                self.url = f"http://127.0.0.1:{int(file.read())}"
        try:
            async with self.session.get(self.url + "/readyz", timeout=aiohttp.ClientTimeout(total=5)) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    async def check_health(self):
        """Raises when the daemon is gone or stuck; after three times Ray replaces the replica."""
        if self.process.poll() is not None:
            raise RuntimeError(f"inferd ended with {self.process.returncode}: " + "\n".join(self.last_lines))
        async with self.session.get(self.url + "/livez", timeout=aiohttp.ClientTimeout(total=5)) as reply:
            if reply.status != 200:
                raise RuntimeError(f"/livez: {reply.status}")

    async def record_autoscaling_stats(self):
        async with self.session.get(self.url + "/load", timeout=aiohttp.ClientTimeout(total=5)) as reply:
            load = await reply.json()
        return {"running": float(load["running"]), "waiting": float(load["waiting"]),
                "kv_use": load["kv_pages_used"] / max(load["kv_pages_total"], 1)}

    async def __call__(self, request: starlette.requests.Request):
        prefix = request.scope.get("root_path", "")
        path = request.scope["path"]
        path = path[len(prefix):] if prefix and path.startswith(prefix) else path
        url = self.url + path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP]
        try:
            reply = await self.session.request(request.method, url, headers=headers, data=await request.body() or None)
        except aiohttp.ClientError as error:
            return starlette.responses.JSONResponse(
                {"error": {"message": f"The engine of this replica is gone: {error}", "type": "server_error", "param": None,
                           "code": "unavailable"}}, status_code=503, headers={"Retry-After": "2"})
        kept = {k: v for k, v in reply.headers.items() if k.lower() not in HOP_BY_HOP}
        if not reply.headers.get("Content-Type", "").startswith("text/event-stream"):
            async with reply:
                return starlette.responses.Response(await reply.read(), status_code=reply.status, headers=kept)

        async def events():
            # A client that leaves closes this generator, which closes the connection, which ends the generation.
            async with reply:
                async for chunk in reply.content.iter_any():
                    yield chunk

        return starlette.responses.StreamingResponse(events(), status_code=reply.status, headers=kept)

    def __del__(self):
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.drain_seconds + 5)
            except subprocess.TimeoutExpired:
                process.kill()


def app(args):
    """For `import_path: inferd_serve:app` with `args: {model: ..., served_model_name: ..., flags: [...]}`."""
    return Inferd.bind(**args)
