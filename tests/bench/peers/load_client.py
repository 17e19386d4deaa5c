# SPDX-License-Identifier: Apache-2.0
"""A streaming load client for OpenAI-compatible servers on this machine, the same for every engine. Standard library only, raw sockets:
it must not take the cores from the server that it measures.

Output lengths are fixed by ignore_eos and min_tokens. Prompts are random common words, so that nothing is shared but the chat template
and, in `shared_prefix`, the prefix; their lengths are calibrated by the server's own usage counts. TTFT: from sending to the first text.
Gap: between two texts of one stream. prefill_N: tokens of one prompt by its TTFT. decode_N: new tokens a second of N streams while all of
them run.
"""
import asyncio
import dataclasses
import json
import random
import statistics
import time
import urllib.parse

WORDS = ("time year way day thing man world life hand part child eye woman place work week case point company number group problem fact "
         "water money month book home room area story right study job word business issue side kind head house service friend hour "
         "game line end member law car city name team minute idea body back face door health person art history party result change "
         "morning reason girl guy moment air teacher force boy age policy music market sense plan interest death use class").split()
MAX_ANSWER_S = 600


@dataclasses.dataclass
class Answer:
    begin: float
    times: list = dataclasses.field(default_factory=list)  # when each text came
    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0


def percentile(values, share):
    """Linear between ranks; of nothing: nan."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Client:
    def __init__(self, url, model):
        parts = urllib.parse.urlsplit(url)
        if parts.hostname != "127.0.0.1":
            raise ValueError("only servers on 127.0.0.1")
        self.port, self.model = parts.port, model
        self.tokens_per_word, self.fixed_tokens = 1.0, 30.0

    async def generate(self, prompt, new_tokens):
        """One chat completion as a stream."""
        body = json.dumps({
            "model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": new_tokens,
            "min_tokens": new_tokens, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = Answer(time.perf_counter())
        try:
            writer.write(head + body)
            await asyncio.wait_for(self._read(reader, answer), MAX_ANSWER_S)
        finally:
            writer.close()
        if answer.tokens == 0:
            answer.tokens = len(answer.times)
        return answer

    async def _read(self, reader, answer):
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{status[:80]!r} {await reader.read(500)!r}")
        # Chunk sizes stand on lines of their own, which no event line looks like: reading lines is enough.
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:])
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                if delta.get("content") or delta.get("reasoning_content"):
                    answer.times.append(now)
            if usage := event.get("usage"):
                answer.prompt_tokens = usage["prompt_tokens"]
                answer.tokens = usage["completion_tokens"]
                answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            if "error" in event:
                raise RuntimeError(json.dumps(event["error"]))

    def words(self, rng, tokens):
        return " ".join(rng.choice(WORDS) for _ in range(max(1, round(tokens / self.tokens_per_word))))

    def prompt(self, rng, tokens):
        return f"{rng.randrange(10**6)} {self.words(rng, tokens - self.fixed_tokens)}. Tell a long story."

    async def calibrate(self):
        rng, points = random.Random(1), []
        for count in (60, 260):
            text = " ".join(rng.choice(WORDS) for _ in range(count))
            answer = await self.generate(f"{rng.randrange(10**6)} {text}. Tell a long story.", 2)
            points.append((count, answer.prompt_tokens))
        (few, few_tokens), (many, many_tokens) = points
        self.tokens_per_word = (many_tokens - few_tokens) / (many - few)
        self.fixed_tokens = few_tokens - self.tokens_per_word * few


def figures(answers, seconds):
    gaps = [later - earlier for a in answers for earlier, later in zip(a.times, a.times[1:])]
    firsts = [a.times[0] - a.begin for a in answers]
    return {"tok_s": sum(a.tokens for a in answers) / seconds,
            "ttft_p50_ms": percentile(firsts, 0.5) * 1e3, "ttft_p95_ms": percentile(firsts, 0.95) * 1e3,
            "gap_p50_ms": percentile(gaps, 0.5) * 1e3, "gap_p95_ms": percentile(gaps, 0.95) * 1e3, "gap_max_ms": max(gaps) * 1e3,
            "prompt_tokens": statistics.median(a.prompt_tokens for a in answers)}


def steady_rate(answers):
    """New tokens a second of streams while all of them run: from the last one's first token to the first one's last."""
    begin, end = max(a.times[0] for a in answers), min(a.times[-1] for a in answers)
    tokens = sum((a.tokens / len(a.times)) * sum(begin < time <= end for time in a.times) for a in answers)
    if end <= begin:
        raise RuntimeError("the streams did not run together: give them more tokens")
    return tokens / (end - begin)


async def prefill(client, rng, prompt_tokens, tries=2):
    answers = [await client.generate(client.prompt(rng, prompt_tokens), 1) for _ in range(tries)]
    return {"tok_s": statistics.median(a.prompt_tokens / (a.times[0] - a.begin) for a in answers)}


async def decode(client, rng, streams, prompt_tokens=128, new_tokens=96):
    prompts = [client.prompt(rng, prompt_tokens) for _ in range(streams)]
    return {"tok_s": steady_rate(await asyncio.gather(*(client.generate(prompt, new_tokens) for prompt in prompts)))}


async def closed_loop(client, streams, prompts, new_tokens):
    """`streams` clients, each of which sends its next prompt when its last answer has come."""
    left, answers = iter(prompts), []

    async def one():
        for prompt in left:
            answers.append(await client.generate(prompt, new_tokens))

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(streams)))
    return figures(answers, time.perf_counter() - begin)


async def plain(client, rng, streams, prompt_tokens, new_tokens=64):
    prompts = [client.prompt(rng, prompt_tokens) for _ in range(max(4, 2 * streams))]
    return await closed_loop(client, streams, prompts, new_tokens)


async def shared_prefix(client, rng, streams=8, prefix_tokens=400, new_tokens=64):
    prefix = f"{rng.randrange(10**6)} {client.words(rng, prefix_tokens)}"

    def prompt():
        return f"{prefix}. {client.words(rng, 40)}. Tell a long story."

    cold = await client.generate(prompt(), new_tokens)
    result = await closed_loop(client, streams, [prompt() for _ in range(2 * streams)], new_tokens)
    return {**result, "cold_ttft_ms": (cold.times[0] - cold.begin) * 1e3}


async def long_prefill(client, rng, streams=4, long_tokens=2048, new_tokens=400):
    """The longest gap of running streams while a long prompt is read, and their usual gap before it."""
    running = [asyncio.create_task(client.generate(client.prompt(rng, 64), new_tokens)) for _ in range(streams)]
    await asyncio.sleep(3)
    begin = time.perf_counter()
    long = await client.generate(client.prompt(rng, long_tokens), 8)
    answers = await asyncio.gather(*running)
    first = long.times[0]
    before, during = [], []
    for answer in answers:
        for earlier, later in zip(answer.times, answer.times[1:]):
            if later <= begin:
                before.append(later - earlier)
            elif earlier < first:
                during.append(later - earlier)
    if not before or not during:
        raise RuntimeError("the long prompt did not meet running streams: give them more tokens")
    return {"long_ttft_ms": (first - begin) * 1e3, "idle_gap_p50_ms": percentile(before, 0.5) * 1e3,
            "gap_p50_ms": percentile(during, 0.5) * 1e3, "gap_max_ms": max(during) * 1e3}


WORKLOADS = {
    "prefill_512": lambda client, rng: prefill(client, rng, 512),
    "prefill_2048": lambda client, rng: prefill(client, rng, 2048),
    "decode_1": lambda client, rng: decode(client, rng, 1),
    "decode_2": lambda client, rng: decode(client, rng, 2),
    "decode_8": lambda client, rng: decode(client, rng, 8),
    "decode_16": lambda client, rng: decode(client, rng, 16),
    "c1_p128": lambda client, rng: plain(client, rng, 1, 128),
    "c4_p128": lambda client, rng: plain(client, rng, 4, 128),
    "c16_p128": lambda client, rng: plain(client, rng, 16, 128),
    "c1_p512": lambda client, rng: plain(client, rng, 1, 512),
    "c16_p512": lambda client, rng: plain(client, rng, 16, 512),
    "shared_prefix": shared_prefix,
    "long_prefill": long_prefill,
}


def first_token_s(url, model):
    """Seconds to the first text of a short prompt."""
    answer = asyncio.run(Client(url, model).generate("Say hello.", 2))
    return answer.times[0] - answer.begin


def measure(url, model, workloads, seed):
    """{workload: figures} of a server that is ready."""
    async def all_of_them():
        client = Client(url, model)
        await client.calibrate()
        return {name: await WORKLOADS[name](client, random.Random(f"{seed}/{name}")) for name in workloads}

    return asyncio.run(all_of_them())
