# SPDX-License-Identifier: Apache-2.0
"""The commands in the `sh` blocks of docs/deploy.md."""

import os
import re
import subprocess

import pytest

import harness

TEXT = (harness.ROOT / "docs/deploy.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S)
            for line in block.replace("\\\n", " ").splitlines() if line.strip()]
FOLDERS = {"helm": "helm", "promtool": "prometheus/usr/bin"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command, engine):
    program = command.split()[0]
    if program in FOLDERS:
        engine(FOLDERS[program].split("/")[0])
    if program == "helm":  # one that was built from its module takes an old Kubernetes for granted
        command += " --kube-version 1.36.3"
    path = os.pathsep.join([str(harness.VENV), *(str(harness.ENGINES / folder) for folder in FOLDERS.values()), os.environ["PATH"]])
    done = subprocess.run(command, shell=True, cwd=harness.ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_it_names_are_there():
    for name in re.findall(r"`((?:deploy|docker|integrations)/[\w./-]+)`", TEXT):
        assert (harness.ROOT / name).exists(), name
