# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI's continuous-batching pipeline under the workloads of load_client.py, in process: it has no HTTP server on PyPI.
Runs in the peers' Python environment. Prints one JSON object {workload: figures}. prefill_N and decode_N are of random ids, as those of
`inferd bench` are; the closed loops of chats.

  openvino_driver.py FOLDER THREADS SEED WORKLOAD...
"""
import json
import os
import random
import statistics
import sys
import time

import load_client
import numpy
import openvino
import openvino_genai
from load_client import Answer
from servers import memory_mib


def words(rng, count):
    return " ".join(rng.choice(load_client.WORDS) for _ in range(count))


def as_chat(tokenizer, text):
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)


class Pipeline:
    def __init__(self, folder, threads):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = 16
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._next_id = 0
        self._live = []

    def chat(self, rng, tokens):
        """A chat prompt of about `tokens` tokens: words are one token each in this vocabulary, the rest is fixed."""
        return as_chat(self._tokenizer, f"{rng.randrange(10**6)} {words(rng, tokens - 38)}. Tell a long story.")

    def ids(self, rng, tokens):
        return openvino.Tensor(numpy.array([[rng.randrange(1000, 20000) for _ in range(tokens)]], dtype=numpy.int64))

    def submit(self, prompt, new_tokens):
        """`prompt`: a text, or a tensor of ids."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos, config.do_sample = True, False
        answer = Answer(time.perf_counter())
        ids = self._tokenizer.encode(prompt).input_ids if isinstance(prompt, str) else prompt
        answer.prompt_tokens = ids.shape[1]
        self._next_id += 1
        self._live.append((answer, self._pipeline.add_request(self._next_id, prompt, config)))
        return answer

    def drain(self):
        while self._live:
            self.step()

    def step(self):
        """Returns the answers that it ended."""
        self._pipeline.step()
        now, done = time.perf_counter(), []
        for entry in list(self._live):
            answer, handle = entry
            while handle.can_read():
                for output in handle.read().values():
                    answer.times += [now] * len(output.generated_ids)
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING and not handle.can_read():
                answer.tokens = len(answer.times)
                self._live.remove(entry)
                done.append(answer)
        return done

    def closed_loop(self, streams, prompts, new_tokens=64):
        left, answers, begin = list(prompts), [], time.perf_counter()
        while left or self._live:
            while left and len(self._live) < streams:
                self.submit(left.pop(), new_tokens)
            answers += self.step()
        return load_client.figures(answers, time.perf_counter() - begin)

    def plain(self, rng, streams, prompt_tokens):
        return self.closed_loop(streams, [self.chat(rng, prompt_tokens) for _ in range(max(4, 2 * streams))])

    def prefill(self, rng, tokens, tries=2):
        answers = []
        for _ in range(tries):
            answers.append(self.submit(self.ids(rng, tokens), 1))
            self.drain()
        return {"tok_s": statistics.median(tokens / (a.times[0] - a.begin) for a in answers)}

    def decode(self, rng, streams, context=128, new_tokens=96):
        answers = [self.submit(self.ids(rng, context), new_tokens) for _ in range(streams)]
        self.drain()
        return {"tok_s": load_client.steady_rate(answers)}

    def shared_prefix(self, rng, streams=8, prefix_tokens=400, new_tokens=64):
        prefix = f"{rng.randrange(10**6)} {words(rng, prefix_tokens)}"
        prompts = [as_chat(self._tokenizer, f"{prefix}. {words(rng, 40)}. Tell a long story.") for _ in range(2 * streams + 1)]
        cold = self.submit(prompts.pop(), new_tokens)
        self.drain()
        return {**self.closed_loop(streams, prompts, new_tokens), "cold_ttft_ms": (cold.times[0] - cold.begin) * 1e3}

    def long_prefill(self, rng, streams=4, long_tokens=2048):
        running = [self.submit(self.chat(rng, 64), 400) for _ in range(streams)]
        while min(len(answer.times) for answer in running) < 60:
            self.step()
        begin = time.perf_counter()
        long = self.submit(self.chat(rng, long_tokens), 8)
        self.drain()
        pairs = [pair for answer in running for pair in zip(answer.times, answer.times[1:])]
        before = [b - a for a, b in pairs if b <= begin]
        during = [b - a for a, b in pairs if b > begin and a < long.times[0]]
        return {"long_ttft_ms": (long.times[0] - begin) * 1e3, "idle_gap_p50_ms": load_client.percentile(before, 0.5) * 1e3,
                "gap_p50_ms": load_client.percentile(during, 0.5) * 1e3, "gap_max_ms": max(during) * 1e3}

    def measure(self, name, rng):
        if name in ("shared_prefix", "long_prefill"):
            return getattr(self, name)(rng)
        kind, number = name.split("_")
        if kind in ("prefill", "decode"):
            return getattr(self, kind)(rng, int(number))
        return self.plain(rng, int(kind[1:]), int(number[1:]))  # as c16_p128


def main():
    folder, threads, seed, *workloads = sys.argv[1:]
    begin = time.perf_counter()
    pipeline = Pipeline(folder, int(threads))
    result = {"start_s": time.perf_counter() - begin}
    pipeline.plain(random.Random(0), 1, 64)
    for name in workloads:
        result[name] = pipeline.measure(name, random.Random(f"{seed}/{name}"))
    result["memory_mib"] = memory_mib(os.getpid())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
