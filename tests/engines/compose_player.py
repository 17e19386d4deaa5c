# SPDX-License-Identifier: Apache-2.0
"""Runs docker/compose.yaml as one set where there is no Docker: each service in a network of its own that knows the others by
name, with the command, variables, volumes and ports of the file, and started anew as the file says. Of the other settings inferd's
are all kept; of the other services' `read_only` is, `cap_drop` is not.

Played are the images that no registry brings here: inferd's is what image_player makes of docker/Dockerfile.cpu, and in place of
the others stands this host's root with the same program from the engines' cache. The model is the toy one, not one to download.
"""

import contextlib
import signal
import subprocess

import yaml

import harness
import image_player
import pods

FILE = harness.ROOT / "docker/compose.yaml"

# A root over this host's with the volumes in it; $@: "source target" pairs, --, the command.
RUN = r"""
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs scratch "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
root="$scratch/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mount --rbind /dev "$root/dev"
mount -t tmpfs shm "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --bind "$hosts" "$root/etc/hosts"
while [ "$1" != -- ]; do
  mkdir -p "$(dirname "$root$2")"
  touch "$root$2"
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
  shift 2
done
shift
if [ "$read_only" = true ]; then mount -o remount,ro "$root"; fi
cd "$root"
exec chroot "$root" "$@"
"""


class Service(harness.Process):
    """One that is not inferd: `program` in place of the image's entry point or of the first word of the command, with the file's
    variables and those that the program needs here, none of this host's."""

    def __init__(self, folder, name, spec, place, command, environment):
        folder.mkdir(exist_ok=True)
        volumes = []
        for volume in spec.get("volumes", []):
            source, target, mode = volume.split(":")
            assert mode == "ro", volume
            volumes += [str((FILE.parent / source).resolve()), target]
        (folder / "scratch").mkdir(exist_ok=True)
        variables = {"PATH": image_player.PATH, **spec.get("environment", {}), **environment}
        super().__init__(folder, ["nsenter", f"--net=/run/netns/{place[0].hosts[place[1]]}", "--", "unshare", "--mount", "--ipc", "--pid",
                                  "--fork", "--kill-child", "bash", "-c", RUN, name, *volumes, "--", "env", "-i",
                                  *(f"{key}={value}" for key, value in variables.items()), *command], name=name,
                         environment={"scratch": str(folder / "scratch"), "hosts": str(place[0].hosts_file),
                                      "read_only": str(spec.get("read_only", False)).lower()})

    def end(self, seconds=10):
        """SIGTERM to the program itself (`unshare` heeds none), then SIGKILL. The exit status."""
        try:
            harness.signal_inside(self.process, signal.SIGTERM)
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait(10)


class Compose:
    """All services of the file, started in the order in which they depend on one another."""

    def __init__(self, folder, stage, toy, engine):
        self.services = yaml.safe_load(FILE.read_text())["services"]
        self.folder, self.stage, self.toy = folder, stage, toy
        redis, prometheus = engine("redis"), engine("prometheus")
        self.programs = {  # service -> (program, variables); what the image's entry point or the command's first word is there
            "gateway": ([harness.VENV / "envoy"], {}), "prometheus": ([prometheus / "usr/bin/prometheus"], {}),
            "redis": ([redis / "usr/bin/redis-server"], {"LD_LIBRARY_PATH": str(redis / "usr/lib/x86_64-linux-gnu")}),
            "ratelimit": ([engine("ratelimit") / "service_cmd"], {})}
        self.numbers = {name: number for number, name in enumerate(self.services)}
        self.network = pods.make(folder, [[name, *self.aliases(name)] for name in self.services])
        self.running, self.restarts = {}, 0

    def aliases(self, name):
        return ((self.services[name].get("networks") or {}).get("default") or {}).get("aliases", [])

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.network)
            while len(self.running) < len(self.services):
                ready = [name for name, spec in self.services.items()
                         if name not in self.running and set(spec.get("depends_on", [])) <= set(self.running)]
                assert ready, "services that depend on one another in a circle"
                for name in ready:
                    self.running[name] = self.start(name)
                    stack.callback(self.end, name)
            self.ends = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self.ends.__exit__(*error)

    def end(self, name):
        self.running[name].end()  # the one that runs now, not the one of the beginning

    def start(self, name):
        spec, place = self.services[name], (self.network, self.numbers[name])
        command = spec["command"]
        if spec["image"].startswith("inferd:"):
            assert spec["volumes"] == ["models:/models"] and spec["read_only"] and spec["cap_drop"] == ["ALL"] and spec["tmpfs"] == ["/tmp"]
            command = [f"--model=/models/{self.toy.name}" if word.startswith("--model=") else word for word in command]
            return image_player.Container(self.stage, self.folder / name, self.toy, [*command, "--threads=1", f"--kv-cache-bytes={64 << 20}"],
                                          shm=spec["shm_size"].removesuffix("b"), place=place)
        program, environment = self.programs[name]
        # An image's entry point takes flags; a command that names a program has it instead.
        words = command if command[0].startswith("-") else command[1:]
        return Service(self.folder / name, name, spec, place, [*program, *words], environment)

    def tend(self):
        """What `restart: unless-stopped` does: starts again what ended by itself, such as who came before whom it needs."""
        for name, service in self.running.items():
            if isinstance(service, Service) and not service.alive() and self.restarts < 20:
                assert self.services[name]["restart"] == "unless-stopped", service.log()
                self.restarts += 1
                self.running[name] = self.start(name)

    def inside(self, name):
        """A context in which the calling thread connects as from inside the service."""
        return self.network.inside(self.numbers[name])

    def published(self, name):
        """Host and port of a service's first port, as they are on a host with Docker, and here inside the service."""
        host, outside, within = self.services[name]["ports"][0].split(":")
        assert outside == within
        return f"http://{host}:{outside}"

    def stop(self, name):
        """SIGTERM, then the grace that the file gives. The exit status."""
        service = self.running[name]
        grace = int(self.services[name].get("stop_grace_period", "10s").removesuffix("s"))
        harness.signal_inside(service.process, signal.SIGTERM)
        return service.process.wait(grace)
