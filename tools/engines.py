#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the real engines that tests/engines runs against, into the per-user cache; `./dev engines` calls it.

Debian packages are unpacked, not installed: no root, no service started. Go programs are built from the module proxy.
`engines.py fetch [NAME ...]` makes what is missing; `engines.py missing [NAME ...]` prints it and builds nothing.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

KUBERNETES = "v1.36.3"
DEBIAN = {  # engine -> (packages to unpack, a file that must be there afterwards)
    "nginx": (["nginx"], "usr/sbin/nginx"),
    "prometheus": (["prometheus"], "usr/bin/prometheus"),
    "etcd": (["etcd-server"], "usr/bin/etcd"),
    "redis": (["redis-server", "redis-tools", "liblua5.1-0", "liblzf1", "lua-cjson", "lua-bitop", "libjemalloc2"],
              "usr/bin/redis-check-rdb"),
}
BOOKWORM = ["main", "bookworm", "bookworm-updates", "bookworm-security"]  # component and suites of the root for images
GO = {  # engine -> (package, version)
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
    "kwok": ("sigs.k8s.io/kwok/cmd/kwok", "v0.8.0"),
    "ratelimit": ("github.com/envoyproxy/ratelimit/src/service_cmd", "v1.4.1-0.20260122083618-3fb702589d36"),
}
MODULE_FILES = {  # folder in the cache -> (module, version, globs): custom resource definitions shipped inside Go modules
    "keda": ("github.com/kedacore/keda/v2", "v2.21.0", ["config/crd/bases/*.yaml"]),
    "gateway-api": ("sigs.k8s.io/gateway-api", "v1.6.0", ["config/crd/standard/gateway.networking.k8s.io_*.yaml"]),
    "kwok-stages": ("sigs.k8s.io/kwok", "v0.8.0", ["kustomize/stage/*/*/*.yaml"]),
    "prometheus-operator": ("github.com/prometheus-operator/prometheus-operator", "v0.85.0",
                            ["example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
                             "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"]),
}


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, stdin=subprocess.DEVNULL, **options)


def go_environment(scratch):
    """Caches of our own, gigabytes large, shared by the engines and removed when all are made."""
    caches = scratch.parent.parent / "go-caches"
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -modcacherw", "GOTOOLCHAIN": "local",
            "GOMODCACHE": str(caches / "mod"), "GOCACHE": str(caches / "build")}


def debian(name, folder, scratch):
    packages, program = DEBIAN[name]
    run("apt-get", "download", "-qq", *packages, cwd=scratch)
    for package in scratch.glob("*.deb"):
        run("dpkg-deb", "-x", package, folder)
    if not (folder / program).exists():
        sys.exit(f"engines: {packages[0]} brought no {program}")


def bookworm(_, folder, scratch):
    """A root of Debian 12, as its container image has it, for tests/engines/test_images.py."""
    run("apt-get", "download", "-qq", "debootstrap", cwd=scratch)
    for package in scratch.glob("*.deb"):
        run("dpkg-deb", "-x", package, scratch / "unpacked")
    component, suite, updates, security = BOOKWORM
    run(scratch / "unpacked/usr/sbin/debootstrap", "--variant=minbase", f"--components={component}", suite, folder / "root",
        "http://deb.debian.org/debian", env={**os.environ, "DEBOOTSTRAP_DIR": str(scratch / "unpacked/usr/share/debootstrap")},
        stdout=subprocess.DEVNULL)
    (folder / "root/etc/apt/sources.list").write_text(
        "".join(f"deb http://deb.debian.org/debian {name} {component}\n" for name in (suite, updates))
        + f"deb http://deb.debian.org/debian-security {security} {component}\n")
    for cached in [*(folder / "root/var/cache/apt/archives").glob("*.deb"), *(folder / "root/var/lib/apt/lists").glob("*_*")]:
        cached.unlink()
    # What the container images set: apt keeps nothing but its lists, dpkg does not flush.
    (folder / "root/etc/apt/apt.conf.d/docker").write_text(
        'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\nDir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n')
    (folder / "root/etc/dpkg/dpkg.cfg.d/docker").write_text("force-unsafe-io\n")


def go_install(name, folder, scratch):
    package, version = GO[name]
    run("go", "install", "-trimpath", "-ldflags=-s -w", f"{package}@{version}",
        env={**go_environment(scratch), "GOBIN": str(folder), "GOFLAGS": "-modcacherw"}, cwd=scratch)


