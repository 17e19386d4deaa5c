# SPDX-License-Identifier: Apache-2.0
"""An engine that stands still, with a step that really does not end, and workers that do not come back."""

import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request

import openai

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


def test_a_stuck_step_is_not_alive_until_it_goes_on(start):
    server = start("--stall-deadline-ms", "1500", "--step-deadline-ms", "600000")
    with server.paused_workers():
        time.sleep(2.5)
        assert livez(server)[0] == 200, "nobody waits for a step"
        texts = []
        asking = threading.Thread(target=lambda: texts.append(chat(server, "fox").choices[0].message.content))
        asking.start()
        begun = time.monotonic()
        stuck = wait_livez(server, 503, 15)
        assert time.monotonic() - begun > 0.9  # an idle engine looks at the time twice a second
        assert stuck["status"] == "stuck" and stuck["replica"] == 0 and stuck["seconds"] >= 1
        assert server.status("/startupz") == 200
    assert wait_livez(server, 200, 15)["status"] == "ready"
    asking.join(20)
    assert texts == ["The quick brown fox jumps"]
    server.stop()


def test_a_step_that_is_cut_off_in_time_keeps_it_alive(start):
    server = start("--stall-deadline-ms", "20000", "--step-deadline-ms", "1000")
    seen = set()
    with server.paused_workers():  # the worker is replaced
        texts = []
        asking = threading.Thread(target=lambda: texts.append(chat(server, "fox").choices[0].message.content))
        asking.start()
        while asking.is_alive():
            seen.add(livez(server)[0])
            asking.join(0.05)
    assert texts == ["The quick brown fox jumps"]
    assert seen == {200}
    server.stop()


def test_asleep_it_is_alive_however_long(start):
    server = start("--stall-deadline-ms", "500", "--enable-sleep-mode")
    server.post("/sleep?mode=keep", {})
    time.sleep(1.5)
    assert livez(server) == (200, {"status": "asleep"})
    server.post("/wake_up", {})
    assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
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


def test_a_lost_replica_of_two_is_told_and_the_other_serves(inferd, toy, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(toy, model)
    server = Server(inferd, model, tmp_path, "--dp", "2", "--threads", "2", "--recovery-deadline-ms", "1500", "--stall-deadline-ms", "1500")
    try:
        shutil.rmtree(model)
        os.kill(server.workers()[0], signal.SIGKILL)
        assert wait_livez(server, 503, 20)["status"] == "stuck"
        assert server.process.poll() is None
        assert server.status("/readyz") == 200
        assert chat(server, "fox").choices[0].message.content == "The quick brown fox jumps"
    finally:
        server.kill()
