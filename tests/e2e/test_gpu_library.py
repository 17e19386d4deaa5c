# SPDX-License-Identifier: Apache-2.0
"""What is read through NVIDIA's management library, with a library of the test's own in its place: four devices, two pairs by NVLink."""

import json
import os
import shutil
import subprocess

import pytest

LIBRARY = r"""
#include <stdlib.h>
#include <string.h>
typedef struct gpu { int index; } gpu;
static gpu gpus[4] = {{0}, {1}, {2}, {3}};
static int is(const char* what, gpu* device) {
  const char* text = getenv(what);
  return text != NULL && strchr(text, '0' + device->index) != NULL;
}
int nvmlInit_v2(void) { return getenv("FAKE_NO_DRIVER") != NULL ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { strncpy(text, "580.65.06", size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = getenv("FAKE_NO_GPU") != NULL ? 0 : 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu** device) {
  if (index >= 4) return 2;
  *device = &gpus[index];
  return is("FAKE_LOST", *device) ? 15 : 0;
}
int nvmlDeviceGetName(gpu* device, char* text, unsigned size) { strncpy(text, "NVIDIA Test 80GB", size); return 0; }
int nvmlDeviceGetUUID(gpu* device, char* text, unsigned size) {
  strncpy(text, "GPU-00000000-0000-0000-0000-00000000000", size);
  text[strlen(text) + 1] = 0;
  text[strlen(text)] = (char)('0' + device->index);
  return 0;
}
int nvmlDeviceGetMemoryInfo(gpu* device, unsigned long long* memory) {
  memory[0] = 80ULL << 30; memory[1] = (70ULL + device->index) << 30; memory[2] = memory[0] - memory[1];
  return 0;
}
int nvmlDeviceGetMigMode(gpu* device, unsigned* current, unsigned* pending) {
  *current = *pending = (unsigned)is("FAKE_MIG", device);
  return 0;
}
int nvmlDeviceGetNvLinkState(gpu* device, unsigned link, int* up) {
  if (link >= 12) return 2;
  *up = !(link == 0 && is("FAKE_LINK_DOWN", device));
  return 0;
}
int nvmlDeviceGetTotalEccErrors(gpu* device, int kind, int counter, unsigned long long* errors) {
  if (kind != 1 || counter != 0) return 2;
  *errors = is("FAKE_ECC", device) ? 3 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(gpu* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
  *corrected = *uncorrected = 0;
  *pending = (unsigned)is("FAKE_REMAP", device);
  *failed = (unsigned)is("FAKE_REMAP_FAILED", device);
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(gpu* a, gpu* b, int* level) {
  *level = a->index / 2 == b->index / 2 ? 10 : 50;
  return 0;
}
int nvmlDeviceGetP2PStatus(gpu* a, gpu* b, int what, int* status) {
  const int near = a->index / 2 == b->index / 2;
  *status = what == 2 ? !near : getenv("FAKE_NO_PEERS") != NULL && !near;
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(folder / "nvml.c")], check=True)
    (folder / "cublas.c").write_text("unsigned long cublasLtGetVersion(void) { return 120804; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "libcublasLt.so.12"), str(folder / "cublas.c")], check=True)
    return folder


@pytest.fixture
def ask(inferd, library):
    def run(*words, **faults):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("INFERD_", "FAKE_"))}
        environment.update(faults, LD_LIBRARY_PATH=str(library))
        return subprocess.run([inferd, *words], capture_output=True, text=True, timeout=30, env=environment)

    return run


def gpu_lines(report):
    return {line.split(":")[0].split()[-1]: line for line in report.stdout.splitlines() if " GPU " in line}


def test_topo_reads_links_and_domains(ask):
    topology = json.loads(ask("topo", "--json").stdout)
    assert topology["domains"] == [[0, 1], [2, 3]]
    table = ask("topo").stdout
    assert "NV12" in table and "SYS" in table
    down = ask("topo", FAKE_LINK_DOWN="0").stdout
    assert "NV11" in down


def test_topo_without_a_driver_shows_the_cores(ask):
    for fault in ("FAKE_NO_DRIVER", "FAKE_NO_GPU"):
        table = ask("topo", **{fault: "1"}).stdout
        assert "core0" in table and "GPU0" not in table


def test_doctor_tells_names_memory_and_links(ask):
    report = ask("doctor")
    assert "ok     NVIDIA driver 580.65.06, knows CUDA 13.0" in report.stdout
    lines = gpu_lines(report)
    assert set(lines) == {"0", "1", "2", "3"}
    assert "NVIDIA Test 80GB, 72.0 of 80.0 GiB free, GPU-00000000-0000-0000-0000-000000000002, 12 NVLinks" in lines["2"]
    assert all(line.startswith("ok") for line in lines.values())
    assert "GPUs 0 and 1: through one PCIe switch, peer access works" in report.stdout
    assert "GPUs 1 and 2: across sockets, peer access works" in report.stdout
    assert "ok     cuBLASLt 12.8.4" in report.stdout


@pytest.mark.parametrize("fault, mark, says", [
    ("FAKE_ECC", "WRONG", "3 uncorrected memory errors"),
    ("FAKE_REMAP_FAILED", "WRONG", "rows that cannot be replaced"),
    ("FAKE_REMAP", "note", "bad memory rows wait to be replaced"),
    ("FAKE_LINK_DOWN", "note", "1 NVLinks are down"),
    ("FAKE_MIG", "ok", "cut into MIG slices"),
])
def test_doctor_finds_what_is_wrong_with_one_device(ask, fault, mark, says):
    report = ask("doctor", **{fault: "2"})
    lines = gpu_lines(report)
    assert lines["2"].startswith(mark) and says in lines["2"], report.stdout
    assert all(lines[other].startswith("ok") and says not in lines[other] for other in "013")
    if mark == "WRONG":
        assert report.returncode == 1


def test_doctor_finds_lost_devices_and_peers(ask):
    lost = ask("doctor", FAKE_LOST="1")
    assert set(gpu_lines(lost)) == {"0", "1", "2", "3"} and lost.returncode == 1
    assert gpu_lines(lost)["1"].startswith("WRONG  GPU 1: the driver counts it but cannot reach it (error 15)")
    no_peers = ask("doctor", FAKE_NO_PEERS="1").stdout
    assert "note   GPUs 1 and 2: across sockets, peer access does not work" in no_peers
    assert "ok     GPUs 0 and 1" in no_peers
    assert "NVML does not start (error 9)" in ask("doctor", FAKE_NO_DRIVER="1").stdout
    assert "the driver finds no GPU" in ask("doctor", FAKE_NO_GPU="1").stdout
