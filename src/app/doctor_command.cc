// SPDX-License-Identifier: Apache-2.0
// `inferd doctor`: what this host offers, what is wrong with it and how to mend it.
#include "app/commands.h"
#include "leader/host_resources.h"
#include "ops/device.h"
#include "ops/nvml.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <string>
#include <vector>

namespace inferd::app {
namespace {

enum class Level { kFine, kNote, kWrong };

struct Finding {
  Level level = Level::kFine;
  std::string what;
  std::string remedy;  // of what is not fine
};

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr std::uint64_t kMinSharedBytes = 256U << 20U;
constexpr std::uint64_t kMinLockedBytes = 1ULL << 30U;
constexpr rlim_t kMinFiles = 4096;

class Report {
 public:
  void Fine(std::string what) { findings_.push_back({Level::kFine, std::move(what), ""}); }
  void Note(std::string what, std::string remedy) {
    findings_.push_back({Level::kNote, std::move(what), std::move(remedy)});
  }
  void Wrong(std::string what, std::string remedy) {
    findings_.push_back({Level::kWrong, std::move(what), std::move(remedy)});
  }
  bool Print() const {
    bool fine = true;
    for (const Finding& finding : findings_) {
      const char* const mark = finding.level == Level::kFine   ? "ok   "
                               : finding.level == Level::kNote ? "note "
                                                               : "WRONG";
      std::printf("%s  %s\n", mark, finding.what.c_str());
      if (!finding.remedy.empty()) {
        std::printf("       -> %s\n", finding.remedy.c_str());
      }
      fine = fine && finding.level != Level::kWrong;
    }
    return fine;
  }

 private:
  std::vector<Finding> findings_;
};

void CheckHost(Report* report) {
  const auto cpus = leader::AllowedCpus();
  report->Fine(fmt::format("{} CPUs, {:.1f} GiB of memory free",
                           cpus.size(),
                           static_cast<double>(leader::AvailableMemoryBytes()) / kGiB));
  if (auto device = ops::MakeCpuDevice({.threads = 1, .cpus = {}}); device.ok()) {
    report->Fine((*device)->Describe().substr(0, (*device)->Describe().find(',')));
  }
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) != 0) {
    report->Wrong("/dev/shm is not mounted",
                  "ranks of one host exchange through it: mount -t tmpfs tmpfs /dev/shm");
  } else {
    const std::uint64_t free = static_cast<std::uint64_t>(shared.f_bavail) * shared.f_frsize;
    const std::string text =
        fmt::format("/dev/shm has {:.2f} GiB free", static_cast<double>(free) / kGiB);
    if (free < kMinSharedBytes) {
      report->Wrong(text,
                    "too little for groups of ranks: give the container --shm-size=1g or "
                    "--ipc=host; in Kubernetes mount an emptyDir of medium Memory there");
    } else {
      report->Fine(text);
    }
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < kMinFiles) {
    report->Note(fmt::format("at most {} open files", files.rlim_max),
                 "every connection needs one: ulimit -n 65536");
  }
}

void CheckLocked(bool has_gpus, Report* report) {
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) != 0) {
    return;
  }
  if (locked.rlim_cur == RLIM_INFINITY) {
    report->Fine("locked memory is not limited");
    return;
  }
  const std::string text = fmt::format("locked memory is limited to {:.2f} GiB",
                                       static_cast<double>(locked.rlim_cur) / kGiB);
  if (has_gpus && locked.rlim_cur < kMinLockedBytes) {
    report->Wrong(text,
                  "InfiniBand and GPUDirect need more: ulimit -l unlimited, in a container "
                  "--ulimit memlock=-1");
  } else {
    report->Fine(text);
  }
}

