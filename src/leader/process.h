// SPDX-License-Identifier: Apache-2.0
// Child processes on this host: started with a parent-death signal, watched through pidfds, killed
// by pid.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace inferd::leader {

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the binary
  std::vector<std::pair<std::string, std::string>> environment;  // added to our own
};

struct Process {
  pid_t pid = -1;
  base::UniqueFd pidfd;  // readable once the process has ended
};

/// fork and exec. The child gets SIGKILL when the calling *thread* ends, so call from a thread that
/// lives as long as the server.
Result<Process> Spawn(const ProcessOptions& options);

/// Non-blocking; true and the wait status when the process has ended (and is reaped).
bool TryWait(const Process& process, int* wait_status);

/// "killed by signal 9" or "exited with status 1".
std::string DescribeExit(int wait_status);

/// Path of the running binary.
Result<std::string> OwnBinary();

}  // namespace inferd::leader
