# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of processes that may end at any moment."""

import contextlib
import os
import pathlib

GONE = (FileNotFoundError, ProcessLookupError)


def children(pid):
    """The pids of its children, in no order; a process or thread that has ended has none."""
    found = []
    with contextlib.suppress(*GONE):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(*GONE):
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(pid):
    """User and system time; 0 once it has ended."""
    with contextlib.suppress(*GONE):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def resident_bytes(pid):
    """0 once it has ended."""
    with contextlib.suppress(*GONE):
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
