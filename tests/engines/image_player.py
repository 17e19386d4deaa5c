# SPDX-License-Identifier: Apache-2.0
"""Carries out Dockerfiles where there is no container engine: every step in a clean root of Debian, by overlayfs, chroot and
namespaces. Needs root. What a step leaves is kept in the cache under a hash of all that went into it, for a month.

Two things are played: the base image of Debian is what debootstrap makes, and that of Rust is the same with this host's own
toolchain. The step that compiles inferd is left out unless `whole` is asked for; this host's release build stands in for it.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

from dockerfile_parse import DockerfileParser

import harness

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLCHAIN = "/usr/local/rustup/toolchain"
LAYERS = harness.CACHE / "images"
# What a site sets up for its Docker daemon and its builds: the way to the network and the authorities it trusts.
SITE = [name for proxy in ("http_proxy", "https_proxy", "no_proxy") for name in (proxy, proxy.upper())]
CERTIFICATES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "PIP_CERT", "CARGO_HTTP_CAINFO")

# A private /proc and /dev over the mounted root. $1: the root.
FURNISH = r"""
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom tty; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
ln -s /proc/self/fd "$root/dev/fd"
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o "mode=1777,size=$shm" shm "$root/dev/shm"
"""
BEGIN = r"""
set -euo pipefail
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
""" + FURNISH
BUILD = BEGIN + r"""
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done
shift
exec chroot "$root" "$@"
"""
RUN = BEGIN + r"""
mount --bind "$volume" "$root/models"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
if [ -n "${hosts:-}" ]; then touch "$root/etc/hosts"; mount --bind "$hosts" "$root/etc/hosts"; fi
mount -o remount,ro "$root"
ip link set lo up
exec chroot "$root" "$@"
"""


class Unavailable(Exception):
    """This host cannot play images; the message says why."""


def check_host():
    if os.geteuid() != 0:
        raise Unavailable("playing an image takes root")
    for program in ("unshare", "nsenter", "setpriv", "chroot", "ip"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is missing")
    LAYERS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LAYERS) as folder:
        for name in ("lower", "upper", "work", "root"):
            (pathlib.Path(folder) / name).mkdir()
        mount = f"cd {folder} && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root"
        done = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise Unavailable("no overlayfs in a mount namespace: " + done.stderr.strip())


class Stage:
    def __init__(self, name, image):
        self.name, self.image, self.key = name, image, ""
        self.layers, self.binds, self.steps = [], [], []
        self.environment, self.workdir, self.user = {"PATH": PATH}, "/", ""
        self.settings = {}  # CMD, ENTRYPOINT, HEALTHCHECK as written
        self.left_out = False  # the program was not compiled here

    def find(self, path):
        """The file of this path in the top layer that has it, or None."""
        found = (layer / path.lstrip("/") for layer in reversed(self.layers))
        return next((file for file in found if file.is_file()), None)

    def size(self):
        """Bytes over the base image."""
        return sum(path.lstat().st_size for layer in self.layers[1:] for path in layer.rglob("*") if path.is_file())


class Player:
    """play(dockerfile): its stages by name, the last also as `final`."""

    def __init__(self, debian, program, whole=False):
        self.debian, self.program, self.whole = debian, program, whole
        self.month = datetime.date.today().strftime("%Y-%m")
        for layer in LAYERS.iterdir():  # those that nobody used for a while
            if time.time() - layer.stat().st_mtime > 4 * 86400:
                shutil.rmtree(layer, ignore_errors=True)

    def play(self, dockerfile):
        parser = DockerfileParser(fileobj=open(dockerfile, "rb"))
        stages, stage = {}, None
        for each in parser.structure:
            name, value = each["instruction"], each["value"]
            if name == "FROM":
                image, _, alias = value.partition(" AS ")
                stage = stages[alias or "final"] = self._base(alias or "final", image)
            elif name == "RUN" and not stage.left_out:
                self._run(stage, value)
            elif name == "COPY":
                self._copy(stage, stages, shlex.split(value))
            elif name == "ENV":
                stage.environment.update(part.split("=", 1) for part in shlex.split(value))
            elif name == "WORKDIR":
                stage.workdir = value
            elif name == "USER":
                stage.user = value
            elif name in ("CMD", "ENTRYPOINT", "HEALTHCHECK"):
                stage.settings[name] = value
            elif name not in ("COMMENT", "EXPOSE", "RUN"):
                raise AssertionError(f"{dockerfile.name}: the player does not know {name}")
        return stages

    def _base(self, name, image):
        stage = Stage(name, image)
        stage.layers.append(self.debian / "root")
        stage.key = (self.debian / "recipe").read_text()
        if image.startswith("rust:"):
            self._run(stage, "apt-get update && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev"
                             " && rm -rf /var/lib/apt/lists/*")
            toolchain = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
            stage.binds.append((os.path.realpath(toolchain), TOOLCHAIN))
            stage.environment["PATH"] = f"{TOOLCHAIN}/bin:{PATH}"
            stage.environment["CARGO_HOME"] = "/usr/local/cargo"
        else:
            assert image == "debian:12-slim", image
        return stage

    def _site(self):
        """What this host's way to the network is; not part of an image."""
        found = {name: os.environ[name] for name in SITE if name in os.environ}
        binds = []
        if bundle := next((os.environ[name] for name in CERTIFICATES if os.path.isfile(os.environ.get(name, ""))), None):
            found.update({name: "/run/site/ca.crt" for name in CERTIFICATES})
            folder = LAYERS / "site"
            folder.mkdir(exist_ok=True)
            shutil.copy(bundle, folder / "ca.crt")
            binds.append((folder, "/run/site"))
        return found, binds

    def _keep(self, stage, key, make):
        """The layer under this key, made if it is not there."""
        stage.key = key
        layer = LAYERS / key
        if not layer.exists():
            with tempfile.TemporaryDirectory(prefix="step-", dir=LAYERS, ignore_cleanup_errors=True) as scratch:
                made = make(pathlib.Path(scratch))
                if not layer.exists():
                    made.rename(layer)
        os.utime(layer)
        stage.layers.append(layer)

    def _key(self, stage, *parts):
        return hashlib.sha256(json.dumps([self.month, stage.key, stage.environment, stage.workdir, stage.user, *parts]).encode()).hexdigest()[:32]

    def _run(self, stage, value):
        if "cmake --build" in value and not self.whole:
            stage.left_out = True
            return
        started = time.monotonic()
        self._keep(stage, self._key(stage, "RUN", value), lambda scratch: self._make(stage, value, scratch))
        stage.steps.append((value, time.monotonic() - started))

    def _make(self, stage, value, scratch):
        binds = list(stage.binds)
        while mount := re.match(r"--mount=type=cache,target=(\S+)\s+", value):
            value = value[mount.end():]
            binds += self._cache_mount(mount[1])
        site, more = self._site()
        environment = {"HOME": "/root", **site, **stage.environment}
        command = ["/usr/bin/env", "-i", "-C", stage.workdir, *(f"{k}={v}" for k, v in environment.items()), "/bin/sh", "-ec", value]
        for name in ("upper", "work", "root"):
            (scratch / name).mkdir()
        (scratch / "upper" / stage.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", BUILD, "step",
             *(str(part) for pair in binds + more for part in pair), "--", *command],
            env={"PATH": PATH, "lower": ":".join(str(layer) for layer in reversed(stage.layers)), "scratch": str(scratch),
                 "root": str(scratch / "root"), "shm": "1g"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=7200 if self.whole else 900)
        if done.returncode != 0 and re.search("Temporary failure resolving|Could not resolve|Name or service not known", done.stdout + done.stderr):
            raise Unavailable(f"no way to the network for RUN {value[:60]}")
        assert done.returncode == 0, f"RUN {value}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return scratch / "upper"

    def _cache_mount(self, target):
        """The folder that a builder would keep; in it this host's compiler cache and toolkit, where it has them."""
        folder = LAYERS.parent / "images-mounts" / hashlib.sha256(target.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        binds = [(folder, target)]
        for name in ("ccache", "cuda-13.0"):
            if (harness.CACHE / name).is_dir():
                binds.append((harness.CACHE / name, f"{target}/{name}"))
        return binds

    def _copy(self, stage, stages, words):
        origin = None
        if words[0].startswith("--from="):
            origin = stages[words.pop(0).removeprefix("--from=")]
        *sources, target = words
        files = {}  # path in the root -> file here
        for source in sources:
            if origin is None:
                found = context_files()
                if source in found:
                    assert target.endswith("/"), f"COPY {source} {target}: the player wants a folder"
                    inside = {pathlib.PurePosixPath(source).name: harness.ROOT / source}
                else:
                    assert source == ".", f"COPY {source}: not in the context"
                    inside = {name: harness.ROOT / name for name in found}
            else:
                here = origin.find(source) or (self.program if origin.left_out and source.endswith("/inferd") else None)
                assert here, f"stage {origin.name} has no {source}"
                inside = {pathlib.PurePosixPath(source).name: here}
                if not target.endswith("/"):
                    inside = {pathlib.PurePosixPath(target).name: here}
                    target = str(pathlib.PurePosixPath(target).parent)
            for name, here in inside.items():
                files[os.path.normpath(os.path.join("/", stage.workdir, target, name))] = here
        contents = sorted((path, oct(here.stat().st_mode), hashlib.sha256(here.read_bytes()).hexdigest()) for path, here in files.items())

        def make(scratch):
            for path, here in files.items():
                place = scratch / "upper" / path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, place)
            return scratch / "upper"

        self._keep(stage, self._key(stage, "COPY", contents), make)


