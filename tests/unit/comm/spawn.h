// SPDX-License-Identifier: Apache-2.0
// Spawn: one function run by every rank of a group, over any backend, as threads or as forked
// processes.
#pragma once

#include "base/file.h"
#include "comm/communicator.h"
#include "comm/fake_group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace inferd::comm {

enum class Backend { kFake, kShmThreads, kShmProcesses, kTcpThreads, kTcpProcesses };

inline std::string BackendName(Backend backend) {
  switch (backend) {
    case Backend::kFake:
      return "Fake";
    case Backend::kShmThreads:
      return "ShmThreads";
    case Backend::kShmProcesses:
      return "ShmProcesses";
    case Backend::kTcpThreads:
      return "TcpThreads";
    case Backend::kTcpProcesses:
      return "TcpProcesses";
  }
  return "Unknown";
}

inline bool IsProcesses(Backend backend) {
  return backend == Backend::kShmProcesses || backend == Backend::kTcpProcesses;
}

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Those whose ranks are processes; none in builds with the thread sanitizer, which does not follow
/// a fork.
inline std::vector<Backend> ProcessBackends() {
  if (kThreadSanitizer) {
    return {};
  }
  return {Backend::kShmProcesses, Backend::kTcpProcesses};
}

inline std::vector<Backend> Backends() {
  std::vector<Backend> backends = ProcessBackends();
  backends.insert(backends.end(), {Backend::kFake, Backend::kShmThreads, Backend::kTcpThreads});
  return backends;
}

struct SpawnOptions {
  Backend backend = Backend::kFake;
  int size = 2;
  std::size_t chunk_bytes = 1U << 20;
  std::chrono::milliseconds join_deadline{20'000};
  std::chrono::milliseconds call_deadline{20'000};
  std::string id = {};  // of the group; empty: a fresh one
};

/// What a rank has to say: empty when all is well.
using RankFunction = std::function<std::string(Communicator&)>;

inline constexpr std::uint64_t kSpawnGeneration = 7;

/// A group id nobody else uses.
inline std::string FreshId() {
  static std::atomic<int> counter{0};
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1)) + "-" +
         std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
}

inline std::string Say(const Result<>& result) {
  return result.ok()
             ? ""
             : std::string(CodeName(result.error().code())) + ": " + result.error().message();
}

/// Whether the pieces of `pattern` between its stars are found in `text` one after the other.
inline bool FoundIn(std::string_view text, std::string_view pattern) {
  std::size_t at = 0;
  while (!pattern.empty()) {
    const std::string_view piece = pattern.substr(0, pattern.find('*'));
    at = text.find(piece, at);
    if (at == std::string_view::npos) {
      return false;
    }
    at += piece.size();
    pattern.remove_prefix(std::min(piece.size() + 1, pattern.size()));
  }
  return true;
}

/// "" when the result failed with `code` and a message in which `pattern` is found, else what
/// happened instead.
inline std::string SayUnless(const Result<>& result, Code code, const std::string& pattern) {
  if (!result.ok() && result.error().code() == code && FoundIn(result.error().message(), pattern)) {
    return "";
  }
  return "expected " + std::string(CodeName(code)) + " with '" + pattern + "', got " +
         (result.ok() ? "success" : Say(result));
}

/// Numbers seen by all ranks, be they threads or processes.
class SharedNumbers {
 public:
  using Number = std::atomic<std::int64_t>;

  SharedNumbers() {
    void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    numbers_ = static_cast<Number*>(page == MAP_FAILED ? nullptr : page);
  }
  ~SharedNumbers() { ::munmap(numbers_, 4096); }
  SharedNumbers(const SharedNumbers&) = delete;
  SharedNumbers& operator=(const SharedNumbers&) = delete;

  Number& operator[](std::size_t i) { return numbers_[i]; }
  /// Waits until number i is at least `value`; false after ten seconds.
  bool Await(std::size_t i, std::int64_t value) {
    for (int ms = 0; ms < 10'000 && numbers_[i].load() < value; ++ms) {
      ::poll(nullptr, 0, 1);
    }
    return numbers_[i].load() >= value;
  }

 private:
  Number* numbers_;
};

/// Makes rank r's communicator; called in the rank's own thread or process.
using Joiner = std::function<Result<std::unique_ptr<Communicator>>(int rank)>;

