# SPDX-License-Identifier: Apache-2.0
"""Every command line of inferd in the manifests, the chart, the images, the integrations and the documents is one that this
build takes: parsed with --print-config, which checks names and values and starts nothing."""

import json
import re
import shlex
import subprocess

import pytest
import yaml
from dockerfile_parse import DockerfileParser

import harness
from test_manifests import VALUES, render

PAGES = [*(harness.ROOT / "docs").glob("*.md"), harness.ROOT / "README.md", harness.ROOT / "CONTRIBUTING.md"]
COMMENTED = [path for folder in ("deploy", "docker", "integrations", "configs") for path in (harness.ROOT / folder).rglob("*")
             if path.is_file() and path.suffix != ".json"]
COMMANDS = ("serve", "plan", "topo", "bench", "run-batch", "usage", "fetch", "tokenize", "doctor")


def filled(word):
    """A word of a manifest with what Kubernetes and KServe would put in."""
    word = re.sub(r"\$\((\w+)\)", lambda match: "10.0.0.7" if re.search("(^|_)(IP|ADDRESS|HOST)$", match[1]) else "1", str(word))
    return re.sub(r"\{\{.*?\}\}", "chat", word)


def of_manifest(document):
    """The command lines of a parsed file: containers with a command or an image of inferd, and lists of flags for one."""
    if isinstance(document, dict):
        args = document.get("args", document.get("flags"))
        command, image = document.get("command"), str(document.get("image", ""))
        if isinstance(command, list) and str(command[0]).endswith("/inferd"):
            yield [filled(word) for word in [*command[1:], *(args or [])]]
        elif isinstance(command, list) and image.startswith("inferd:"):
            yield [filled(word) for word in command]
        elif isinstance(args, list) and args and str(args[0]).startswith("--") and ("modelFormat" in document or "model" in document):
            yield ["serve", "--model=x", *map(filled, args)]
        for value in document.values():
            yield from of_manifest(value)
    elif isinstance(document, list):
        for value in document:
            yield from of_manifest(value)


def containers(document):
    """Those of inferd in a parsed file, with the part that a service changes in a container of its runtime or config."""
    if isinstance(document, dict):
        if str(document.get("image", "")).startswith("inferd:") or "resources" in document:
            yield document
        for value in document.values():
            yield from containers(value)
    elif isinstance(document, list):
        for value in document:
            yield from containers(value)


def check_devices(where, container):
    """Who holds a GPU uses it, and who uses one has the image that can."""
    args = " ".join(map(str, container.get("args", [])))
    variables = {entry["name"]: entry.get("value") for entry in container.get("env", [])}
    uses = "--device=cuda" in args or variables.get("INFERD_DEVICE") == "cuda"
    holds = any(name.startswith("nvidia.com/") for name in container.get("resources", {}).get("limits", {}))
    leads = "--model" in args or "image" not in container  # a worker is told its device
    assert uses == holds or not leads, f"{where}: uses a GPU: {uses}, holds one: {holds}"
    if "image" in container and (uses or holds):
        assert container["image"].endswith("-cuda"), f"{where}: {container['image']}"


def of_text(text):
    """The lines of a text, or of its comments, that begin with inferd, perhaps behind variables or in a container."""
    text = re.sub(r"\\\n\s*(#\s+)?", " ", text)
    for line in text.splitlines():
        line = re.sub(r"^\s*(#\s+)?(\$\s+)?", "", line)
        found = re.match(r"(?:[A-Z_]+=\S+ )*(?:(?:\S*/)?inferd|docker run .*? inferd(?::\w+)?) +(?=-|[a-z])(.+)", line)
        if not found or re.search(r"[.:,]$", line):  # a sentence about it
            continue
        words = shlex.split(found[1], comments=True)
        end = next((i for i, word in enumerate(words) if re.match(r"[|<>&;]", word)), len(words))
        words = [word.rstrip(";") for word in words[:end]]
        if words and (words[0] in COMMANDS or any(word.startswith("-") for word in words) or len(words) == 1):
            yield words


