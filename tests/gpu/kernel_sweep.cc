// SPDX-License-Identifier: Apache-2.0
// Speed of single kernels and copies on one device. JSON lines.
//
//   kernel_sweep [--tiny] [SWEEP ...]
//
// Sweeps, in the order of value: copy small_matmul decode_attention prefill_attention large_matmul
// cublas experts w8a8 rows; all without arguments. --tiny: small shapes, one launch each, which
// shows on the emulated device that the sweep itself works. Memory traffic counts what a kernel
// must read and write; caches are kept cold (a large one may hold what one row's routings ask of
// 128 small experts). Exit status 77: no device.
#include "bench.h"

#include <string_view>

namespace inferd::gpu {
namespace {

struct Sweep {
  std::string_view name;
  Result<> (*run)(Bench&);
};
constexpr Sweep kSweeps[] = {{"copy", &SweepCopies},
                             {"small_matmul", &SweepSmallMatMul},
                             {"decode_attention", &SweepDecodeAttention},
                             {"prefill_attention", &SweepPrefillAttention},
                             {"large_matmul", &SweepLargeMatMul},
                             {"cublas", &SweepCublas},
                             {"experts", &SweepExperts},
                             {"w8a8", &SweepW8A8},
                             {"rows", &SweepRows}};

const Sweep* Find(std::string_view name) {
  for (const Sweep& sweep : kSweeps) {
    if (sweep.name == name) {
      return &sweep;
    }
  }
  return nullptr;
}

int Run(int argc, char** argv) {
  constexpr int kUsage = 2;
  constexpr int kSkipped = 77;
  bool tiny = false;
  std::vector<const Sweep*> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--tiny") {
      tiny = true;
    } else if (const Sweep* const sweep = Find(word); sweep != nullptr) {
      chosen.push_back(sweep);
    } else {
      fmt::print(stderr, "kernel_sweep: no sweep '{}'; see the head of kernel_sweep.cc\n", word);
      return kUsage;
    }
  }
  if (chosen.empty()) {
    for (const Sweep& sweep : kSweeps) {
      chosen.push_back(&sweep);
    }
  }
  const auto bench = Bench::Make(tiny);
  if (!bench.ok()) {
    fmt::print(stderr, "kernel_sweep: {}\n", bench.error().message());
    return bench.error().code() == Code::kUnavailable ? kSkipped : 1;
  }
  for (const Sweep* const sweep : chosen) {
    if (const Result<> done = sweep->run(**bench); !done.ok()) {
      fmt::print(stderr, "kernel_sweep: {}: {}\n", sweep->name, done.error().message());
      return 1;  // an error on a device is for good
    }
  }
  return 0;
}

}  // namespace
}  // namespace inferd::gpu

int main(int argc, char** argv) { return inferd::gpu::Run(argc, argv); }
