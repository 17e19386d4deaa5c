# SPDX-License-Identifier: Apache-2.0
"""An engine that stands still, with a step that really does not end, and workers that do not come back."""

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

from conftest import Server, chat


def livez(server):
    try:
        with urllib.request.urlopen(server.url + "/livez", timeout=5) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def wait_livez(server, status, seconds):
    deadline = time.monotonic() + seconds
    while (seen := livez(server))[0] != status:
        assert time.monotonic() < deadline, f"/livez is still {seen}"
        time.sleep(0.05)
    return seen[1]


def ask(server):
    texts = []
    thread = threading.Thread(target=lambda: texts.append(chat(server, "fox").choices[0].message.content))
    thread.start()
    return thread, texts


@contextlib.contextmanager
def stopped_thread(pid, name):
    """One thread of a child process stands still inside, while its others run."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000
    tasks = pathlib.Path(f"/proc/{pid}/task")
    (tid,) = (int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name)
    if libc.ptrace(seize, tid, None, None) != 0:
        pytest.skip("no thread can be stopped here: " + os.strerror(ctypes.get_errno()))
    try:
        assert libc.ptrace(interrupt, tid, None, None) == 0
        os.waitpid(tid, wall)
        yield
    finally:
        libc.ptrace(detach, tid, None, None)


def test_an_engine_that_stands_still_is_not_alive_until_it_goes_on(start):
    server = start("--stall-deadline-ms", "4000", "--step-deadline-ms", "3000", "--recovery-deadline-ms", "3000")
    with stopped_thread(server.process.pid, "engine-0"):
        begun = time.monotonic()
        asking, texts = ask(server)
        stuck = wait_livez(server, 503, 20)
        assert time.monotonic() - begun > 2.5  # an idle engine looks at the time twice a second
        assert stuck["status"] == "stuck" and stuck["replica"] == 0 and stuck["seconds"] >= 4
        assert server.status("/startupz") == 200
    assert wait_livez(server, 200, 15)["status"] == "ready"
    asking.join(20)
    assert texts == ["The quick brown fox jumps"]
    server.stop()


def test_a_step_within_its_deadline_is_no_standstill(start):
    server = start("--stall-deadline-ms", "300", "--step-deadline-ms", "600000")
    with server.paused_workers():
        asking, texts = ask(server)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert livez(server)[0] == 200
            time.sleep(0.05)
        assert texts == []
    asking.join(20)
    assert texts == ["The quick brown fox jumps"]
    server.stop()


def test_a_step_that_is_cut_off_in_time_keeps_it_alive(start):
    server = start("--stall-deadline-ms", "20000", "--step-deadline-ms", "1000")
    seen = set()
    with server.paused_workers():  # the worker is replaced
        asking, texts = ask(server)
        while asking.is_alive():
            seen.add(livez(server)[0])
            asking.join(0.05)
    assert texts == ["The quick brown fox jumps"]
    assert seen == {200}
    server.stop()


def test_asleep_it_is_alive_however_long_requests_wait(start):
    server = start("--stall-deadline-ms", "2500", "--step-deadline-ms", "1500", "--recovery-deadline-ms", "1500", "--enable-sleep-mode")
    with server.paused_workers():
        asking, texts = ask(server)
        server.wait_requests(1)
        server.post("/sleep?mode=keep", {})
    time.sleep(4)
    assert livez(server) == (200, {"status": "asleep"})
    assert texts == []
    server.post("/wake_up", {})
    asking.join(30)
    assert texts == ["The quick brown fox jumps"]
    server.stop()


def test_workers_that_do_not_come_back_end_the_server_with_status_3(inferd, toy, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(toy, model)
    server = Server(inferd, model, tmp_path, "--recovery-deadline-ms", "2500")
    try:
        assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
        shutil.rmtree(model)
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        try:
            chat(server, "fox")
            raise AssertionError("there was nobody to answer")
        except openai.APIStatusError as error:
            assert error.status_code == 503
        assert server.process.wait(20) == 3, server.log()
        assert "could not be replaced" in server.log()
    finally:
        server.kill()


def test_a_worker_that_comes_back_in_time_does_not(start):
    server = start("--recovery-deadline-ms", "20000")
    (worker,) = server.workers()
    os.kill(worker, signal.SIGKILL)
    assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
    server.stop()


def test_a_lost_replica_of_two_is_no_reason_to_end_the_other(inferd, toy, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(toy, model)
    server = Server(inferd, model, tmp_path, "--dp", "2", "--threads", "2", "--recovery-deadline-ms", "1500", "--step-deadline-ms", "8000",
                    "--stall-deadline-ms", "1500")
    try:
        shutil.rmtree(model)
        os.kill(server.workers()[0], signal.SIGKILL)
        until = time.monotonic() + 20
        while "has not come back" not in server.log():
            assert time.monotonic() < until, server.log()
            time.sleep(0.05)
        until = time.monotonic() + 11  # beyond the stall deadline, which is a second more than a step's
        while time.monotonic() < until:
            assert livez(server) == (200, {"status": "ready"})
            time.sleep(0.05)
        assert server.status("/readyz") == 200
        assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
    finally:
        server.kill()
