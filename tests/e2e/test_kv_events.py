# SPDX-License-Identifier: Apache-2.0
"""--kv-events-config: what vLLM's subscribers decode from it, with ZeroMQ and msgspec themselves."""

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any

import msgspec
import pytest
import zmq

from conftest import complete

PAGE = 32
END = (-1).to_bytes(8, "big", signed=True)


# The messages as vLLM 0.24 and later define them ...
class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class EventBatch(Batch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


# ... and as those before did.
class OldEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class OldBlockStored(OldEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None = None


class OldBlockRemoved(OldEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class OldAllBlocksCleared(OldEvent, tag="AllBlocksCleared"):
    pass


class OldEventBatch(Batch):
    events: list[OldBlockStored | OldBlockRemoved | OldAllBlocksCleared]


class Subscriber:
    """Follows one replica; `blocks` is what it believes the prefix cache holds."""

    def __init__(self, context, endpoint, replay=None, batch=EventBatch, bind=False):
        self.socket = context.socket(zmq.SUB)
        self.socket.subscribe(b"kv@")
        (self.socket.bind if bind else self.socket.connect)(endpoint)
        self.replay_socket = context.socket(zmq.DEALER)
        if replay:
            self.replay_socket.connect(replay)
        self.decoder = msgspec.msgpack.Decoder(batch)
        self.blocks, self.parents, self.events, self.numbers = {}, {}, [], []
        self.ranks = set()

    def take(self, number, payload):
        batch = self.decoder.decode(payload)
        assert abs(batch.ts - time.time()) < 300
        self.numbers.append(number)
        self.ranks.add(batch.data_parallel_rank)
        for event in batch.events:
            self.events.append(event)
            name = type(event).__name__.removeprefix("Old")
            if name == "AllBlocksCleared":
                self.blocks.clear()
            elif name == "BlockRemoved":
                for block in event.block_hashes:
                    del self.blocks[block]
            else:
                assert event.block_size == PAGE and event.medium == "GPU" and event.lora_id is None
                assert len(event.token_ids) == PAGE * len(event.block_hashes)
                parent = event.parent_block_hash
                for at, block in enumerate(event.block_hashes):
                    assert block not in self.blocks
                    self.blocks[block] = tuple(event.token_ids[at * PAGE:(at + 1) * PAGE])
                    self.parents[block] = parent
                    parent = block

    def receive(self, seconds=10):
        assert self.socket.poll(1000 * seconds), "no event in time"
        topic, number, payload = self.socket.recv_multipart()
        self.take(int.from_bytes(number, "big"), payload)
        return topic

    def drain(self):
        """All that is on its way, once the server is idle."""
        while self.socket.poll(300):
            self.receive()

    def replay(self, first):
        self.replay_socket.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            assert self.replay_socket.poll(10000), "no replay in time"
            empty, number, payload = self.replay_socket.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return
            self.take(int.from_bytes(number, "big"), payload)


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def folder():
    path = tempfile.mkdtemp(prefix="kv-", dir="/tmp")  # a socket's path has 107 bytes at most
    yield path
    shutil.rmtree(path)


def config(**more):
    return ("--kv-events-config", json.dumps({"enable_kv_cache_events": True, "topic": "kv@pod@toy", **more}))


def tokens_of(server, prompt):
    return server.post("/tokenize", {"model": "toy", "prompt": prompt})["tokens"]


def chain(subscriber, tokens):
    """The hashes of the full blocks of these tokens, as far as the subscriber knows them."""
    by_content = {(subscriber.parents[block], held): block for block, held in subscriber.blocks.items()}
    found, parent = [], None
    for at in range(0, len(tokens) - PAGE + 1, PAGE):
        parent = by_content.get((parent, tuple(tokens[at:at + PAGE])))
        if parent is None:
            break
        found.append(parent)
    return found


def prompt_of(word):
    return f"{word} " + "one two three four five six seven eight nine ten " * 8


def test_stored_blocks_are_seen_live_and_by_replay_and_are_the_same_in_every_process(start, context, folder):
    hashes = []
    for run in ("a", "b"):
        endpoint, replay = f"ipc://{folder}/{run}", f"ipc://{folder}/{run}-replay"
        server = start(*config(endpoint=endpoint, replay_endpoint=replay))
        live, late = Subscriber(context, endpoint), Subscriber(context, endpoint, replay)
        deadline = time.monotonic() + 20
        while not live.socket.poll(100):  # a subscription takes a moment to arrive
            assert time.monotonic() < deadline
            complete(server, prompt_of(f"hello {time.monotonic()}"), max_tokens=1)
        complete(server, prompt_of("apples"), max_tokens=1)
        live.drain()
        assert live.numbers == list(range(live.numbers[0], live.numbers[-1] + 1))
        tokens = tokens_of(server, prompt_of("apples"))
        assert len(chain(live, tokens)) == len(tokens) // PAGE > 2
        # One that was not there asks for all, and one that missed some for the rest.
        late.replay(0)
        assert late.numbers[0] == 0 and type(late.events[0]) is AllBlocksCleared, "a start tells that nothing is held"
        assert late.blocks.items() >= live.blocks.items() and late.ranks == {0}
        again = Subscriber(context, endpoint, replay)
        again.replay(late.numbers[-2])
        assert again.numbers == late.numbers[-2:]
        # What the cache has is not told again; its continuation hangs on it.
        before = len(late.blocks)
        reply = complete(server, prompt_of("apples") + "and more of it " * 9, max_tokens=1)
        assert reply.usage.prompt_tokens_details.cached_tokens > 2 * PAGE
        late.replay(late.numbers[-1] + 1)
        assert len(chain(late, tokens_of(server, prompt_of("apples") + "and more of it " * 9))) > len(chain(live, tokens))
        assert len(late.blocks) > before
        assert server.metric("inferd_kv_event_batches_total") == late.numbers[-1] + 1
        assert server.metric("inferd_kv_event_batches_dropped_total") == 0
        hashes.append(chain(live, tokens))
        server.stop()
    assert hashes[0] == hashes[1]


def test_what_is_evicted_is_told(start, context, folder):
    endpoint, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    server = start(*config(endpoint=endpoint, replay_endpoint=replay), "--kv-cache-bytes", str(3 << 19), "--max-model-len", "512")
    pages = int(server.metric("inferd_kv_pages_total"))
    subscriber = Subscriber(context, endpoint, replay)
    first = prompt_of("word0")
    count = 0
    complete(server, first, max_tokens=1)
    subscriber.replay(0)
    assert chain(subscriber, tokens_of(server, first))
    while chain(subscriber, tokens_of(server, first)):
        count += 1
        assert count < pages, "nothing is evicted"
        complete(server, prompt_of(f"word{count}"), max_tokens=1)
        subscriber.replay(subscriber.numbers[-1] + 1)
    assert any(isinstance(event, BlockRemoved) for event in subscriber.events)
    assert len(subscriber.blocks) == server.metric("inferd_kv_pages_cached") <= pages
    # The server agrees: the first is computed anew, the last is not.
    assert complete(server, prompt_of(f"word{count}"), max_tokens=1).usage.prompt_tokens_details.cached_tokens > 0
    server.stop()


def test_salted_prompts_have_blocks_of_their_own(start, context, folder):
    endpoint, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    server = start(*config(endpoint=endpoint, replay_endpoint=replay))
    subscriber = Subscriber(context, endpoint, replay)
    for salt in (None, "pepper"):
        complete(server, prompt_of("salted"), max_tokens=1, extra_body={"cache_salt": salt} if salt else {})
    subscriber.replay(0)
    stored = [event for event in subscriber.events if isinstance(event, BlockStored) and event.parent_block_hash is None]
    assert [event.extra_keys[0] for event in stored] == [None, ("pepper",)]
    assert stored[0].token_ids[:PAGE] == stored[1].token_ids[:PAGE] and stored[0].block_hashes[0] != stored[1].block_hashes[0]
    server.stop()


def free_ports(count):
    """So many ports in a row that nobody has."""
    while True:
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return first


def test_each_replica_has_its_port_and_tells_its_rank_in_the_old_encoding_too(start, context):
    port = free_ports(2)
    subscribers = [Subscriber(context, f"tcp://127.0.0.1:{port + rank}", batch=OldEventBatch, bind=True) for rank in range(2)]
    server = start(*config(endpoint=f"tcp://127.0.0.1:{port}", encoding="array"), "--dp", "2")
    deadline = time.monotonic() + 30
    count = 0
    while not all(subscriber.blocks for subscriber in subscribers):
        assert time.monotonic() < deadline
        count += 1
        complete(server, prompt_of(f"dp{count}"), max_tokens=1)
        for subscriber in subscribers:
            while subscriber.socket.poll(50):
                assert subscriber.receive() == b"kv@pod@toy"
    assert [subscriber.ranks for subscriber in subscribers] == [{0}, {1}]
    assert {type(event) for subscriber in subscribers for event in subscriber.events} >= {OldBlockStored}
    server.stop()


def test_a_port_in_use_and_a_bad_key_end_the_start(inferd, toy, folder):
    for text, words in ((config(endpoint="ipc:///no/such/folder/events"), "cannot bind ipc:///no/such/folder/events"),
                        (config(port=5), "the keys are enable_kv_cache_events")):
        ended = subprocess.run([inferd, "--model", str(toy), "--port", "0", "--grpc-port", "none", *text],
                               capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1 and words in ended.stderr, (ended.returncode, ended.stderr)