inline Joiner MakeJoiner(const SpawnOptions& options) {
  GroupOptions group;
  group.id = options.id.empty() ? FreshId() : options.id;
  group.generation = kSpawnGeneration;
  group.size = options.size;
  group.join_deadline = options.join_deadline;
  group.call_deadline = options.call_deadline;
  group.chunk_bytes = options.chunk_bytes;
  if (options.backend == Backend::kFake) {
    FakeGroupOptions fake;
    fake.size = options.size;
    fake.call_deadline = options.call_deadline;
    auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(MakeFakeGroup(fake));
    return [ranks](int rank) -> Result<std::unique_ptr<Communicator>> {
      return std::move((*ranks)[static_cast<std::size_t>(rank)]);
    };
  }
  if (options.backend == Backend::kTcpThreads || options.backend == Backend::kTcpProcesses) {
    const auto listeners = std::make_shared<std::vector<std::unique_ptr<TcpListener>>>();
    std::vector<std::string> endpoints;
    for (int r = 0; r < options.size; ++r) {
      auto listener = ListenTcp("127.0.0.1");
      if (!listener.ok()) {
        return [error = listener.error()](int) { return error; };
      }
      endpoints.push_back((*listener)->endpoint());
      listeners->push_back(*std::move(listener));
    }
    return [group, listeners, endpoints](int rank) {
      GroupOptions own = group;
      own.rank = rank;
      return JoinTcp(own, *(*listeners)[static_cast<std::size_t>(rank)], endpoints, "test secret");
    };
  }
  return [group](int rank) {
    GroupOptions own = group;
    own.rank = rank;
    return JoinShm(own);
  };
}

inline std::string RunRank(const Joiner& join, int rank, const RankFunction& function) {
  auto communicator = join(rank);
  if (!communicator.ok()) {
    return "join: " + communicator.error().message();
  }
  if ((*communicator)->rank() != rank) {
    return "joined as another rank";
  }
  return function(**communicator);
}

inline std::vector<std::string> SpawnThreads(int size,
                                             const Joiner& join,
                                             const RankFunction& function) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back(
        [&, r] { said[static_cast<std::size_t>(r)] = RunRank(join, r, function); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return said;
}

/// Children report through a pipe; one that hangs is ended by its alarm.
inline std::vector<std::string> SpawnProcesses(int size,
                                               const Joiner& join,
                                               const RankFunction& function) {
  constexpr unsigned kAlarmSeconds = 60;
  std::vector<base::UniqueFd> pipes;
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(kAlarmSeconds);
      const std::string said = RunRank(join, r, function);
      const ssize_t written = ::write(ends[1], said.data(), said.size());
      ::_exit(written == static_cast<ssize_t>(said.size()) ? 0 : 1);
    }
    EXPECT_GT(pid, 0);
    ::close(ends[1]);
    pipes.emplace_back(ends[0]);
    children.push_back(pid);
  }
  std::vector<std::string> said;
  for (std::size_t r = 0; r < children.size(); ++r) {
    std::string text;
    std::array<char, 512> piece = {};
    for (ssize_t n = 0; (n = ::read(pipes[r].get(), piece.data(), piece.size())) > 0;) {
      text.append(piece.data(), static_cast<std::size_t>(n));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(children[r], &status, 0), children[r]);
    if (WIFSIGNALED(status)) {
      text = "signal " + std::to_string(WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
      text += " (exit status " + std::to_string(WEXITSTATUS(status)) + ")";
    }
    said.push_back(text);
  }
  return said;
}

/// Joins a fresh group and runs `function` at every rank; answers what each said. A process that
/// died says "signal N".
inline std::vector<std::string> Spawn(const SpawnOptions& options, const RankFunction& function) {
  const Joiner join = MakeJoiner(options);
  return IsProcesses(options.backend) ? SpawnProcesses(options.size, join, function)
                                      : SpawnThreads(options.size, join, function);
}

/// The same, and expects every rank to be content.
inline void SpawnAndExpect(const SpawnOptions& options, const RankFunction& function) {
  const auto said = Spawn(options, function);
  for (std::size_t r = 0; r < said.size(); ++r) {
    EXPECT_EQ(said[r], "") << "rank " << r;
  }
}

/// Waits for a peer to leave the group, ten seconds at most.
inline std::string WaitUntilAPeerIsGone(Communicator& group) {
  const auto began = std::chrono::steady_clock::now();
  while (group.CheckPeers().ok()) {
    if (std::chrono::steady_clock::now() - began > std::chrono::seconds(10)) {
      return "all peers are still there after 10 s; ";
    }
    ::poll(nullptr, 0, 1);
  }
  return "";
}

}  // namespace inferd::comm