void CheckGpu(const ops::GpuInfo& gpu, Report* report) {
  const std::string text =
      fmt::format("GPU {}: {}, {:.1f} of {:.1f} GiB free, {}{}{}",
                  gpu.index,
                  gpu.name,
                  static_cast<double>(gpu.free_bytes) / kGiB,
                  static_cast<double>(gpu.total_bytes) / kGiB,
                  gpu.uuid,
                  gpu.nvlinks > 0 ? fmt::format(", {} NVLinks", gpu.nvlinks) : std::string(),
                  gpu.mig ? ", cut into MIG slices" : "");
  if (gpu.remap_failed || gpu.uncorrected_errors.value_or(0) > 0) {
    report->Wrong(text + fmt::format("; {} uncorrected memory errors{}",
                                     gpu.uncorrected_errors.value_or(0),
                                     gpu.remap_failed ? ", rows that cannot be replaced" : ""),
                  "its results cannot be trusted: reset it (nvidia-smi --gpu-reset), and replace "
                  "it when errors return");
  } else if (gpu.remap_pending) {
    report->Note(text + "; bad memory rows wait to be replaced", "reset it when nothing runs");
  } else if (gpu.down_links > 0 && gpu.nvlinks > 0) {
    report->Note(text + fmt::format("; {} NVLinks are down", gpu.down_links),
                 "nvidia-smi nvlink -s; a reset or a reboot may bring them back");
  } else {
    report->Fine(text);
  }
}

std::string_view Describe(ops::GpuPath path) {
  switch (path) {
    case ops::GpuPath::kSameBoard:
      return "on one board";
    case ops::GpuPath::kOneSwitch:
      return "through one PCIe switch";
    case ops::GpuPath::kManySwitches:
      return "through PCIe switches";
    case ops::GpuPath::kHostBridge:
      return "through the PCIe host bridge";
    case ops::GpuPath::kSameNumaNode:
      return "within a NUMA node";
    case ops::GpuPath::kAcrossSockets:
      return "across sockets";
    case ops::GpuPath::kUnknown:
      break;
  }
  return "by an unknown path";
}

void CheckPairs(const ops::GpuHost& host, Report* report) {
  for (const ops::GpuPair& pair : host.pairs) {
    const std::string text = fmt::format("GPUs {} and {}: {}, peer access {}",
                                         pair.a,
                                         pair.b,
                                         Describe(pair.path),
                                         pair.peer_access ? "works" : "does not work");
    if (pair.peer_access) {
      report->Fine(text);
    } else {
      report->Note(text,
                   "groups over these two copy through the host; an IOMMU or ACS that is on "
                   "forbids peer access: see NCCL's page on troubleshooting");
    }
  }
}

void CheckGpus(Report* report) {
  const Result<ops::GpuHost> host = ops::ReadGpus();
  const Result<std::vector<std::int64_t>> cuda = ops::CudaDeviceBytes();
  if (!host.ok()) {
    report->Note(host.error().message(), "without a GPU use --device cpu");
  } else {
    report->Fine(fmt::format("NVIDIA driver {}, knows CUDA {}.{}",
                             host->driver,
                             host->cuda_version / 1000,
                             host->cuda_version % 1000 / 10));
    for (const ops::GpuInfo& gpu : host->gpus) {
      CheckGpu(gpu, report);
    }
    for (const ops::LostGpu& lost : host->lost) {
      report->Wrong(fmt::format("GPU {}: the driver counts it but cannot reach it (error {})",
                                lost.index,
                                lost.error),
                    "dmesg | grep -i xid says why; a reset or a reboot may bring it back");
    }
    CheckPairs(*host, report);
    if (host->gpus.empty() && host->lost.empty()) {
      report->Note("the driver finds no GPU", "lspci | grep -i nvidia; dmesg | grep -i nvrm");
    }
  }
  const bool has_gpus = host.ok() && !host->gpus.empty();
  if (cuda.ok()) {
    report->Fine(fmt::format("CUDA sees {} devices", cuda->size()));
  } else if (has_gpus) {
    report->Wrong(cuda.error().message(), "there are GPUs, but this process cannot use them");
  }
  const Result<std::string> nccl = ops::NcclVersion();
  if (nccl.ok()) {
    report->Fine("NCCL " + *nccl);
  } else if (has_gpus && host->gpus.size() > 1) {
    report->Note("NCCL: " + nccl.error().message(),
                 "groups of GPUs then exchange through the host's memory");
  }
  const Result<std::string> cublaslt = ops::CublasLtVersion();
  if (cublaslt.ok()) {
    report->Fine("cuBLASLt " + *cublaslt);
  } else if (has_gpus) {
    report->Note("cuBLASLt: " + cublaslt.error().message(),
                 "own kernels then do the products of long prompts too, which takes longer; "
                 "libcublas has it");
  }
  CheckLocked(has_gpus, report);
}

}  // namespace

int Doctor() {
  Report report;
  CheckHost(&report);
  CheckGpus(&report);
  return report.Print() ? 0 : 1;
}

}  // namespace inferd::app
