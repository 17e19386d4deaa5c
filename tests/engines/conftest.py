# SPDX-License-Identifier: Apache-2.0
"""Real engines before the real server. `./dev test cluster-engines`; an engine that is not in the cache skips its tests."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))

import harness  # noqa: E402
import toy_model  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--inferd", required=True, help="path of the binary")
    parser.addoption("--whole-images", action="store_true", help="compile inside the played images too (half an hour of two cores)")


@pytest.fixture(scope="session")
def binary(request):
    return pathlib.Path(request.config.getoption("--inferd")).resolve()


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    toy_model.make(folder)
    return folder


@pytest.fixture
def spawn(tmp_path):
    """spawn(command): a Process that ends with the test."""
    processes = []

    def run(command, **options):
        processes.append(harness.Process(tmp_path, command, **options))
        return processes[-1]

    yield run
    for process in reversed(processes):
        process.end(5)


@pytest.fixture
def inferd(tmp_path, binary, toy):
    """inferd(*flags, name=..., model=...): a ready server that ends with the test."""
    servers = []

    def run(*flags, **options):
        options.setdefault("name", f"inferd{len(servers)}")
        servers.append(harness.Inferd(tmp_path, binary, options.pop("model", toy), *flags, **options))
        return servers[-1].ready()

    yield run
    for server in servers:
        server.kill()


@pytest.fixture
def engine():
    """engine(name): the folder of an engine from the cache, or a skip that says how to get it."""
    def find(name):
        folder = harness.ENGINES / name
        if not (folder / "recipe").exists():
            pytest.skip(f"{name} is not in the cache; `./dev engines {name}` gets it")
        return folder

    return find


@pytest.fixture(scope="session")
def shared():
    """The project's data folder beside the checkout: custom resource definitions that no registry carries."""
    for folder in (harness.ROOT.parent / "shared", harness.ROOT.parent.parent / "shared"):
        if (folder / "crds/crds.tar.xz").exists():
            return folder
    pytest.skip("../shared/crds is not beside the checkout")
