# SPDX-License-Identifier: Apache-2.0
"""Pods, or services of a compose file, as network namespaces that know one another by name (tests/e2e/hosts.py has the switch)."""

import contextlib
import ctypes
import os

import hosts
import pytest

CLONE_NEWNET = 0x40000000


class Pods(hosts.Network):
    """One namespace for each entry of `names`, which are its names. Needs root."""

    def __init__(self, folder, names):
        super().__init__(len(names))
        self.hosts_file = folder / "hosts"
        self.hosts_file.write_text("127.0.0.1 localhost\n" + "".join(
            f"{self.address(number)} {' '.join(each)}\n" for number, each in enumerate(names)))

    def address(self, number):
        return f"10.199.0.{number + 1}"

    def command(self, number, command):
        """`command` as a program of that pod; it keeps the pid it is started with."""
        return hosts.in_namespace(self.hosts[number], "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self.hosts_file),
                                  *(str(part) for part in command))

    @contextlib.contextmanager
    def inside(self, number):
        """Connections that the calling thread begins meanwhile are the pod's own."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(file):
            if libc.setns(file, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {self.hosts[number]}")

        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            there = os.open(f"/run/netns/{self.hosts[number]}", os.O_RDONLY)
            try:
                enter(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                enter(before)
        finally:
            os.close(before)


def make(folder, names):
    """A context: the pods, or a skip that says why this machine has none."""
    if reason := hosts.why_not():
        pytest.skip(reason)
    return Pods(folder, names)
