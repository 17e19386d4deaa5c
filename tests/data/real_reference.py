#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reference outputs of the two real models, by transformers on the dequantised GGUF weights.

    python real_reference.py qwen2.5-coder-0.5b gemma-3-270m [--models FOLDER]
    python real_reference.py qwen2.5-coder-0.5b --server LLAMA_SERVER [--gguf FILE]

Writes real/<model>.json (20 prompts, 64 greedy tokens each with log probabilities and top-1/top-2
gaps; log probabilities of a fixed text) and real/<model>-tokenizer.json (strings and their ids).
With --server, llama.cpp is asked for its opinion of what was written and the agreement is printed.
"""

import argparse
import hashlib
import json
import math
import subprocess
import unicodedata
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from check_twins import Call, Start
from fixtures import real_texts

HERE = Path(__file__).resolve().parent
MODELS = {
    "qwen2.5-coder-0.5b": dict(
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        bos=[],
        chat="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "gemma-3-270m": dict(
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        bos=[2],
        chat="{}",
    ),
}
GREEDY_TOKENS, TOKENIZER_CASES = 64, 200


def Sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def Encode(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def Prompts(spec: dict, tokenizer) -> list[dict]:
    texts = [spec["chat"].format(t) for t in real_texts.PROSE] + real_texts.CODE
    return [dict(text=t, ids=spec["bos"] + Encode(tokenizer, t)) for t in texts]


def GreedyBatch(model, prompts: list[dict]) -> list[list[int]]:
    """All continuations at once, left-padded; stop ids are not obeyed."""
    longest = max(len(p["ids"]) for p in prompts)
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt["ids"]) :] = torch.tensor(prompt["ids"])
        mask[row, longest - len(prompt["ids"]) :] = 1
    model.generation_config.eos_token_id = None
    out = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=GREEDY_TOKENS, pad_token_id=0
    )
    return out[:, longest:].tolist()


def LogProbs(model, ids: list[int]) -> torch.Tensor:
    return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)  # [T, vocab]


def Continue(model, prompts: list[dict]) -> None:
    """Adds greedy ids, and from one unpadded pass over each whole sequence logprobs and gaps."""
    for prompt, greedy in zip(prompts, GreedyBatch(model, prompts)):
        rows = LogProbs(model, prompt["ids"] + greedy)[len(prompt["ids"]) - 1 : -1]
        if rows.argmax(-1).tolist() != greedy:
            raise ValueError(f"padded and unpadded runs differ on {prompt['text']!r}")
        top = rows.topk(2, -1).values
        prompt["greedy"] = greedy
        prompt["logprobs"] = [round(float(v), 5) for v in top[:, 0]]
        prompt["gaps"] = [round(float(v), 5) for v in top[:, 0] - top[:, 1]]


def Perplexity(model, spec: dict, tokenizer) -> dict:
    ids = spec["bos"] + Encode(tokenizer, real_texts.PERPLEXITY_TEXT)
    rows = LogProbs(model, ids)
    chosen = rows[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return dict(
        ids=ids,
        logprobs=[round(float(v), 5) for v in chosen],
        perplexity=round(math.exp(-float(chosen.mean())), 5),
    )


def TokenizerCases(tokenizer) -> list[dict]:
    """NFC strings only: the GGUF file does not say whether its tokenizer normalises."""
    texts = real_texts.TokenizerStrings(TOKENIZER_CASES)
    texts = [t for t in texts if unicodedata.is_normalized("NFC", t)]
    return [dict(text=t, ids=Encode(tokenizer, t)) for t in texts]


def Dump(path: Path, head: dict, lists: dict[str, list]) -> None:
    """JSON with one list element a line, so that a change reads well."""
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in head.items()]
    for key, values in lists.items():
        body = ",\n".join(json.dumps(v, ensure_ascii=False) for v in values)
        lines.append(f"{json.dumps(key)}: [\n{body}\n]")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def OpinionOnPrompts(port: int, prompts: list[dict]) -> None:
    same, differences, diverged = 0, [], []
    for prompt in prompts:
        body = dict(prompt=prompt["ids"], n_predict=GREEDY_TOKENS, temperature=0)
        body |= dict(ignore_eos=False, return_tokens=True, n_probs=1, cache_prompt=False)
        answer = Call(port, "/completion", body)
        tokens, greedy = answer["tokens"], prompt["greedy"]
        first = next((i for i, (a, b) in enumerate(zip(tokens, greedy)) if a != b), None)
        same += first is None
        if first is not None:
            diverged.append((first, prompt["gaps"][first]))
        step = answer["completion_probabilities"][0]
        if first != 0 and step["id"] == tokens[0]:
            differences.append(abs(step["logprob"] - prompt["logprobs"][0]))
    print(f"llama.cpp: {same} of {len(prompts)} continuations equal")
    print(f"  first differing token and the reference's gap there: {diverged}")
    print(f"  first-token logprob difference: at most {max(differences):.4f}", flush=True)


def OpinionOnText(port: int, text: dict) -> None:
    """Means of log probabilities over the tokens that the server lists (its most likely 1000)."""
    ours, theirs = [], []
    for at in range(1, len(text["ids"])):
        body = dict(prompt=text["ids"][:at], n_predict=1, temperature=0, n_probs=1000)
        steps = Call(port, "/completion", body)["completion_probabilities"]
        listed = {t["id"]: t["logprob"] for s in steps for t in s["top_logprobs"]}
        if text["ids"][at] in listed:
            ours.append(text["logprobs"][at - 1])
            theirs.append(listed[text["ids"][at]])
    ours, theirs = (math.exp(-sum(v) / len(v)) for v in (ours, theirs))
    print(f"  perplexity where listed: {theirs:.4f}, reference {ours:.4f}", flush=True)


def SecondOpinion(server: str, name: str, file: Path) -> None:
    """Compares what was written under real/ with llama.cpp on `file`, and prints."""
    reference = json.loads((HERE / "real" / f"{name}.json").read_text(encoding="utf-8"))
    cases = json.loads((HERE / "real" / f"{name}-tokenizer.json").read_text(encoding="utf-8"))
    process, port = Start(server, file, subprocess.DEVNULL, context=1024)
    try:
        for case in cases["cases"]:
            body = dict(content=case["text"], add_special=False, parse_special=True)
            tokens = Call(port, "/tokenize", body)["tokens"]
            if tokens != case["ids"]:
                print(f"  {case['text']!r}: {tokens} instead of {case['ids']}", flush=True)
        OpinionOnText(port, reference["text"])
        OpinionOnPrompts(port, reference["prompts"])
    finally:
        process.kill()
        process.wait()


def MakeOne(name: str, folder: Path) -> None:
    spec = MODELS[name]
    file = folder / spec["file"]
    if Sha256(file) != spec["sha256"]:
        raise ValueError(f"{file}: sha256 differs from {spec['sha256']}")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=spec["file"])
    cases = TokenizerCases(tokenizer)
    prompts = Prompts(spec, tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=spec["file"],
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    with torch.no_grad():
        perplexity = Perplexity(model, spec, tokenizer)
        print(f"{name}: perplexity {perplexity['perplexity']}", flush=True)
        Continue(model, prompts)
    head = dict(model=name, file=spec["file"], sha256=spec["sha256"], reference="transformers F32")
    out = HERE / "real"
    out.mkdir(exist_ok=True)
    Dump(out / f"{name}.json", head | dict(text=perplexity), dict(prompts=prompts))
    Dump(out / f"{name}-tokenizer.json", head, dict(cases=cases))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="+", choices=list(MODELS))
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache/inferd/models")
    parser.add_argument("--server", help="llama-server: do not compute, ask its second opinion")
    parser.add_argument("--gguf", type=Path, help="with --server: another GGUF file of the model")
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name in args.names:
        if args.server:
            SecondOpinion(args.server, name, args.gguf or args.models / MODELS[name]["file"])
        else:
            MakeOne(name, args.models)


if __name__ == "__main__":
    main()
