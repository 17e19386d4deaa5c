// SPDX-License-Identifier: Apache-2.0
// An emulated device that does not come to the end of its work, and where to test one.
#pragma once

#include "kernels/simt/runtime_api.h"
#include "ops/device.h"
#include "unit/comm/spawn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>

namespace inferd::comm {

/// Work of the device's stream that lasts until Release.
class Blocked {
 public:
  explicit Blocked(ops::Device& device) {
    const auto stream = static_cast<cudaStream_t>(device.queue()->stream());
    EXPECT_EQ(simt::EnqueueUntil(stream, [done = done_] { return done->load(); }), cudaSuccess);
  }
  ~Blocked() { Release(); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  void Release() { *done_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> done_ = std::make_shared<std::atomic<bool>>(false);
};

/// A process in which a device was given up is good for nothing else. Threads must have ended. Not
/// under the thread sanitizer, which does not follow a forked process's threads.
inline void InAProcessOfItsOwn(const std::function<void()>& body) {
  if (kThreadSanitizer) {
    return;
  }
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    body();
    std::fflush(stdout);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "as waitpid gives it";
}

}  // namespace inferd::comm
