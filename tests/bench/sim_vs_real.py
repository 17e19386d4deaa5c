#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far `inferd plan --simulate` is from this machine.

Measures the engine with `inferd bench`, fits a device profile to it, replays a trace against a real server, simulates the same
trace with that profile, and prints both with the error. A quiet machine, please.

  tests/bench/sim_vs_real.py build/release/inferd qwen2.5-coder-0.5b --rate 2 --requests 60 --profile mine.yaml
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PROFILE = """name: mine
kind: cpu
memory_mib: 8192
bandwidth_gb_s: {bandwidth}
tflops_16bit: {flops16}
tflops_8bit: {flops8}
native_4bit: true
peer_link: {{name: shared memory, gb_s: 20, latency_us: 0.5, devices: 64}}
host_link: {{name: shared memory, gb_s: 20, latency_us: 0.5}}
network: {{name: TCP, gb_s: 1, latency_us: 25}}
efficiency: {{weights: {weights:.4f}, kv: 0.5, flops: {flops:.4f}, attention: 0.3, link: 0.5, step_us: 200, row_us: {row:.1f}}}
sources: ["fitted to inferd bench on this machine"]
"""


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def measure(options):
    """Seconds of a prompt of 512 tokens, and of a token with 1 and with 8 streams."""
    lines = [json.loads(line) for line in output(
        options.inferd, "bench", options.model, "--prompt-tokens", "512", "--streams", "1,8", "--context", "256",
        "--output-tokens", "48", "--rounds", str(options.rounds), "--json").splitlines()]
    prompt = statistics.median(512 / x["tokens_per_s"] for x in lines if x["phase"] == "prefill")
    token = {n: statistics.median(n / x["tokens_per_s"] for x in lines if x["phase"] == "decode" and x["streams"] == n) for n in (1, 8)}
    return prompt, token[1], token[8]


def predict(options, profile, prompt, output_tokens):
    path = pathlib.Path(options.profile)
    path.write_text(PROFILE.format(**profile))
    made = json.loads(output(options.inferd, "plan", options.model, "--gpus", "1xmine", "--nodes", "1x1", "--devices", str(path), "--tp", "1",
                             "--pp", "1", "--input", str(prompt), "--output", str(output_tokens), "--max-num-seqs", "64",
                             "--max-num-batched-tokens", "512", "--json"))
    return made["layouts"][0]["idle"]


def fit(options, prompt_s, one_s, eight_s):
    profile = {"bandwidth": options.bandwidth, "flops16": options.tflops / 2, "flops8": options.tflops, "weights": 0.8, "flops": 0.5,
               # What a further stream costs beside reading the weights once.
               "row": max(0.0, (eight_s - one_s) / 7 * 1e6)}
    for _ in range(12):
        idle = predict(options, profile, 512, 2)
        profile["flops"] = min(1.0, max(0.01, profile["flops"] * idle["ttft_ms"] / 1e3 / prompt_s))
        idle = predict(options, profile, 256, 48)
        profile["weights"] = min(1.0, max(0.01, profile["weights"] * idle["tpot_ms"] / 1e3 / one_s))
    return profile


class Replay:
    def __init__(self, port, model):
        self.url = f"http://127.0.0.1:{port}/v1/completions"
        self.model = model
        self.results = []

    def one(self, request, number):
        words = " ".join(f"w{(number * 7919 + i * 104729) % 9973}" for i in range(request["input_tokens"]))
        body = {"model": self.model, "prompt": words, "max_tokens": request["output_tokens"], "ignore_eos": True, "stream": True,
                "temperature": 0, "truncate_prompt_tokens": request["input_tokens"]}
        call = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        began = time.monotonic()
        times = []
        with urllib.request.urlopen(call, timeout=600) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic() - began)
        self.results.append((times[0], (times[-1] - times[0]) / max(1, request["output_tokens"] - 1)))

    def run(self, trace):
        began = time.monotonic()
        threads = []
        for number, request in enumerate(trace):
            time.sleep(max(0.0, request["arrival_s"] - (time.monotonic() - began)))
            threads.append(threading.Thread(target=self.one, args=(request, number)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def serve(options, trace):
    folder = tempfile.mkdtemp()
    port_file = os.path.join(folder, "port")
    process = subprocess.Popen([options.inferd, options.model, "--served-model-name", "m", "--port", "0", "--port-file", port_file,
                                "--grpc-port", "none", "--no-enable-prefix-caching"], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            time.sleep(0.2)
            try:
                port = int(open(port_file).read())
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5)
                break
            except (OSError, ValueError):
                continue
        replay = Replay(port, "m")
        replay.one({"input_tokens": 100, "output_tokens": 10}, 10**6)
        replay.results.clear()
        replay.run(trace)
        return replay.results
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inferd")
    parser.add_argument("model")
    parser.add_argument("--rate", default="2")
    parser.add_argument("--requests", default="60")
    parser.add_argument("--input", default="200")
    parser.add_argument("--output", default="40")
    parser.add_argument("--bandwidth", type=float, default=86, help="GB/s of the host")
    parser.add_argument("--tflops", type=float, default=2.2, help="int8 peak of the host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", default="mine.yaml")
    options = parser.parse_args()
    measured = measure(options)
    print("bench: prompt of 512 {:.0f} ms, token {:.2f} ms, of 8 streams {:.2f} ms".format(*(1e3 * x for x in measured)))
    print("profile:", fit(options, *measured))
    trace_file = options.profile + ".trace"
    output(options.inferd, "plan", "--generate-trace", trace_file, "--requests", options.requests, "--rate", options.rate,
           "--input", options.input, "--output", options.output, "--spread", "0.3")
    trace = [json.loads(line) for line in open(trace_file)]
    real = serve(options, trace)
    simulated = json.loads(output(options.inferd, "plan", options.model, "--gpus", "1xmine", "--nodes", "1x1", "--devices", options.profile,
                                  "--tp", "1", "--pp", "1", "--max-num-seqs", "64", "--max-num-batched-tokens", "512",
                                  "--simulate", trace_file, "--json"))["layouts"][0]["result"]
    for name, index, key in (("TTFT", 0, "ttft_ms"), ("TPOT", 1, "tpot_ms")):
        mean = 1e3 * statistics.mean(r[index] for r in real)
        middle = 1e3 * statistics.median(r[index] for r in real)
        print(f"{name}: real mean {mean:.1f} ms, median {middle:.1f}; simulated mean {simulated[key]['mean']:.1f} ms "
              f"({100 * (simulated[key]['mean'] / mean - 1):+.1f} %), median {simulated[key]['p50']:.1f} "
              f"({100 * (simulated[key]['p50'] / middle - 1):+.1f} %)")


if __name__ == "__main__":
    main()
