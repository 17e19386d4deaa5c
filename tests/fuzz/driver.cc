// SPDX-License-Identifier: Apache-2.0
// Feeds a fuzz target: every seed as it is, then random changes of the seeds until the time is
// over. Made to run under AddressSanitizer; what makes a target crash or hang is written to
// crash-<target> in the working folder, and `fuzz_<target> 0 FILE` looks at it again.
//
//   fuzz_<target> SECONDS FILE-OR-FOLDER...
#include "base/check.h"
#include "base/file.h"
#include "target.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace inferd::fuzz {
namespace {

constexpr std::size_t kMaxInputBytes = 16 << 10;
constexpr std::uint64_t kMaxSeedBytes = 1 << 20;
constexpr unsigned kMaxSecondsPerInput = 20;

std::string_view current;  // read by the signal handler
std::string crash_file;

/// Only what a signal handler may call.
extern "C" void KeepInput(int signal) {
  const int fd = open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t put = write(fd, current.data(), current.size());
    close(fd);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::uint32_t seed)
      : seeds_(std::move(seeds)), random_(seed) {}

  std::string Next() {
    std::string input = seeds_[Below(seeds_.size())];
    for (std::size_t changes = 1 + Below(6); changes > 0; --changes) {
      Change(&input);
    }
    input.resize(std::min(input.size(), kMaxInputBytes));
    return input;
  }

 private:
  std::size_t Below(std::size_t count) { return count == 0 ? 0 : random_() % count; }

  /// Some bytes of some seed.
  std::string Piece() {
    const std::string& seed = seeds_[Below(seeds_.size())];
    return seed.substr(Below(seed.size()), 1 + Below(Below(2) == 0 ? 8 : 64));
  }

  void Change(std::string* input) {
    static constexpr char kEdges[] = "\0\1\xff\x7f\x80\r\n\t \"\\{}[]:,<>%&'=09-";
    const std::size_t at = Below(input->size() + 1);
    switch (Below(7)) {
      case 0:
        if (at < input->size()) {
          (*input)[at] = static_cast<char>((*input)[at] ^ (1U << Below(8)));
        }
        break;
      case 1:
        if (at < input->size()) {
          (*input)[at] = kEdges[Below(sizeof kEdges - 1)];
        }
        break;
      case 2:
        input->insert(at, 1 + Below(4), kEdges[Below(sizeof kEdges - 1)]);
        break;
      case 3:
        input->erase(at, 1 + Below(Below(4) == 0 ? 256 : 8));
        break;
      case 4:
        input->insert(at, Piece());
        break;
      case 5: {
        const std::string piece = Piece();
        input->replace(at, piece.size(), piece);
        break;
      }
      default:
        input->insert(at, input->substr(Below(input->size() + 1), 1 + Below(128)));
    }
  }

  const std::vector<std::string> seeds_;
  std::mt19937 random_;
};

std::vector<std::string> SeedsAt(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path().string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const std::string& file : files) {
    auto bytes = base::ReadFile(file, kMaxSeedBytes);
    INFERD_CHECK(bytes.ok());
    seeds.push_back(*std::move(bytes));
  }
  return seeds;
}

void LookAt(std::string_view input) {
  current = input;
  alarm(kMaxSecondsPerInput);
  Look(input);
}

int Run(const std::string& program, int seconds, const std::vector<std::string>& paths) {
  crash_file = "crash-" + std::filesystem::path(program).filename().string();
  for (const int signal : {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE}) {
    std::signal(signal, KeepInput);
  }
  std::vector<std::string> seeds = SeedsAt(paths);
  if (seeds.empty()) {
    fmt::print(stderr, "no seeds\n");
    return 2;
  }
  for (const std::string& seed : seeds) {
    LookAt(seed);
  }
  const std::uint32_t random_seed = std::random_device()();
  Mutator mutator(std::move(seeds), random_seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::uint64_t count = 0;
  for (; std::chrono::steady_clock::now() < end; ++count) {
    const std::string input = mutator.Next();
    LookAt(input);
  }
  alarm(0);
  fmt::print("{}: {} inputs in {} s\n", program, count, seconds);
  return 0;
}

}  // namespace

std::string FileWith(const std::string& name, std::string_view bytes) {
  static std::map<std::string, int> files;
  const auto [file, made] = files.try_emplace(name, -1);
  if (made) {
    file->second = memfd_create(name.c_str(), MFD_CLOEXEC);
  }
  INFERD_CHECK(file->second >= 0 && ftruncate(file->second, 0) == 0);
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t put =
        pwrite(file->second, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    INFERD_CHECK(put > 0);
    at += static_cast<std::size_t>(put);
  }
  return fmt::format("/proc/self/fd/{}", file->second);
}

}  // namespace inferd::fuzz

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} SECONDS FILE-OR-FOLDER...\n", argv[0]);
    return 2;
  }
  return inferd::fuzz::Run(argv[0], std::atoi(argv[1]), {argv + 2, argv + argc});
}
