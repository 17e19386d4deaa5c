# SPDX-License-Identifier: Apache-2.0
"""Models from a real object store: SeaweedFS, through a relay that counts what goes over the wire."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import time

import httpx
import pytest

import harness
import toy_model
from harness import FOX, chat_body, eventually
from store_harness import BUCKET, READER, Relay, Store

MIB = 1 << 20
BIG = 96 * MIB
MARK = b"<here is the mark>"  # in big.gguf; so often that not each of them lies on the border of two packets


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("s3") / "weed")
    yield store
    store.process.end()


@pytest.fixture
def relay(store):
    relay = Relay(store.port)
    yield relay
    relay.close()


@pytest.fixture(scope="module")
def big(store, tmp_path_factory):
    """big.gguf in the store, its bytes random but for marks in the middle. What loads models does not look into them."""
    path = tmp_path_factory.mktemp("big") / "big.gguf"
    content = bytearray(os.urandom(BIG))
    for at in range(BIG // 2, BIG // 2 + 999, 333):
        content[at:at + len(MARK)] = MARK
    path.write_bytes(content)
    store.put("big.gguf", bytes(content))
    return path


def environment(folder, url, key=READER):
    return {"INFERD_CACHE": str(folder / "cache"), "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": key[0],
            "AWS_SECRET_ACCESS_KEY": key[1], "AWS_REGION": "us-east-1"}


class Fetch:
    """`inferd fetch NAME`, running or waited for."""

    def __init__(self, binary, name, variables, *flags):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "AWS_", "S3_"))}
        self.process = subprocess.Popen([binary, "fetch", name, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env={**clean, **variables})

    def wait(self):
        out, self.err = self.process.communicate(timeout=120)
        self.path = pathlib.Path(out.strip())
        return self

    def path_or_fail(self):
        self.wait()
        assert self.process.returncode == 0, self.err
        return self.path

    def refusal(self):
        self.wait()
        assert self.process.returncode != 0
        return self.err


@pytest.fixture
def fetch(binary, relay, tmp_path):
    processes = []

    def run(name, *flags, url=None, key=READER, **variables):
        fetched = Fetch(binary, name, {**environment(tmp_path, url or relay.url, key), **variables}, *flags)
        processes.append(fetched.process)
        return fetched

    yield run
    for process in processes:
        process.kill()
        process.wait(10)


def test_serves_from_the_store(store, relay, inferd, toy, tmp_path):
    """Start, answer; start again with one listing; start without the store."""
    store.put_folder("toy", toy)
    variables = environment(tmp_path, relay.url)
    server = inferd("--served-model-name", "chat", model="s3://models/toy", environment=variables)
    reply = httpx.post(server.url + "/v1/chat/completions", json=chat_body(), timeout=60)
    assert reply.json()["choices"][0]["message"]["content"] == FOX
    server.end()
    relay.requests.clear()
    inferd(model="s3://models/toy", environment=variables).end()
    assert [(method, path.split("?")[0]) for method, path, _ in relay.requests] == [("GET", "/models")]
    relay.close()
    server = inferd(model="s3://models/toy", environment=variables)
    reply = httpx.post(server.url + "/v1/chat/completions", json=chat_body(), timeout=60)
    assert reply.json()["choices"][0]["message"]["content"] == FOX
    assert "may be older than what the store has" in server.log_path.read_text()


def test_a_cut_connection_goes_on(fetch, relay, big):
    """Half way through every connection ends; what had come is not fetched again."""
    relay.cut_at = BIG // 2
    fetched = fetch("s3://models/big.gguf")
    assert fetched.path_or_fail().read_bytes() == big.read_bytes()
    assert "resuming at byte" in fetched.err
    print(f"{relay.bytes_down / BIG:.4f} of the object's bytes over the wire")
    assert relay.bytes_down < BIG * 1.02


def test_a_killed_process_goes_on(fetch, relay, big):
    """At most the last MiB of each connection, and what was on its way, is fetched again."""
    relay.pause_at = BIG // 2
    first = fetch("s3://models/big.gguf")
    eventually(lambda: relay.bytes_down >= BIG // 2)
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    relay.cut()
    relay.pause_at = None
    assert fetch("s3://models/big.gguf").path_or_fail().read_bytes() == big.read_bytes()
    print(f"{relay.bytes_down / BIG:.3f} of the object's bytes over the wire")
    assert relay.bytes_down < BIG + 24 * MIB


def test_a_store_that_is_gone_for_a_while(fetch, relay, big):
    """Nobody listens for a second and a half."""
    relay.pause_at = BIG // 2
    target = relay.target
    fetched = fetch("s3://models/big.gguf")
    eventually(lambda: relay.bytes_down >= BIG // 2)
    relay.target = 1
    relay.cut()
    relay.pause_at = None
    time.sleep(1.5)
    relay.target = target
    assert fetched.path_or_fail().read_bytes() == big.read_bytes()


@pytest.mark.parametrize("form", ["md5", "md5 by parts", "crc32 by parts", "sha256", "crc32"])
def test_a_corrupt_object_is_refused_by_name(fetch, relay, store, big, form):
    key = f"corrupt/{form.replace(' ', '-')}.gguf"
    kind, *parts = form.split(" by ")
    options = {"ChecksumAlgorithm": kind.upper()} if kind != "md5" else {}
    if parts:
        store.put_file(key, big, 5 * MIB, **options)
    else:
        store.put(key, big.read_bytes(), **options)
    name = f"s3://models/{key}"
    relay.replace = (MARK, MARK.upper())
    refusal = fetch(name).refusal()
    assert f"{name} is corrupt: its {form} is " in refusal
    relay.replace = None
    fetched = fetch(name)
    assert fetched.path_or_fail().read_bytes() == big.read_bytes()
    assert "no checksum" not in fetched.err


def test_corrupt_once_is_read_once_more(fetch, relay, big):
    relay.replace = (MARK, MARK.upper())
    fetched = fetch("s3://models/big.gguf")
    eventually(lambda: relay.bytes_down > BIG)
    relay.replace = None
    assert fetched.path_or_fail().read_bytes() == big.read_bytes()
    assert "reading it once more" in fetched.err


def test_an_object_that_changes_is_refused(fetch, relay, store, big):
    store.put_file("changing.gguf", big)
    relay.pause_at = BIG // 8  # early: ranges that are on their way, 8 MiB on 8 connections, are still of the old object
    fetched = fetch("s3://models/changing.gguf")
    eventually(lambda: relay.bytes_down >= BIG // 8)
    store.put("changing.gguf", os.urandom(BIG))
    relay.pause_at = None
    assert "s3://models/changing.gguf was changed in the store while it was read" in fetched.refusal()
    # The next start loads the new one.
    content = fetch("s3://models/changing.gguf").path_or_fail().read_bytes()
    assert content == store.client.get_object(Bucket=BUCKET, Key="changing.gguf")["Body"].read()


def test_odd_keys(fetch, store):
    key = "odd folder/ä+b (1)&c=d%20/m x.gguf"
    store.put(key, b"GGUF and so on")
    assert fetch("s3://models/" + key).path_or_fail().read_bytes() == b"GGUF and so on"


def test_refusals_say_what_to_set(fetch, relay):
    for variables, wanted in (
            ({"key": (READER[0], "wrong")}, "SignatureDoesNotMatch (status 403)"),
            ({"key": ("nobody", "wrong")}, "InvalidAccessKeyId (status 403)")):
        refusal = fetch("s3://models/toy", **variables).refusal()
        assert wanted in refusal and "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in refusal
        assert "wrong" not in refusal
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in fetch("s3://models/toy", AWS_ANONYMOUS_CREDENTIAL="true").refusal()
    assert "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not" in fetch("s3://models/toy", AWS_ACCESS_KEY_ID="").refusal()
    assert "s3://models/nothing holds no object" in fetch("s3://models/nothing").refusal()
    assert "s3://elsewhere" in fetch("s3://elsewhere/toy").refusal()


def test_the_cache_has_a_bound(fetch, relay, store, inferd, toy, tmp_path):
    """A third model makes the least recently used one go, never the one that a server uses."""
    sizes = {}
    for name in "abc":
        store.put(f"bound/{name}.gguf", os.urandom(8 * MIB))
    store.put_folder("toy", toy)
    server = inferd(model="s3://models/toy", environment=environment(tmp_path, relay.url))
    sizes["toy"] = sum(path.stat().st_size for path in toy.iterdir())
    bound = sizes["toy"] + 20 * MIB
    a, b = (fetch(f"s3://models/bound/{name}.gguf", "--model-cache-bytes", bound).path_or_fail() for name in "ab")
    assert fetch("s3://models/bound/a.gguf", "--model-cache-bytes", bound).path_or_fail() == a  # used again
    c = fetch("s3://models/bound/c.gguf", "--model-cache-bytes", bound).path_or_fail()
    assert (a.exists(), b.exists(), c.exists()) == (True, False, True)
    refusal = fetch("s3://models/bound/b.gguf", "--model-cache-bytes", 10 * MIB).refusal()
    assert "in use" in refusal or sizes["toy"] < 2 * MIB
    assert "more than --model-cache-bytes" in fetch("s3://models/bound/b.gguf", "--model-cache-bytes", MIB).refusal()
    reply = httpx.post(server.url + "/v1/chat/completions", json=chat_body(), timeout=60)
    assert reply.json()["choices"][0]["message"]["content"] == FOX


def test_another_host_reads_its_slices(store, relay, binary, spawn, monkeypatch, tmp_path):
    """Two pipeline stages, each a host with a cache of its own: the second reads about its half, and once for its two ranks."""
    monkeypatch.setattr(toy_model, "LAYERS", 24)
    monkeypatch.setattr(toy_model, "INNER", 384)
    toy_model.make(tmp_path / "layers")
    size = (tmp_path / "layers/model.safetensors").stat().st_size
    store.put_folder("layers", tmp_path / "layers")
    port, = harness.free_ports(1)
    shared = {"INFERD_CLUSTER_SECRET": "a secret of these hosts, long enough"}
    flags = ["--nnodes", "2", "--leader", f"127.0.0.1:{port}", "--data-address", "127.0.0.1", "--pp", "2", "--tp", "2"]
    server = harness.Inferd(tmp_path, binary, "s3://models/layers", *flags, "--node-rank", "0",
                            environment={**environment(tmp_path / "first", store.url), **shared})
    try:
        second = spawn([binary, "serve", "--model", "s3://models/layers", *flags, "--node-rank", "1", "--threads", "1"], name="second",
                       environment={**environment(tmp_path / "second", relay.url), **shared})
        server.ready()
        reply = httpx.post(server.url + "/v1/chat/completions", json=chat_body(), timeout=60)
        assert reply.json()["choices"][0]["message"]["content"] == FOX, second.log()
        print(f"\nthe second host read {relay.bytes_down / size:.2f} of {size / MIB:.0f} MiB")
        assert size / 3 < relay.bytes_down < size * 0.62
    finally:
        server.end()


def test_two_processes_fetch_once(fetch, relay, big):
    first, second = fetch("s3://models/big.gguf"), fetch("s3://models/big.gguf")
    assert first.path_or_fail() == second.path_or_fail()
    assert relay.bytes_down < BIG * 1.01


def seconds(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def store_rate(store, key, size):
    """Bytes per second of eight clients that read the object in ranges and throw it away."""
    signed = store.client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=600)
    step = 16 * MIB

    def read(begin):
        subprocess.run(["curl", "-s", "-o", "/dev/null", "-r", f"{begin}-{min(size, begin + step) - 1}", signed], check=True)

    def everything():
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(0, size, step)))
    return size / min(seconds(everything) for _ in range(3))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl measures the store's rate")
def test_ready_time(store, inferd, tmp_path):
    """From the start of the process until ready, against a local file plus the store's own rate for the bytes."""
    local = next((path for path in sorted((harness.CACHE / "models").glob("*.gguf")) if path.stat().st_size > 100 * MIB), None)
    if local is None:
        pytest.skip("no model of 100 MiB in the cache; `./dev model gemma-3-270m` gets one")
    size = local.stat().st_size
    store.put_file("real/model.gguf", local)
    rate = store_rate(store, "real/model.gguf", size)
    flags = ("--max-num-seqs", "4")

    def started(model, name, variables=None):
        begin = time.monotonic()
        server = inferd(*flags, model=model, name=name, environment=variables)
        taken = time.monotonic() - begin
        server.end()
        return taken

    started(local, "warm")
    from_disk = min(started(local, f"local{i}") for i in range(2))
    from_store, again = [], []
    for i in range(2):
        variables = environment(tmp_path / str(i), store.url)
        from_store.append(started("s3://models/real/model.gguf", f"store{i}", variables))
        again.append(started("s3://models/real/model.gguf", f"again{i}", variables))
    allowed = from_disk + size / rate
    print(f"\n{local.name}: {size / MIB:.0f} MiB, store {rate / 1e6:.0f} MB/s; ready from disk {from_disk:.2f} s, from the store "
          f"{min(from_store):.2f} s ({min(from_store) / allowed:.2f} of disk plus the store's rate), again {min(again):.2f} s")
    assert min(from_store) < allowed * 3
    assert min(again) < from_disk * 2 + 1
