# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI's continuous-batching pipeline under the closed loops of load_client.py, in process: it has no HTTP server on PyPI.
Runs in the peers' Python environment. Prints one JSON object {workload: figures}.

  openvino_driver.py FOLDER THREADS SEED WORKLOAD...
"""
import json
import os
import random
import sys
import time

import load_client
import openvino_genai
from load_client import Answer
from servers import memory_mib


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
        """A chat prompt of exactly about `tokens` tokens: words are one token each in this vocabulary, the rest is fixed."""
        text = f"{rng.randrange(10**6)} {' '.join(rng.choice(load_client.WORDS) for _ in range(tokens - 38))}. Tell a long story."
        return self._tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)

    def submit(self, text, new_tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos, config.do_sample = True, False
        answer = Answer(time.perf_counter())
        answer.prompt_tokens = self._tokenizer.encode(text).input_ids.shape[1]
        self._next_id += 1
        self._live.append((answer, self._pipeline.add_request(self._next_id, text, config)))
        return answer

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

    def long_prefill(self, rng, streams=4, long_tokens=2048):
        running = [self.submit(self.chat(rng, 64), 400) for _ in range(streams)]
        while min(len(answer.times) for answer in running) < 60:
            self.step()
        begin = time.perf_counter()
        long = self.submit(self.chat(rng, long_tokens), 8)
        while self._live:
            self.step()
        pairs = [pair for answer in running for pair in zip(answer.times, answer.times[1:])]
        before = [b - a for a, b in pairs if b <= begin]
        during = [b - a for a, b in pairs if b > begin and a < long.times[0]]
        return {"long_ttft_ms": (long.times[0] - begin) * 1e3, "idle_gap_p50_ms": load_client.percentile(before, 0.5) * 1e3,
                "gap_p50_ms": load_client.percentile(during, 0.5) * 1e3, "gap_max_ms": max(during) * 1e3}


def main():
    folder, threads, seed, *workloads = sys.argv[1:]
    begin = time.perf_counter()
    pipeline = Pipeline(folder, int(threads))
    result = {"start_s": time.perf_counter() - begin}
    pipeline.plain(random.Random(0), 1, 64)
    for name in workloads:
        rng = random.Random(f"{seed}/{name}")
        if name == "long_prefill":
            result[name] = pipeline.long_prefill(rng)
        else:
            streams, prompt_tokens = (int(word[1:]) for word in name.split("_"))
            result[name] = pipeline.plain(rng, streams, prompt_tokens)
    result["memory_mib"] = memory_mib(os.getpid())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
