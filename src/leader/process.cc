// SPDX-License-Identifier: Apache-2.0
#include "leader/process.h"

#include "base/error.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace inferd::leader {
namespace {

/// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void RunChild(char* const* argv, char* const* envp, pid_t parent, int error_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);  // The parent died before the signal was set.
  }
  ::setpgid(0, 0);  // A terminal's Ctrl-C goes to the leader, which drains; workers end with it.
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(argv[0], argv, envp);
  const int code = errno;
  [[maybe_unused]] const ssize_t ignored = ::write(error_fd, &code, sizeof code);
  ::_exit(127);
}

std::vector<std::string> MergeEnvironment(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    bool replaced = false;
    for (const auto& [name, value] : added) {
      replaced = replaced || (text.starts_with(name) && text.substr(name.size()).starts_with('='));
    }
    if (!replaced) {
      merged.emplace_back(text);
    }
  }
  for (const auto& [name, value] : added) {
    merged.push_back(name + "=" + value);
  }
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<Process> Spawn(const ProcessOptions& options) {
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = MergeEnvironment(options.environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return ResourceExhausted("cannot start {}: pipe: {}", arguments[0], std::strerror(errno));
  }
  const base::UniqueFd error_read(fds[0]);
  base::UniqueFd error_write(fds[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    RunChild(argv.data(), envp.data(), parent, error_write.get());
  }
  if (pid < 0) {
    return ResourceExhausted("cannot start {}: fork: {}", arguments[0], std::strerror(errno));
  }
  error_write.Reset();
  int exec_error = 0;
  if (::read(error_read.get(), &exec_error, sizeof exec_error) == sizeof exec_error) {
    ::waitpid(pid, nullptr, 0);
    return Unavailable("cannot start {}: {}", arguments[0], std::strerror(exec_error));
  }
  Process process;
  process.pid = pid;
  process.pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd.valid()) {
    const int code = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return Unavailable("cannot watch worker {}: pidfd_open: {} (Linux 5.3 or later is needed)",
                       pid,
                       std::strerror(code));
  }
  return process;
}

bool TryWait(const Process& process, int* wait_status) {
  return ::waitpid(process.pid, wait_status, WNOHANG) == process.pid;
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return fmt::format(
        "killed by signal {} ({})", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
  }
  return fmt::format("exited with status {}", WEXITSTATUS(wait_status));
}

Result<std::string> OwnBinary() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof path)) {
    return Unavailable("cannot read /proc/self/exe: {}", std::strerror(errno));
  }
  return std::string(path, static_cast<std::size_t>(length));
}

}  // namespace inferd::leader
