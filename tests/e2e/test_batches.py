# SPDX-License-Identifier: Apache-2.0
"""Files and batches with the official client: to the end, over a kill, apart by key; and run-batch."""

import hashlib
import io
import json
import os
import signal
import subprocess
import time

import httpx
import openai
import pytest

END = {"completed", "failed", "expired", "cancelled"}


def line(custom_id, script="hello", url="/v1/chat/completions", **body):
    if url == "/v1/chat/completions":
        body = {"model": "toy", "messages": [{"role": "user", "content": f"go [[{script}]]"}], "temperature": 0, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def upload(client, lines):
    return client.files.create(file=("in.jsonl", io.BytesIO("\n".join(lines).encode())), purpose="batch")


def begin(client, lines, endpoint="/v1/chat/completions", **more):
    return client.batches.create(input_file_id=upload(client, lines).id, endpoint=endpoint, completion_window="24h", **more)


def wait(client, batch, until=END, seconds=60):
    deadline = time.monotonic() + seconds
    while (seen := client.batches.retrieve(batch.id)).status not in until:
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def answers(client, file_id):
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def test_a_batch_from_upload_to_answers(server):
    client = server.client
    batch = begin(client, [line("a"), line("b", "fox"), line("c", temperature=1000), line("d", model="other")],
                  metadata={"night": "1"})
    assert batch.status == "validating" and batch.metadata == {"night": "1"}
    batch = wait(client, batch)
    assert batch.status == "completed" and batch.errors is None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 2, 2)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at
    texts = {a["custom_id"]: a["response"]["body"]["choices"][0]["message"]["content"] for a in answers(client, batch.output_file_id)}
    assert texts == {"a": "Hello, world!", "b": "The quick brown fox jumps"}
    wrong = {a["custom_id"]: a["response"] for a in answers(client, batch.error_file_id)}
    assert wrong["c"]["status_code"] == 400 and wrong["c"]["body"]["error"]["param"] == "temperature"
    assert wrong["d"]["status_code"] == 404 and wrong["d"]["body"]["error"]["code"] == "model_not_found"
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.filename.endswith("_output.jsonl")
    assert batch.id in [listed.id for listed in client.batches.list(limit=1)]
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)


def test_every_endpoint(server):
    client = server.client
    for url, body in (("/v1/completions", {"prompt": "[[hello]]", "temperature": 0, "max_tokens": 20}),
                      ("/v1/embeddings", {"input": ["one", "two"]}),
                      ("/v1/responses", {"input": "go [[hello]]", "temperature": 0}),
                      ("/v1/rerank", {"query": "a", "documents": ["a", "b"]})):
        batch = wait(client, begin(client, [line("only", url=url, **body)], url))
        assert batch.request_counts.completed == 1, (url, batch)
        assert answers(client, batch.output_file_id)[0]["response"]["body"]


def test_a_bad_file_names_its_lines(server):
    batch = wait(server.client, begin(server.client, [line("a"), "{", line("a"), line("b", url="/v1/embeddings", input="x")]))
    assert batch.status == "failed"
    assert [(e.line, e.code) for e in batch.errors.data] == [
        (2, "invalid_json_line"), (3, "duplicate_custom_id"), (4, "mismatched_endpoint")]


def test_cancel(server):
    client = server.client
    with server.paused_workers():
        batch = begin(client, [line(str(i), "count") for i in range(30)])
        wait(client, batch, {"in_progress"})
        with pytest.raises(openai.ConflictError):
            client.files.delete(batch.input_file_id)
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait(client, batch)
    assert batch.status == "cancelled"
    assert batch.request_counts.completed + batch.request_counts.failed == 30
    codes = {a["error"]["code"] for a in answers(client, batch.error_file_id)}
    assert codes == {"batch_cancelled"}


def test_others_are_served_while_a_batch_runs(server):
    client = server.client
    batch = begin(client, [line(str(i), "fox") for i in range(200)])
    wait(client, batch, {"in_progress"} | END)
    for _ in range(5):
        answer = client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "go [[hello]]"}], temperature=0)
        assert answer.choices[0].message.content == "Hello, world!"
    assert wait(client, batch).request_counts.completed == 200


