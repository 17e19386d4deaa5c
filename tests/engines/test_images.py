# SPDX-License-Identifier: Apache-2.0
"""docker/Dockerfile.*: linted, and every step carried out in a clean root (image_player.py), since no container engine is
to be had here. The result runs as its image says. Compiling in there takes --whole-images; else this host's build stands in."""

import json
import os
import pathlib
import re
import signal
import subprocess

import pytest
from dockerfile_parse import DockerfileParser

import harness
import image_player
from harness import FOX, chat_body, eventually

FILES = sorted((harness.ROOT / "docker").glob("Dockerfile.*"))
NAMES = [path.name for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_lint(path):
    """What hadolint says of it, all but pinned package versions: Debian keeps one version, and its security fixes are wanted."""
    done = subprocess.run([harness.VENV / "hadolint", "--no-color", "--ignore", "DL3008", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_rules_of_ours(path):
    """What no linter knows: pinned bases, a numeric user as Kubernetes wants it, a probe, no secrets, sources that are there."""
    steps = [(each["instruction"], each["value"]) for each in DockerfileParser(fileobj=open(path, "rb")).structure]
    named = set()
    for value in (value for name, value in steps if name == "FROM"):
        image, _, alias = value.partition(" AS ")
        assert re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]*\d[\w.-]*", image), image
        named.add(alias)
    last = [name for name, _ in steps].index("FROM", 1)
    final = dict(reversed(steps[last:]))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final["USER"]) and "--interval=" in final["HEALTHCHECK"]
    assert all(isinstance(json.loads(final[name]), list) for name in ("ENTRYPOINT", "CMD"))
    assert [name for name, _ in steps[last:]].index("USER") > max(i for i, (name, _) in enumerate(steps[last:]) if name in ("RUN", "COPY"))
    for name, value in steps:
        assert name not in ("ADD", "ARG"), f"{name} {value}"
        assert not re.search(r"(?i)(password|secret|token|api[_-]?key)\s*=", value), value
        if "apt-get install" in value or "dev setup" in value:
            assert value.rstrip().endswith("rm -rf /var/lib/apt/lists/*") or "&& rm -rf /var/lib/apt/lists/* " in value, value
        if name == "RUN":
            assert not re.search(r"(curl|wget)\s.*\|\s*(ba)?sh|https?://", value), value
        if name == "COPY" and not value.startswith("--from="):
            for source in value.split()[:-1]:
                assert (harness.ROOT / source).exists(), source
        if name == "COPY" and value.startswith("--from="):
            assert value.split()[0].removeprefix("--from=") in named


def test_context_is_small():
    names = image_player.context_files()
    assert {"dev", "CMakeLists.txt", "src/text/rs/Cargo.lock", "tools/cuda_toolkit.py"} <= set(names)
    assert not [name for name in names if name.split("/")[0] in (".git", "build", "tests")]
    assert sum((harness.ROOT / name).stat().st_size for name in names) < 16 << 20


@pytest.fixture(scope="module")
def player(request, binary):
    """One for all files: they share their first layers."""
    root = harness.ENGINES / "bookworm"
    if not (root / "recipe").exists():
        pytest.skip("bookworm is not in the cache; `./dev engines bookworm` gets it")
    try:
        image_player.check_host()
    except image_player.Unavailable as reason:
        pytest.skip(str(reason))
    whole = request.config.getoption("--whole-images")
    if not whole and 'VERSION_ID="12"' not in pathlib.Path("/etc/os-release").read_text():
        pytest.skip("the program built here is not for Debian 12; --whole-images builds one that is")
    return image_player.Player(root, binary, whole)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_it_builds_and_runs(path, player, toy, tmp_path):
    """Every step ends well; the image starts two ranks without privileges on a read-only root, gets healthy, answers, drains."""
    try:
        stages = player.play(path)
    except image_player.Unavailable as reason:
        pytest.skip(str(reason))
    assert stages["build"].steps, "nothing was run"
    final = stages["final"]
    for stage in stages.values():
        left = " (the program was not compiled)" if stage.left_out else ""
        print(f"{path.name} {stage.name or 'final'}: {stage.size() / 1e6:.0f} MB over {stage.image}{left}")
        for step, seconds in stage.steps:
            print(f"  {seconds:5.1f} s  {step[:100]}")
    cuda = path.suffix == ".cuda"
    assert final.size() < (350e6 if cuda else 120e6)
    for folder in ("var/lib/apt/lists", "var/cache/apt/archives"):
        assert not [file for layer in final.layers[1:] for file in (layer / folder).rglob("*_*") if file.is_file()]
    container = image_player.Container(final, tmp_path / "container", toy, [
        "--model", f"/models/{toy.name}", "--served-model-name", "chat", "--tp", "2", "--threads", "1", "--kv-cache-bytes", 64 << 20])
    try:
        eventually(container.healthy, 60, 0.2, container.log)
        reply = container.ask("curl", "-fsS", "http://127.0.0.1:8000/v1/chat/completions", "-H", "Content-Type: application/json",
                              "-d", json.dumps(chat_body()))
        assert reply.returncode == 0, reply.stderr + container.log()
        assert json.loads(reply.stdout)["choices"][0]["message"]["content"] == FOX
        facts = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{container.pid()}/status").read_text().splitlines() if ":\t" in line)
        assert set(facts["Uid"].split()) == set(facts["Gid"].split()) == {str(container.identity)}
        assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0 and facts["NoNewPrivs"] == "1"
        assert "Read-only file system" in container.ask("touch", "/usr/x", wrap=False).stderr
        assert container.ask("touch", "/models/x", "/tmp/x").returncode == 0
        assert ("ok     NCCL 2." in container.ask("inferd", "doctor").stdout) == cuda
        os.kill(container.pid(), signal.SIGTERM)
        assert container.process.wait(40) == 0, container.log()
    finally:
        container.end()