def kubernetes(_, folder, scratch):
    """Three programs of one module whose staging modules must be named again (`go install` refuses its replaces)."""
    environment = go_environment(scratch)
    facts = json.loads(subprocess.run(["go", "mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}"], check=True,
                                      capture_output=True, text=True, env=environment, cwd=scratch).stdout)
    described = json.loads(subprocess.run(["go", "mod", "edit", "-json", facts["GoMod"]], check=True,
                                          capture_output=True, text=True, env=environment, cwd=scratch).stdout)
    staging = "v0" + KUBERNETES[2:]
    replaces = [f"\t{r['Old']['Path']} => {r['Old']['Path']} {staging}" for r in described.get("Replace", [])
                if r["New"]["Path"].startswith("./staging")]
    module = scratch / "module"
    module.mkdir()
    (module / "go.mod").write_text("module engines\n\ngo 1.26.0\n\ngodebug default=go1.26\n\n"
                                   f"require k8s.io/kubernetes {KUBERNETES}\n\nreplace (\n" + "\n".join(replaces) + "\n)\n")
    programs = ["kube-apiserver", "kube-scheduler", "kube-controller-manager"]
    imports = "".join(f'\t_ "k8s.io/kubernetes/cmd/{program}"\n' for program in programs)
    (module / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\nimport (\n{imports})\n")
    run("go", "mod", "tidy", "-e", env=environment, cwd=module, stderr=subprocess.DEVNULL)
    major, minor = KUBERNETES[1:].split(".")[:2]
    flags = " ".join(["-s -w"] + [f"-X {package}.{variable}={value}"
                                  for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
                                  for variable, value in (("gitVersion", KUBERNETES), ("gitMajor", major), ("gitMinor", minor))])
    for program in programs:
        run("go", "build", "-p", "2", "-trimpath", "-ldflags", flags, "-o", folder / program,
            f"k8s.io/kubernetes/cmd/{program}", env=environment, cwd=module)


def definitions(_, folder, scratch):
    environment = go_environment(scratch)
    for target, (module, version, globs) in MODULE_FILES.items():
        facts = json.loads(subprocess.run(["go", "mod", "download", "-json", f"{module}@{version}"], check=True,
                                          capture_output=True, text=True, env=environment, cwd=scratch).stdout)
        files = [path for pattern in globs for path in pathlib.Path(facts["Dir"]).glob(pattern)]
        if not files:
            sys.exit(f"engines: {module}@{version} has no file like {globs}")
        (folder / target).mkdir()
        for path in files:
            (folder / target / path.relative_to(facts["Dir"]).as_posix().replace("/", "_")).write_bytes(path.read_bytes())


MAKERS = {**{name: debian for name in DEBIAN}, **{name: go_install for name in GO},
          "bookworm": bookworm, "definitions": definitions, "kubernetes": kubernetes}


def recipe(name):
    """What the cached copy was made from; a change of it makes the engine anew."""
    return json.dumps({**{n: d for n, d in DEBIAN.items()}, **{n: g for n, g in GO.items()},
                       "bookworm": BOOKWORM, "definitions": MODULE_FILES, "kubernetes": KUBERNETES}[name])


def present(cache, name):
    stamp = cache / name / "recipe"
    return stamp.exists() and stamp.read_text() == recipe(name)


def fetch(cache, name):
    print(f"engines: making {name}", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=cache) as scratch:
        folder = pathlib.Path(scratch) / "result"
        folder.mkdir()
        work = pathlib.Path(scratch) / "work"
        work.mkdir()
        work.chmod(0o755)
        MAKERS[name](name, folder, work)
        (folder / "recipe").write_text(recipe(name))
        shutil.rmtree(cache / name, ignore_errors=True)
        folder.rename(cache / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["fetch", "missing"])
    parser.add_argument("names", nargs="*", choices=[[], *MAKERS], default=[])
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    arguments = parser.parse_intermixed_args()
    missing = [name for name in arguments.names or MAKERS if not present(arguments.cache, name)]
    if arguments.command == "missing":
        print(" ".join(missing))
        return
    for name in missing:
        fetch(arguments.cache, name)
    if not [name for name in MAKERS if not present(arguments.cache, name)]:
        shutil.rmtree(arguments.cache / "go-caches", ignore_errors=True)


if __name__ == "__main__":
    main()