def test_a_killed_server_goes_on(start, tmp_path):
    folder = str(tmp_path / "files")
    server = start("--files-dir", folder)
    batch = begin(server.client, [line(str(i), "count", max_tokens=100) for i in range(300)])
    deadline = time.monotonic() + 60
    while (done := server.client.batches.retrieve(batch.id).request_counts.completed) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert done < 300
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    written = (tmp_path / "files" / "batches" / f"{batch.id}.output").read_bytes()
    again = start("--files-dir", folder)
    batch = wait(again.client, batch)
    assert batch.status == "completed" and batch.request_counts.completed == 300
    content = again.client.files.content(batch.output_file_id).content
    assert content.startswith(written[:written.rindex(b"\n") + 1]) and written.count(b"\n") >= 20
    ids = [json.loads(text)["custom_id"] for text in content.splitlines()]
    assert sorted(ids, key=int) == [str(i) for i in range(300)]
    refused = subprocess.run([again.process.args[0], "--model", again.process.args[2], "--port", "0", "--files-dir", folder],
                             capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "another process" in refused.stderr
    again.stop()


def test_a_drain_does_not_wait_for_a_batch(start, tmp_path):
    server = start("--files-dir", str(tmp_path))
    batch = begin(server.client, [line(str(i), "fox") for i in range(5000)])
    wait(server.client, batch, {"in_progress"})
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 20
    assert json.loads((tmp_path / "batches" / f"{batch.id}.json").read_text())["state"] == "in_progress"


def test_keys_are_apart(start, tmp_path):
    keys = tmp_path / "keys.yaml"
    digest = {name: hashlib.sha256(f"secret-of-{name}".encode()).hexdigest() for name in ("alice", "bob", "mallory")}
    keys.write_text("keys:\n" + "".join(f"  - {{name: {name}, sha256: {digest[name]}}}\n" for name in ("alice", "bob")) +
                    f"  - {{name: mallory, sha256: {digest['mallory']}, scopes: [metrics]}}\n")
    server = start("--api-key-file", str(keys), "--files-dir", str(tmp_path / "files"), "--usage-log", str(tmp_path / "usage"))
    alice, bob, mallory = (openai.OpenAI(base_url=server.url + "/v1", api_key=f"secret-of-{name}", max_retries=0)
                           for name in ("alice", "bob", "mallory"))
    batch = wait(alice, begin(alice, [line("a")]))
    assert batch.request_counts.completed == 1
    for call in (lambda: bob.batches.retrieve(batch.id), lambda: bob.batches.cancel(batch.id),
                 lambda: bob.files.content(batch.output_file_id), lambda: bob.files.delete(batch.input_file_id),
                 lambda: bob.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h")):
        with pytest.raises(openai.NotFoundError):
            call()
    assert not bob.files.list().data and not bob.batches.list().data
    with pytest.raises(openai.PermissionDeniedError):
        upload(mallory, [line("a")])
    deadline = time.monotonic() + 10
    while "batch:/v1/chat/completions" not in (tmp_path / "usage").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    used = json.loads((tmp_path / "usage").read_text().splitlines()[0])
    assert used["key"] == "alice" and used["completion_tokens"] > 0
    server.stop()


def test_limits(start, tmp_path):
    server = start("--files-dir", str(tmp_path), "--max-file-bytes", "1000", "--max-files-bytes", "1500", "--max-files", "3")
    client = server.client
    client.files.create(file=("a", b"x" * 1000), purpose="batch")
    for content in (b"x" * 1001, b"x" * 600):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.create(file=("a", content), purpose="batch")
        assert refused.value.code in ("file_too_large", "storage_limit_exceeded")
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("a", b"x"), purpose="fine-tune")
    assert refused.value.param == "purpose"
    assert httpx.post(server.url + "/v1/files", content=b"--b\r\n", headers={"Content-Type": "multipart/form-data; boundary=b"}).status_code == 400
    server.stop()


def run_batch(inferd, toy, *args, **more):
    return subprocess.run([inferd, "run-batch", "--model", str(toy), "--served-model-name", "toy", "--threads", "1",
                           "--kv-cache-bytes", str(64 << 20), *args],
                          capture_output=True, text=True, timeout=120, **more)


def test_run_batch(inferd, toy, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    flags = ("-i", str(source), "-o", str(output))
    source.write_text("\n".join([line("a"), line("b", url="/v1/embeddings", input="x")]))
    done = run_batch(inferd, toy, *flags)
    assert done.returncode == 0, done.stderr
    assert "requests [" in done.stderr and "2 of 2" in done.stderr
    found = {a["custom_id"]: a["response"]["body"] for a in map(json.loads, output.read_text().splitlines())}
    assert found["a"]["choices"][0]["message"]["content"] == "Hello, world!"
    assert found["b"]["data"][0]["embedding"]
    again = run_batch(inferd, toy, *flags)
    assert again.returncode == 1 and "--overwrite" in again.stderr
    source.write_text(line("a", temperature=1000))
    some = run_batch(inferd, toy, "--input-file", str(source), "--output-file", str(output), "--overwrite")
    assert some.returncode == 3, some.stderr
    assert json.loads(output.read_text())["response"]["status_code"] == 400
    source.write_text(line("a") + "\n{\n")
    bad = run_batch(inferd, toy, "-i", str(source), "-o", str(tmp_path / "other"))
    assert bad.returncode == 1 and "line 2: " in bad.stderr
    assert run_batch(inferd, toy, "-i", str(source)).returncode == 1
    assert run_batch(inferd, toy, *flags, "--nonsense").returncode == 1
    shown = run_batch(inferd, toy, "--help").stdout
    assert "custom_id" in shown and "Exit status" in shown and "--max-num-seqs" in shown


def test_a_killed_run_batch_goes_on(inferd, toy, tmp_path):
    source, output, partial = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    source.write_text("\n".join(line(str(i), "count", max_tokens=300) for i in range(400)))
    command = [inferd, "run-batch", "--model", str(toy), "--served-model-name", "toy", "--threads", "1", "--kv-cache-bytes",
               str(64 << 20), "-i", str(source), "-o", str(output)]
    for stop, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 1)):
        begun = partial.read_bytes().count(b"\n") if partial.exists() else 0
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not partial.exists() or partial.read_bytes().count(b"\n") < begun + 20:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(stop)
        _, log = process.communicate(timeout=60)
        assert process.returncode == status, log
    assert "goes on from there" in log and not output.exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "are answered already" in done.stderr
    ids = [json.loads(text)["custom_id"] for text in output.read_text().splitlines()]
    assert sorted(ids, key=int) == [str(i) for i in range(400)]
    assert not partial.exists()
