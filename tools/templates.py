#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches public chat templates into the cache and prints their folder.

They come from the source package of llama-cpp-python, which carries those that llama.cpp tests with. They belong to the
makers of their models, so they are not kept in this repository.
"""
import argparse
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from model import pip, sha256

PACKAGE = "llama-cpp-python==0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
FOLDER = "/vendor/llama.cpp/models/templates/"
TIMEOUT_S = 600


def fetch(cache, target):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([pip(cache), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary=:all:",
                        "-d", folder, PACKAGE], check=True, timeout=TIMEOUT_S)
        (package,) = pathlib.Path(folder).glob("*.tar.gz")
        if (found := sha256(package)) != SHA256:
            sys.exit(f"{package.name} has the checksum {found}, not {SHA256}")
        with tarfile.open(package) as archive:
            for member in archive:
                if FOLDER in member.name and member.name.endswith(".jinja"):
                    (target / pathlib.PurePath(member.name).name).write_bytes(archive.extractfile(member).read())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", required=True, type=pathlib.Path)
    cache = parser.parse_args().cache
    target = cache / "templates"
    if not (target / "complete").exists():
        target.mkdir(parents=True, exist_ok=True)
        fetch(cache, target)
        (target / "complete").touch()
    print(target)


if __name__ == "__main__":
    main()
