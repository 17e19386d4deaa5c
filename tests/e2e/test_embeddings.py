# SPDX-License-Identifier: Apache-2.0
"""Embeddings of the real model through the official client, which asks for base64 unless told otherwise."""
import math

import pytest
from test_real_model import RealServer


@pytest.fixture(scope="module")
def server(inferd, tmp_path_factory):
    running = RealServer(inferd, "qwen2.5-coder-0.5b", tmp_path_factory.mktemp("embeddings"))
    yield running
    running.stop()


def embed(server, texts, **more):
    return [item.embedding for item in server.client.embeddings.create(model="toy", input=texts, **more).data]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b))


def test_vectors(server):
    texts = ["def add(a, b): return a + b", "def sum_of(x, y): return x + y", "It rains in the mountains of Norway."]
    vectors = embed(server, texts)
    assert [len(v) for v in vectors] == [896] * 3
    assert all(math.isclose(cosine(v, v), 1, rel_tol=1e-4) for v in vectors)
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2]) + 0.05, "like texts are nearer"
    # As numbers, alone, and in a batch: the same.
    for as_numbers, vector in zip(embed(server, texts, encoding_format="float"), vectors):
        assert as_numbers == pytest.approx(vector, abs=1e-7)
    assert embed(server, texts[1]) == [vectors[1]]
    short = embed(server, texts[0], dimensions=64)[0]
    assert len(short) == 64 and math.isclose(cosine(short, short), 1, rel_tol=1e-4)
    server.wait_metric("inferd_kv_pages_used", 0, 10)


def test_score_and_rerank_agree(server):
    query, documents = "add two numbers in Python", ["The weather in Norway", "def add(a, b): return a + b"]
    scores = [d["score"] for d in server.post("/v1/score", {"text_1": query, "text_2": documents})["data"]]
    ranked = server.post("/v1/rerank", {"query": query, "documents": documents})["results"]
    assert [r["index"] for r in ranked] == [1, 0]
    assert [r["relevance_score"] for r in ranked] == pytest.approx(sorted(scores, reverse=True))
