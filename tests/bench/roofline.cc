// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most: memory read, fp32 fma, bf16 and int8 dot products, for 1 thread
// and for all asked for.
//
//   roofline [threads] [runs] [MiB]      prints one JSON object; absent instructions are left out
//
// The loops are assembly, so that no compiler has a say in the figures. Medians of `runs` windows.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

#define EACH12(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define REGS                                                                               \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"
#define ZERO(i) "vpxor %%ymm" #i ",%%ymm" #i ",%%ymm" #i "\n"
#define FMA512(i) "vfmadd231ps %%zmm14,%%zmm15,%%zmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #i "\n"
#define BF16(i) "vdpbf16ps %%zmm14,%%zmm15,%%zmm" #i "\n"
#define VNNI(i) "vpdpbusd %%zmm14,%%zmm15,%%zmm" #i "\n"
#define AHEAD(i) "prefetcht0 8192+" #i "*64(%0)\n"
#define LOAD(i) \
  "vpor " #i "*64(%0),%%ymm" #i ",%%ymm" #i "\n vpor " #i "*64+32(%0),%%ymm" #i ",%%ymm" #i "\n"
#define SPIN(Name, OP)                                                                \
  void Name(long reps) {                                                              \
    asm volatile(EACH12(ZERO) ZERO(14) ZERO(15) "1:\n" EACH12(OP) "dec %0\n jnz 1b\n" \
                 : "+r"(reps)                                                         \
                 :                                                                    \
                 : REGS);                                                             \
  }
SPIN(SpinFma512, FMA512)
SPIN(SpinFma256, FMA256)
SPIN(SpinBf16, BF16)
SPIN(SpinVnni, VNNI)

// With a software prefetch 8 KiB ahead: up to a fifth above what the hardware prefetchers reach
// alone.
void ReadBytes(const char* p, std::size_t bytes) {
  std::size_t n = bytes / 768;
  asm volatile("1:\n" EACH12(AHEAD) EACH12(LOAD) "add $768,%0\n dec %1\n jnz 1b\n"
               : "+r"(p), "+r"(n)
               :
               : REGS);
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PinToAllowed(int index) {
  cpu_set_t all;
  cpu_set_t one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof all, &all) != 0) {
    return;
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &all) && index-- == 0) {
      CPU_SET(static_cast<std::size_t>(cpu), &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      return;
    }
  }
}

// Median over `runs` of amount / seconds, the threads started together by a spin barrier.
double Median(int threads, int runs, double amount, const std::function<void(int)>& body) {
  std::vector<double> rates;
  for (int run = 0; run < runs; ++run) {
    std::atomic<int> ready{0};
    std::vector<double> start(static_cast<std::size_t>(threads));
    std::vector<double> stop(static_cast<std::size_t>(threads));
    std::vector<std::thread> team;
    for (int i = 0; i < threads; ++i) {
      team.emplace_back([&, i] {
        PinToAllowed(i);
        ready.fetch_add(1);
        while (ready.load() < threads) {
        }
        start[static_cast<std::size_t>(i)] = Seconds();
        body(i);
        stop[static_cast<std::size_t>(i)] = Seconds();
      });
    }
    for (std::thread& thread : team) {
      thread.join();
    }
    const double seconds =
        *std::max_element(stop.begin(), stop.end()) - *std::min_element(start.begin(), start.end());
    rates.push_back(amount / seconds / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

std::string Measure(int threads, int runs, char* buffer, std::size_t bytes) {
  constexpr long kReps = 4000000;
  const auto spin = [&](double per_instruction, void (*body)(long)) {
    return Median(
        threads, runs, threads * 12.0 * per_instruction * kReps, [&](int) { body(kReps); });
  };
  const std::size_t share = bytes / static_cast<std::size_t>(threads) / 768 * 768;
  const double read = Median(threads, runs, static_cast<double>(share) * threads, [&](int i) {
    ReadBytes(buffer + share * static_cast<std::size_t>(i), share);
  });
  const bool avx512 = __builtin_cpu_supports("avx512f");
  char line[256];
  std::snprintf(line, sizeof line, "{\"threads\": %d, \"read_gb_per_s\": %.2f", threads, read);
  std::string out = line;
  const auto add = [&](const char* name, double value) {
    std::snprintf(line, sizeof line, ", \"%s\": %.1f", name, value);
    out += line;
  };
  add("fp32_gflop_per_s", avx512 ? spin(32, SpinFma512) : spin(16, SpinFma256));
  if (__builtin_cpu_supports("avx512bf16")) {
    add("bf16_gflop_per_s", spin(64, SpinBf16));
  }
  if (__builtin_cpu_supports("avx512vnni")) {
    add("int8_gop_per_s", spin(128, SpinVnni));
  }
  return out + "}";
}

}  // namespace

int main(int argc, char** argv) {
  const int threads =
      argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  const int runs = argc > 2 ? std::atoi(argv[2]) : 7;
  const std::size_t mib = argc > 3 ? static_cast<std::size_t>(std::atoll(argv[3])) : 512;
  if (threads < 1 || threads > 256 || runs < 1 || runs > 1000 || mib < 64 || mib > 1u << 20) {
    std::fprintf(stderr, "usage: roofline [threads 1..256] [runs 1..1000] [MiB 64..1048576]\n");
    return 2;
  }
  if (!__builtin_cpu_supports("fma")) {
    std::fprintf(stderr, "roofline needs a CPU with AVX2 and FMA\n");
    return 1;
  }
  const std::size_t bytes = mib << 20;
  void* buffer =
      mmap(nullptr, bytes + (1 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) {
    std::perror("roofline: buffer");
    return 1;
  }
  madvise(buffer, bytes, MADV_HUGEPAGE);
  for (std::size_t i = 0; i < bytes; i += 64) {
    static_cast<char*>(buffer)[i] = static_cast<char>(i >> 6);
  }
  std::string rows = Measure(1, runs, static_cast<char*>(buffer), bytes);
  if (threads > 1) {
    rows += ",\n  " + Measure(threads, runs, static_cast<char*>(buffer), bytes);
  }
  std::printf("{\"roofline\": [\n  %s\n]}\n", rows.c_str());
  munmap(buffer, bytes + (1 << 20));
  return 0;
}
