// SPDX-License-Identifier: Apache-2.0
// The reading end of front_end_bench: many SSE streams over one epoll loop.
#pragma once

#include "front_end_source.h"

#include <sys/types.h>

#include <cstdint>

namespace inferd::bench {

struct ClientOptions {
  std::uint16_t port = 0;
  int streams = 0;
  int seconds = 5;
  std::int64_t paced_rate = 0;
  pid_t server = 0;
};

/// Opens the streams, measures for the given time, prints one JSON line. Non-zero: something broke.
int RunClient(const ClientOptions& options, Shared* shared);

}  // namespace inferd::bench
