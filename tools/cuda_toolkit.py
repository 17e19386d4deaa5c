#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the folder of a CUDA toolkit of at least 12.8: an installed one, else one put together from PyPI wheels.

The wheels (tools/cuda-requirements.txt, pinned and hashed, about 110 MB) come through pip's configured index into
CACHE/cuda-13.0; nothing is compiled or run. Licences stay beside the files.
"""
import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "cuda-requirements.txt"
LEAST = (12, 8)


def installed():
    """The folder of an installed toolkit that is new enough, else None."""
    for nvcc in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if nvcc is None or not os.access(nvcc, os.X_OK):
            continue
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"release (\d+)\.(\d+)", text)
        if found and (int(found[1]), int(found[2])) >= LEAST:
            return pathlib.Path(nvcc).resolve().parents[1]
    return None


def collect(site, root):
    """Makes the unpacked wheels look like an installed toolkit."""
    licences = root / "licenses"
    licences.mkdir(exist_ok=True)
    for info in site.glob("*.dist-info"):
        for file in info.rglob("*"):
            if file.is_file() and file.name.lower().startswith("licen"):
                shutil.copy(file, licences / f"{info.stem}.txt")
    (root / "lib64").symlink_to("lib")
    for library in (root / "lib").glob("lib*.so.*"):
        plain = library.with_name(library.name.split(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    for folder in (root / "bin", root / "nvvm/bin"):
        for file in folder.iterdir():
            file.chmod(0o755)


def cached(cache):
    """The folder of the fetched toolkit if it is the pinned one, else None."""
    target = cache / "cuda-13.0"
    stamp = target / "requirements.txt"
    return target if stamp.is_file() and stamp.read_text() == REQUIREMENTS.read_text() else None


def fetch(cache):
    if platform.machine() != "x86_64":
        sys.exit("cuda_toolkit.py: wheels are fetched for x86_64 only; install a CUDA toolkit of at least 12.8")
    target = cache / "cuda-13.0"
    cache.mkdir(parents=True, exist_ok=True)
    print("fetching the CUDA 13.0 toolkit (about 110 MB)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        site = pathlib.Path(folder) / "site"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--no-compile", "--only-binary=:all:", "--require-hashes", "--root-user-action=ignore",
                   "--target", str(site), "-r", str(REQUIREMENTS)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            sys.exit("cuda_toolkit.py: pip could not fetch the wheels; install a CUDA toolkit of at least 12.8, or see pip's message")
        root = site / "nvidia/cu13"
        collect(site, root)
        shutil.copyfile(REQUIREMENTS, root / "requirements.txt")
        shutil.rmtree(target, ignore_errors=True)
        root.rename(target)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--no-fetch", action="store_true", help="only an installed or already fetched toolkit; exit 3 without one")
    arguments = parser.parse_args()
    toolkit = installed() or cached(arguments.cache)
    if toolkit is None and arguments.no_fetch:
        sys.exit(3)
    print(toolkit or fetch(arguments.cache))


if __name__ == "__main__":
    main()
