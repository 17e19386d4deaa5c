// SPDX-License-Identifier: Apache-2.0
// A wait spins for a moment, then offers the core to others between looks, then sleeps: on a
// machine with fewer free cores than ranks the rank waited for may be the one that needs this very
// core. (Two ranks that share a core: 102 us per call with 50 us of pure spinning, 11 us so.)
#include "comm/shm_wait.h"

#include "base/error.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace inferd::comm {
namespace {

constexpr std::chrono::microseconds kSpin{4};
constexpr std::chrono::microseconds kSpinAndYield{50};
/// A sleep ends by itself after this long, to look at the deadline and at the peer; it doubles up
/// to the maximum.
constexpr long kFirstSleepNs = 1'000'000;
constexpr long kMaxSleepNs = 20'000'000;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::uint32_t* FutexAddress(SharedWord& word) { return reinterpret_cast<std::uint32_t*>(&word); }

void FutexWait(SharedWord& word, std::uint32_t expected, long nanoseconds) {
  const timespec timeout = {.tv_sec = 0, .tv_nsec = nanoseconds};
  // Woken, timed out, interrupted or changed: the caller looks again in every case.
  ::syscall(SYS_futex, FutexAddress(word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

bool MoreRanksThanCpus(int size) { return size > ::sysconf(_SC_NPROCESSORS_ONLN); }

}  // namespace

std::uint32_t Fault::Pack() const {
  return static_cast<std::uint32_t>(code) | static_cast<std::uint32_t>(culprit) << 8U |
         static_cast<std::uint32_t>(reporter) << 16U;
}

Fault Fault::Unpack(std::uint32_t word) {
  return {.code = static_cast<Code>(word & 0xFFU),
          .culprit = static_cast<int>(word >> 8U & 0xFFU),
          .reporter = static_cast<int>(word >> 16U & 0xFFU)};
}

void RaiseSignal(SharedWord& value, SharedWord& parked, std::uint32_t to) {
  // Sequentially consistent on both sides: either the sleeper's last look sees the value, or we see
  // the sleeper.
  value.store(to, std::memory_order_seq_cst);
  if (parked.load(std::memory_order_seq_cst) != 0) {
    WakeAll(value);
  }
}

void WakeAll(SharedWord& word) {
  ::syscall(SYS_futex, FutexAddress(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

ShmWaiter::ShmWaiter(ShmSegment& segment, int rank, int size)
    : segment_(segment),
      fault_(reinterpret_cast<Header*>(segment.data())->fault),
      rank_(rank),
      oversubscribed_(MoreRanksThanCpus(size)) {}

Error ShmWaiter::BrokenError(std::string_view doing) const {
  const Fault fault = Fault::Unpack(fault_.load(std::memory_order_acquire));
  switch (fault.code) {
    case Code::kAborted:
      return Aborted("{}: rank {} aborted the group", doing, fault.culprit);
    case Code::kDeadlineExceeded:
      return DeadlineExceeded(
          "{}: rank {} is late; rank {} gave up on it", doing, fault.culprit, fault.reporter);
    case Code::kUnavailable:
      return Unavailable("{}: rank {} is gone", doing, fault.culprit);
    case Code::kResourceExhausted:
      return ResourceExhausted("{}: rank {} has no shared memory left", doing, fault.culprit);
    default:
      return Internal("{}: rank {} is out of step; all ranks must make the same calls (seen by {})",
                      doing,
                      fault.culprit,
                      fault.reporter);
  }
}

void ShmWaiter::SetFault(const Fault& fault) {
  std::uint32_t none = 0;
  fault_.compare_exchange_strong(none, fault.Pack(), std::memory_order_acq_rel);
}

bool ShmWaiter::SpinAndYield(const SharedWord& value, std::uint32_t target) const {
  const auto reached = [&] { return Reached(value.load(std::memory_order_acquire), target); };
  const auto start = Deadline::Clock::now();
  auto now = start;
  while (!oversubscribed_ && now < start + kSpin) {
    for (int i = 0; i < 16; ++i) {
      if (reached()) {
        return true;
      }
      CpuRelax();
    }
    now = Deadline::Clock::now();
  }
  while (now < start + kSpinAndYield && !Broken()) {
    ::sched_yield();
    if (reached()) {
      return true;
    }
    now = Deadline::Clock::now();
  }
  return reached();
}

Result<> ShmWaiter::AwaitSlow(SharedWord& value,
                              SharedWord& parked,
                              std::uint32_t target,
                              int rank,
                              const Deadline& deadline,
                              std::string_view doing) {
  if (SpinAndYield(value, target)) {
    return {};
  }
  const auto reached = [&] { return Reached(value.load(std::memory_order_acquire), target); };
  for (long sleep_ns = kFirstSleepNs;; sleep_ns = std::min(2 * sleep_ns, kMaxSleepNs)) {
    parked.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t now = value.load(std::memory_order_seq_cst);
    if (!Reached(now, target) && !Broken()) {
      FutexWait(value, now, sleep_ns);
    }
    parked.fetch_sub(1, std::memory_order_relaxed);
    if (reached()) {
      return {};
    }
    if (Broken()) {
      return BrokenError(doing);
    }
    const int watched = joining_ ? 0 : rank;
    if (watched != rank_ && !segment_.Present(watched)) {
      // It may have raised the signal and left in good order between the two looks.
      if (reached()) {
        return {};
      }
      SetFault({.code = Code::kUnavailable, .culprit = watched, .reporter = rank_});
      return BrokenError(doing);
    }
    if (deadline.Passed()) {
      SetFault({.code = Code::kDeadlineExceeded, .culprit = rank, .reporter = rank_});
      return BrokenError(doing).WithContext(
          fmt::format("waited {} ms", deadline.allowed().count()));
    }
  }
}

}  // namespace inferd::comm
