// SPDX-License-Identifier: Apache-2.0
// Every collective of every backend against the plain computation, over sizes, lengths and seeds.
#include "unit/comm/spawn.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace inferd::comm {
namespace {

/// One table of random floats; what a rank holds in a call is a window of it that depends on both.
/// Sums of such values depend on the order of the additions, and filling and comparing windows is
/// cheap under sanitizers too.
constexpr std::size_t kMostFloats = 800'000;
constexpr std::size_t kWindows = 4096;

const std::vector<float>& Table() {
  static const std::vector<float> table = [] {
    std::mt19937 random(1);
    std::vector<float> values(kMostFloats + kWindows);
    for (float& value : values) {
      const std::uint32_t bits = random();
      value = (static_cast<float>(bits & 0xFFFFFFU) / static_cast<float>(1U << 24U) - 0.5F) *
              static_cast<float>(1U << (bits >> 28U));
    }
    return values;
  }();
  return table;
}

const float* FloatsOf(int rank, std::uint64_t call) {
  const std::uint64_t x = (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15ULL +
                          (call + 1) * 0xBF58476D1CE4E5B9ULL;
  return Table().data() + (x >> 52U);
}

const std::byte* BytesOf(int from, int to, std::uint64_t call) {
  return reinterpret_cast<const std::byte*>(FloatsOf(64 * from + to, call)) + from;
}

/// "" or where the first difference is.
std::string Compare(std::string_view what,
                    const std::byte* got,
                    const std::byte* expected,
                    std::size_t n) {
  if (n == 0 || std::memcmp(got, expected, n) == 0) {
    return "";
  }
  const auto at = std::mismatch(got, got + n, expected).first - got;
  return std::string(what) + ": byte " + std::to_string(at) + " of " + std::to_string(n) +
         " is wrong";
}

std::string CheckAllReduce(Communicator& comm, std::size_t n, std::uint64_t call) {
  std::vector<float> data(FloatsOf(comm.rank(), call), FloatsOf(comm.rank(), call) + n);
  if (auto done = comm.AllReduceSum(data); !done.ok()) {
    return Say(done);
  }
  std::vector<float> sum(FloatsOf(0, call), FloatsOf(0, call) + n);
  for (int r = 1; r < comm.size(); ++r) {
    const float* const addend = FloatsOf(r, call);
    for (std::size_t i = 0; i < n; ++i) {
      sum[i] += addend[i];
    }
  }
  return Compare("all_reduce",
                 std::as_bytes(std::span(data)).data(),
                 std::as_bytes(std::span(sum)).data(),
                 n * 4);
}

std::string CheckAllGather(Communicator& comm,
                           const std::vector<std::size_t>& counts,
                           std::uint64_t call) {
  const std::span<const float> in(FloatsOf(comm.rank(), call),
                                  counts[static_cast<std::size_t>(comm.rank())]);
  std::vector<float> out(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), -1.0F);
  std::string said = Say(comm.AllGather(in, out, counts));
  const std::byte* at = std::as_bytes(std::span(out)).data();
  for (int r = 0; r < comm.size(); ++r) {
    const std::size_t bytes = counts[static_cast<std::size_t>(r)] * sizeof(float);
    said += Compare("all_gather", at, reinterpret_cast<const std::byte*>(FloatsOf(r, call)), bytes);
    at += bytes;
  }
  return said;
}

/// bytes(from, to) is how much `from` sends to `to`.
std::string CheckAllToAll(Communicator& comm,
                          const std::function<std::size_t(int, int)>& bytes,
                          std::uint64_t call) {
  std::vector<std::byte> send;
  std::vector<std::size_t> send_bytes;
  std::vector<std::size_t> recv_bytes;
  for (int r = 0; r < comm.size(); ++r) {
    send_bytes.push_back(bytes(comm.rank(), r));
    recv_bytes.push_back(bytes(r, comm.rank()));
    const std::byte* const from = BytesOf(comm.rank(), r, call);
    send.insert(send.end(), from, from + send_bytes.back());
  }
  std::vector<std::byte> recv(
      std::accumulate(recv_bytes.begin(), recv_bytes.end(), std::size_t{0}));
  std::string said = Say(comm.AllToAllV(send, send_bytes, recv, recv_bytes));
  const std::byte* at = recv.data();
  for (int r = 0; r < comm.size(); ++r) {
    const std::size_t n = recv_bytes[static_cast<std::size_t>(r)];
    said += Compare("all_to_all_v", at, BytesOf(r, comm.rank(), call), n);
    at += n;
  }
  return said;
}

std::string CheckBroadcast(Communicator& comm, std::size_t n, int root, std::uint64_t call) {
  std::vector<std::byte> data(n);
  if (comm.rank() == root) {
    data.assign(BytesOf(root, 0, call), BytesOf(root, 0, call) + n);
  }
  const std::string said = Say(comm.Broadcast(data, root));
  return said + Compare("broadcast", data.data(), BytesOf(root, 0, call), n);
}

std::string CheckSend(Communicator& comm, std::size_t n, int to, std::uint64_t call) {
  return Say(comm.Send({BytesOf(comm.rank(), to, call), n}, to));
}

std::string CheckRecv(Communicator& comm, std::size_t n, int from, std::uint64_t call) {
  std::vector<std::byte> data(n);
  const std::string said = Say(comm.Recv(data, from));
  return said + Compare("recv", data.data(), BytesOf(from, comm.rank(), call), n);
}

/// A message around the ring of ranks: even ranks send first, so that no cycle of full buffers
/// arises.
std::string CheckRound(Communicator& comm, std::size_t n, std::uint64_t call) {
  if (comm.size() == 1) {
    return "";
  }
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  if (comm.rank() % 2 == 0) {
    const std::string sent = CheckSend(comm, n, next, call);
    return sent.empty() ? CheckRecv(comm, n, previous, call) : sent;
  }
  const std::string received = CheckRecv(comm, n, previous, call);
  return received.empty() ? CheckSend(comm, n, next, call) : received;
}

struct Case {
  Backend backend;
  int size;
};

class CollectivesTest : public testing::TestWithParam<Case> {
 protected:
  SpawnOptions Options() const {
    SpawnOptions options;
    options.backend = GetParam().backend;
    options.size = GetParam().size;
    return options;
  }
};

/// Nothing, less than a vector, around the one-shot threshold, and several chunks of three
/// megabytes in all.
constexpr std::array<std::size_t, 12> kLengths = {
    0, 1, 3, 15, 17, 896, 1023, 8191, 8192, 8193, 100'003, 786'433};

TEST_P(CollectivesTest, AllReduceSumsInRankOrder) {
  SpawnAndExpect(Options(), [](Communicator& comm) {
    std::string said;
    for (std::size_t i = 0; i < kLengths.size() && said.empty(); ++i) {
      said = CheckAllReduce(comm, kLengths[i], i);
    }
    return said;
  });
}

TEST_P(CollectivesTest, AllReduceInSmallChunks) {
  SpawnOptions options = Options();
  options.chunk_bytes = 4096;
  SpawnAndExpect(options, [](Communicator& comm) {
    std::string said;
    for (std::size_t i = 0; i < kLengths.size() && said.empty(); ++i) {
      said = CheckAllReduce(comm, std::min<std::size_t>(kLengths[i], 50'001), i);
    }
    return said;
  });
}

TEST_P(CollectivesTest, AllGatherWithUnevenCounts) {
  SpawnAndExpect(Options(), [](Communicator& comm) {
    const auto size = static_cast<std::size_t>(comm.size());
    std::string said;
    for (const std::size_t n : {0U, 1U, 37U, 4864U, 300'007U}) {
      std::vector<std::size_t> even(size, n);
      std::vector<std::size_t> uneven(size);
      std::vector<std::size_t> one(size, 0);
      for (std::size_t r = 0; r < size; ++r) {
        uneven[r] = n * r / size;
      }
      one[n % size] = n;
      for (const auto& counts : {even, uneven, one}) {
        said = said.empty() ? CheckAllGather(comm, counts, n) : said;
      }
    }
    return said;
  });
}

TEST_P(CollectivesTest, AllToAllWithUnevenCounts) {
  SpawnAndExpect(Options(), [](Communicator& comm) {
    std::string said = CheckAllToAll(comm, [](int, int) { return std::size_t{0}; }, 1);
    const auto uneven = [](int from, int to) {
      return static_cast<std::size_t>(from * 1000 + to * 77);
    };
    said = said.empty() ? CheckAllToAll(comm, uneven, 2) : said;
    const auto large = [](int from, int to) {
      return from == 0 && to == 1 ? std::size_t{3'000'001} : static_cast<std::size_t>(to);
    };
    said = said.empty() ? CheckAllToAll(comm, large, 3) : said;
    const auto all_large = [](int from, int to) {
      return std::size_t{700'000} + static_cast<std::size_t>(from + 10 * to);
    };
    return said.empty() ? CheckAllToAll(comm, all_large, 4) : said;
  });
}

TEST_P(CollectivesTest, BroadcastFromEveryRoot) {
  SpawnAndExpect(Options(), [](Communicator& comm) {
    std::string said;
    for (const std::size_t n : {0U, 1U, 4097U, 3'000'001U}) {
      for (int root = 0; root < comm.size(); ++root) {
        said = said.empty() ? CheckBroadcast(comm, n, root, n) : said;
      }
    }
    return said;
  });
}

TEST_P(CollectivesTest, MessagesOfAllLengths) {
  SpawnAndExpect(Options(), [](Communicator& comm) {
    std::string said;
    for (const std::size_t n : {0U, 1U, 63U, 65'536U, 1'048'577U, 3'000'001U}) {
      said = said.empty() ? CheckRound(comm, n, n) : said;
    }
    return said;
  });
}

TEST_P(CollectivesTest, MessagesWaitForTheirReceiver) {
  // Send returns while the buffer has room; a collective may come in between.
  SpawnAndExpect(Options(), [](Communicator& comm) {
    std::string said;
    if (comm.rank() == 0) {
      for (std::uint64_t i = 0; i < 10; ++i) {
        said = said.empty() ? CheckSend(comm, 1000 + i, 1, i) : said;
      }
    }
    said = said.empty() ? CheckAllReduce(comm, 1000, 5) : said;
    if (comm.rank() == 1) {
      for (std::uint64_t i = 0; i < 10; ++i) {
        said = said.empty() ? CheckRecv(comm, 1000 + i, 0, i) : said;
      }
    }
    return said.empty() ? Say(comm.Barrier()) : said;
  });
}

TEST_P(CollectivesTest, BarrierHoldsEveryoneBack) {
  SharedNumbers numbers;
  SpawnAndExpect(Options(), [&](Communicator& comm) -> std::string {
    for (std::int64_t round = 1; round <= 200; ++round) {
      numbers[0].fetch_add(1);
      if (auto done = comm.Barrier(); !done.ok()) {
        return Say(done);
      }
      const std::int64_t seen = numbers[0].load();
      if (seen < round * comm.size() || seen > (round + 1) * comm.size()) {
        return "after barrier " + std::to_string(round) + " the count is " + std::to_string(seen);
      }
    }
    return "";
  });
}

TEST_P(CollectivesTest, ThousandsOfMixedCalls) {
  SpawnOptions options = Options();
  options.chunk_bytes = 16U << 10;
  SpawnAndExpect(options, [](Communicator& comm) {
    std::mt19937 random(20240607);  // the same at all ranks
    const auto pick = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
    std::string said;
    for (std::uint64_t call = 0; call < 3000 && said.empty(); ++call) {
      const std::size_t op = pick(6);
      const std::size_t n = pick(pick(10) == 0 ? 20'000 : 300);
      const std::size_t salt = pick(1000);
      if (op == 0) {
        said = CheckAllReduce(comm, n, call);
      } else if (op == 1) {
        std::vector<std::size_t> counts;
        for (int r = 0; r < comm.size(); ++r) {
          counts.push_back((n * static_cast<std::size_t>(r + 1) + salt) % (n + 1));
        }
        said = CheckAllGather(comm, counts, call);
      } else if (op == 2) {
        const auto bytes = [&](int from, int to) {
          return (n * static_cast<std::size_t>(from + 3 * to) + salt) % (2 * n + 1);
        };
        said = CheckAllToAll(comm, bytes, call);
      } else if (op == 3) {
        said = CheckBroadcast(comm, n, static_cast<int>(salt) % comm.size(), call);
      } else if (op == 4) {
        said = CheckRound(comm, n, call);
      } else {
        said = Say(comm.Barrier());
      }
      said = said.empty() ? said : "call " + std::to_string(call) + ": " + said;
    }
    return said;
  });
}

std::vector<Case> Cases() {
  Table();  // once, before any fork
  std::vector<Case> cases;
  for (const Backend backend : Backends()) {
    for (const int size : {2, 3, 4, 5}) {
      // The thread sanitizer is some twenty times slower; two sizes show it every path.
      if (!kThreadSanitizer || size == 2 || size == 5) {
        cases.push_back({backend, size});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All,
                         CollectivesTest,
                         testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return BackendName(test.param.backend) + std::to_string(test.param.size);
                         });

}  // namespace
}  // namespace inferd::comm