def collect():
    for path in sorted((harness.ROOT / "deploy").rglob("*.yaml")) + sorted((harness.ROOT / "docker").glob("*.yaml")) \
            + sorted((harness.ROOT / "integrations").rglob("*.yaml")):
        if "templates" in path.parts:
            continue  # rendered below
        for document in yaml.safe_load_all(path.read_text()):
            for words in of_manifest(document):
                yield path, words
    for path in sorted((harness.ROOT / "docker").glob("Dockerfile.*")):
        cmd = next(each["value"] for each in DockerfileParser(fileobj=open(path, "rb")).structure if each["instruction"] == "CMD")
        yield path, json.loads(cmd)
    for path in COMMENTED:
        comments = "\n".join(line for line in path.read_text().splitlines() if line.lstrip().startswith("#"))
        for words in of_text(comments):
            yield path, words
    for path in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            for words in of_text(block):
                yield path, words


LINES = list(collect())


def parse(binary, words):
    return subprocess.run([binary, *words, "--print-config"], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})


def test_they_are_found():
    """The kinds of places that have one, so that a pattern that finds nothing any more does not pass."""
    places = {path.relative_to(harness.ROOT).as_posix() for path, _ in LINES}
    assert len(LINES) >= 38, len(LINES)
    assert {"deploy/k8s/lws.yaml", "deploy/k8s/statefulset.yaml", "deploy/k8s/mig.yaml", "deploy/kserve/servingruntime.yaml",
            "deploy/kserve/clusterservingruntime.yaml", "deploy/kserve/multinode.yaml",
            "deploy/kserve/llminferenceservice.yaml", "deploy/kserve/inferenceservice.yaml", "docker/compose.yaml",
            "docker/Dockerfile.cpu", "docker/Dockerfile.cuda", "integrations/ray_serve/serve_config.yaml", "README.md",
            "docs/planning.md", "docs/security.md", "docs/batches.md", "docs/operations.md"} <= places


@pytest.mark.parametrize("path,words", LINES, ids=[path.name for path, _ in LINES])
def test_it_is_taken(path, words, binary):
    done = parse(binary, words)
    assert done.returncode == 0, f"{path}: inferd {shlex.join(words)}\n{done.stderr}"


@pytest.mark.parametrize("path", sorted((harness.DEPLOY / "k8s").glob("*.yaml")) + sorted((harness.DEPLOY / "kserve").glob("*.yaml")),
                         ids=lambda path: path.name)
def test_devices_and_images_agree(path):
    for document in yaml.safe_load_all(path.read_text()):
        for container in containers(document):
            check_devices(path.name, container)


@pytest.mark.parametrize("name", VALUES)
def test_those_of_the_chart_are_taken(name, engine, binary, tmp_path):
    documents = render(engine, tmp_path, VALUES[name])
    for container in containers(documents):
        check_devices(name, {**container, "image": container.get("image", "").replace("r.example/inferd:1", "inferd:1")})
    lines = [words for document in documents for words in of_manifest(document)]
    assert lines
    for words in lines:
        done = parse(binary, words)
        assert done.returncode == 0, f"inferd {shlex.join(words)}\n{done.stderr}"


def test_a_wrong_one_is_not(binary):
    for words in (["serve", "--model", "x", "--tensor-paralel-size", "2"], ["--model", "x", "--tp", "none"], ["plan", "x", "--gpu", "1xH100"]):
        assert parse(binary, words).returncode == 1


def test_flags_that_are_named_exist(binary):
    """`--flag` in a document, and "--flag" in a program that starts inferd, is a flag of some command."""
    named = {flag: path.name for path in (harness.ROOT / "integrations").rglob("*.py")
             for flag in re.findall(r'"(--[a-z-]+)"', path.read_text())}
    assert len(named) >= 6
    for path in PAGES:
        if path.name == "CONTRIBUTING.md":
            continue  # of ./dev
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for flag in re.findall(r"`(--[a-z][a-z0-9_.-]*)", prose):
            named.setdefault(flag, path.name)
    assert len(named) > 40
    unknown = {flag: page for flag, page in named.items()
               if all("unknown flag" in parse(binary, [command, flag]).stderr for command in COMMANDS)}
    assert not unknown
