# SPDX-License-Identifier: Apache-2.0
"""Starts an engine's HTTP server, waits until it answers, measures it, ends it. One class: engines differ in a command and a path."""
import contextlib
import http.client
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

READY_S = 600
END_S = 30


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def children(pid):
    """pid and all its descendants."""
    found, todo = [], [pid]
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents.setdefault(int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    while todo:
        process = todo.pop()
        found.append(process)
        todo += parents.get(process, [])
    return found


def memory_mib(pid):
    """Proportional set size of a process tree: pages shared within it count once."""
    total = 0
    for process in children(pid):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


class Server:
    """A context manager; `start_s` is from exec to the first answer of /health."""

    def __init__(self, command, model, environment=None):
        self.port = free_port()
        self.model = model
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [str(word).replace("{port}", str(self.port)) for word in command]
        self.shown = " ".join(os.path.basename(str(word)) for word in command).replace("{port}", "8000")  # without the folders of files
        self._process = None
        self._environment = {**os.environ, **(environment or {})}
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)

    def __enter__(self):
        begin = time.perf_counter()
        try:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT,
                                             stdin=subprocess.DEVNULL, start_new_session=True)
            while not self._healthy():
                if not self.is_running() or time.perf_counter() - begin > READY_S:
                    raise RuntimeError(f"{self._command[0]} did not become ready:\n{pathlib.Path(self._log.name).read_text()[-2000:]}")
                time.sleep(0.02)
        except BaseException:  # an interruption too: nobody else ends what has no context yet
            self.__exit__()
            raise
        self.start_s = time.perf_counter() - begin
        return self

    def _healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def is_running(self):
        return self._process is not None and self._process.poll() is None

    def memory_mib(self):
        return memory_mib(self._process.pid)

    def _tell_all(self, number):
        """A signal to the server and its children, of which none may be left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def pause(self):
        """Takes no CPU until resume()."""
        self._tell_all(signal.SIGSTOP)

    def resume(self):
        self._tell_all(signal.SIGCONT)

    def __exit__(self, *_):
        """May be called again, and does nothing then: the group's number may be another's by now."""
        if self._log.closed:
            return
        self._log.close()
        pathlib.Path(self._log.name).unlink(missing_ok=True)
        if self._process is not None:
            self.resume()  # a stopped process does not hear SIGTERM
            if self.is_running():
                self._process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_S)
            self._tell_all(signal.SIGKILL)  # children outlive a server that died
            self._process.wait(END_S)


def inferd(binary, model, threads):
    return Server([binary, "serve", "--model", model, "--served-model-name", "m", "--port", "{port}", "--threads", threads,
                   "--max-model-len", "4096", "--max-num-seqs", "16", "--log-level", "warning", "--no-access-log"], "m")


def llama(binaries, model, threads):
    return Server([binaries / "llama-server", "-m", model, "--alias", "m", "--host", "127.0.0.1", "--port", "{port}", "-t", threads,
                   "-np", "16", "-c", "65536"], "m")


def vllm(python, folder, threads):
    libraries = [*python.parents[1].glob("lib/libiomp5.so"), *pathlib.Path("/usr/lib/x86_64-linux-gnu").glob("libtcmalloc_minimal.so.4")]
    return Server([python.with_name("vllm"), "serve", folder, "--served-model-name", "m", "--host", "127.0.0.1", "--port", "{port}",
                   "--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "16"], "m",
                  {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "VLLM_NO_USAGE_STATS": "1",
                   "LD_PRELOAD": ":".join(str(library) for library in libraries)})
