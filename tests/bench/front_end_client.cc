// SPDX-License-Identifier: Apache-2.0
#include "front_end_client.h"

#include "base/clock.h"
#include "base/file.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::bench {
namespace {

constexpr std::int64_t kNsPerS = 1'000'000'000;
constexpr std::int64_t kOpenDeadlineNs = 120 * kNsPerS;
constexpr std::int64_t kWarmUpNs = kNsPerS;

std::int64_t NowNs() { return base::SteadyClock::Get().NowNs(); }

/// Times in 16 steps per power of two.
class Delays {
 public:
  void Add(std::int64_t ns) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 16));
    const auto power = static_cast<unsigned>(std::bit_width(value)) - 1;
    ++counts_[power * 16 + ((value >> (power - 4)) & 15)];
    ++total_;
  }
  double Ms(double quantile) const {
    auto left = static_cast<std::uint64_t>(static_cast<double>(total_) * quantile);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > left) {
        return static_cast<double>((16 + i % 16) << (i / 16)) / 16 / 1e6;
      }
      left -= counts_[i];
    }
    return 0;
  }

 private:
  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(64 * 16);
  std::uint64_t total_ = 0;
};

struct Stream {
  base::UniqueFd fd;
  std::int64_t tokens = 0;
  bool head = true;  // the reply's head is still to come
};

struct Counts {
  std::int64_t events = 0, tokens = 0, bytes = 0;
  Delays delays;
};

bool Dial(Stream* stream, std::uint16_t port, int number) {
  stream->fd = base::UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(stream->fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return false;
  }
  const std::string body = fmt::format(
      R"({{"model":"bench","messages":[{{"role":"user","content":"hello"}}],"stream":true,)"
      R"("max_tokens":1000000,"ignore_eos":true,"seed":{}}})",
      number);
  const std::string request = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(),
      body);
  return send(stream->fd.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(request.size());
}

/// Every event has one "data: "; every token one more blank.
void Count(
    std::string_view bytes, Stream* stream, const Shared& shared, int number, Counts* counts) {
  if (stream->head) {
    const std::size_t end = bytes.find("\r\n\r\n");
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 4);
    stream->head = false;
  }
  std::int64_t events = 0;
  for (std::size_t at = bytes.find("data: "); at != std::string_view::npos;
       at = bytes.find("data: ", at + 6)) {
    ++events;
  }
  const std::int64_t tokens = std::count(bytes.begin(), bytes.end(), ' ') - events;
  counts->events += events;
  counts->tokens += tokens;
  counts->bytes += static_cast<std::int64_t>(bytes.size());
  stream->tokens += tokens;
  if (tokens > 0) {
    const auto last = static_cast<std::size_t>((stream->tokens - 1) % kStamps);
    counts->delays.Add(NowNs() - shared.made_ns[static_cast<std::size_t>(number)][last]);
  }
}

struct ProcessState {
  std::int64_t cpu_ns = 0;
  std::int64_t resident_bytes = 0;
};

/// A file of /proc, whose size is not known before it is read.
std::string ReadProc(pid_t process, std::string_view name) {
  std::ifstream file(fmt::format("/proc/{}/{}", process, name));
  std::string text;
  std::getline(file, text);
  return text;
}

ProcessState Look(pid_t process) {
  ProcessState state;
  const std::string stat = ReadProc(process, "stat");
  long long user = 0;
  long long system = 0;
  if (const std::size_t name_end = stat.rfind(')'); name_end != std::string::npos) {
    std::sscanf(stat.c_str() + name_end + 1,
                " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld",
                &user,
                &system);
  }
  state.cpu_ns = (user + system) * (kNsPerS / sysconf(_SC_CLK_TCK));
  long long resident = 0;
  std::sscanf(ReadProc(process, "statm").c_str(), "%*d %lld", &resident);
  state.resident_bytes = resident * sysconf(_SC_PAGESIZE);
  return state;
}

/// Reads what comes until the time is up; false when a stream ended.
bool Pump(int poller,
          std::vector<Stream>* streams,
          const Shared& shared,
          std::int64_t until_ns,
          Counts* counts) {
  std::vector<epoll_event> ready(512);
  std::vector<char> buffer(64U << 10);
  while (NowNs() < until_ns) {
    const int count = epoll_wait(poller, ready.data(), static_cast<int>(ready.size()), 50);
    for (int i = 0; i < count; ++i) {
      const int number = ready[static_cast<std::size_t>(i)].data.fd;
      Stream& stream = (*streams)[static_cast<std::size_t>(number)];
      const ssize_t got = recv(stream.fd.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        fmt::print(stderr, "stream {} ended\n", number);
        return false;
      }
      Count({buffer.data(), static_cast<std::size_t>(got)}, &stream, shared, number, counts);
    }
  }
  return true;
}

}  // namespace

int RunClient(const ClientOptions& options, Shared* shared) {
  const base::UniqueFd poller(epoll_create1(EPOLL_CLOEXEC));
  std::vector<Stream> streams(static_cast<std::size_t>(options.streams));
  const ProcessState empty = Look(options.server);
  for (int i = 0; i < options.streams; ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = i;
    Stream& stream = streams[static_cast<std::size_t>(i)];
    if (!Dial(&stream, options.port, i) ||
        epoll_ctl(poller.get(), EPOLL_CTL_ADD, stream.fd.get(), &event) != 0) {
      fmt::print(stderr, "stream {} could not be opened\n", i);
      return 1;
    }
  }
  const std::int64_t deadline = NowNs() + kOpenDeadlineNs;
  while (shared->live.load() < options.streams) {
    if (NowNs() > deadline) {
      fmt::print(stderr, "only {} streams began\n", shared->live.load());
      return 1;
    }
    poll(nullptr, 0, 1);
  }
  const ProcessState waiting = Look(options.server);
  shared->go.store(true);
  Counts warm_up;
  Counts counts;
  if (!Pump(poller.get(), &streams, *shared, NowNs() + kWarmUpNs, &warm_up)) {
    return 1;
  }
  const ProcessState before = Look(options.server);
  const std::int64_t began = NowNs();
  if (!Pump(poller.get(), &streams, *shared, began + options.seconds * kNsPerS, &counts)) {
    return 1;
  }
  const double seconds = static_cast<double>(NowNs() - began) / 1e9;
  const ProcessState after = Look(options.server);
  const double cpu = static_cast<double>(after.cpu_ns - before.cpu_ns) / 1e9;
  fmt::print(
      R"({{"streams":{},"paced":{},"events_per_s":{:.0f},"events_per_cpu_s":{:.0f},)"
      R"("tokens_per_event":{:.2f},"bytes_per_event":{:.0f},"delay_p50_ms":{:.2f},)"
      R"("delay_p99_ms":{:.2f},"waiting_bytes_per_stream":{:.0f},"running_bytes_per_stream":{:.0f}}})"
      "\n",
      options.streams,
      options.paced_rate,
      static_cast<double>(counts.events) / seconds,
      static_cast<double>(counts.events) / cpu,
      static_cast<double>(counts.tokens) /
          static_cast<double>(std::max<std::int64_t>(counts.events, 1)),
      static_cast<double>(counts.bytes) /
          static_cast<double>(std::max<std::int64_t>(counts.events, 1)),
      counts.delays.Ms(0.5),
      counts.delays.Ms(0.99),
      static_cast<double>(waiting.resident_bytes - empty.resident_bytes) / options.streams,
      static_cast<double>(after.resident_bytes - empty.resident_bytes) / options.streams);
  return 0;
}

}  // namespace inferd::bench