def context_files():
    """What `docker build .` would see of this checkout: what git knows, less what .dockerignore names."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=harness.ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\0")
    ignored = [line for line in (harness.ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    top = {line for line in ignored if "/" not in line}
    anywhere = {line.removeprefix("**/") for line in ignored if line.startswith("**/")}
    assert len(top) + len(anywhere) == len(ignored) and not any("*" in name for name in top | anywhere), ignored
    return [name for name in listed if name and not name.endswith("/") and (harness.ROOT / name).is_file()
            and name.split("/")[0] not in top and not set(name.split("/")) & anywhere]


class Container:
    """The last stage running as its image says: its user, no capabilities, a read-only root, its own network and processes."""

    def __init__(self, stage, folder, model, arguments, shm="64m", place=None):
        """`model`: a folder that stands as /models/NAME in the volume. `place`: (Pods, number) in place of a network of its own."""
        self.stage = stage
        for name in ("scratch/upper", "scratch/work", "root"):
            (folder / name).mkdir(parents=True)
        shutil.copytree(model, folder / "models" / model.name)
        identity, _, group = stage.user.partition(":")
        self.identity = int(identity)
        for path in (folder / "models", *(folder / "models").rglob("*")):
            os.chown(path, self.identity, int(group))
        self.wrap = ["setpriv", "--reuid", identity, "--regid", group, "--clear-groups", "--no-new-privs", "--bounding-set=-all",
                     "--inh-caps=-all", "env", "-i", "HOME=/", *(f"{k}={v}" for k, v in stage.environment.items())]
        self.log_path = folder / "log"
        network = ["--net"] if place is None else []
        within = [] if place is None else ["nsenter", f"--net=/run/netns/{place[0].hosts[place[1]]}", "--"]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*within, "unshare", "--mount", "--pid", *network, "--ipc", "--uts", "--fork", "--kill-child", "bash", "-c", RUN, "container",
                 *self.wrap, *json.loads(stage.settings["ENTRYPOINT"]), *(str(argument) for argument in arguments)],
                env={"PATH": PATH, "lower": ":".join(str(layer) for layer in reversed(stage.layers)), "scratch": str(folder / "scratch"),
                     "root": str(folder / "root"), "shm": shm, "volume": str(folder / "models"),
                     **({} if place is None else {"hosts": str(place[0].hosts_file)})},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def pid(self):
        """Of process 1 inside, as this host numbers it."""
        pid = harness.pid_inside(self.process)
        assert pid, self.log()
        return pid

    def ask(self, *command, wrap=True):
        """A command inside, as `docker exec`."""
        return subprocess.run(["nsenter", "--target", str(self.pid()), "--mount", "--pid", "--net", "--root", "--wd", "--",
                               *(self.wrap if wrap else []), *command], capture_output=True, text=True, timeout=60)

    def healthy(self):
        words = self.stage.settings["HEALTHCHECK"].split(" CMD ", 1)[1]
        return self.ask(*json.loads(words)).returncode == 0

    def end(self):
        # The death of `unshare` would not do: with its change of user the child has lost the signal for that.
        harness.signal_inside(self.process, signal.SIGKILL)
        self.process.wait(10)
