// SPDX-License-Identifier: Apache-2.0
// Every collective of every backend against the plain computation, over sizes, lengths and seeds.
#include <algorithm>
#include <numeric>
#include <random>

#include "unit/comm/spawn.h"

namespace inferd::comm {
namespace {

/// The value rank r holds at index i of call `call`: floats whose sum depends on the order of the additions.
float ValueAt(int rank, std::size_t i, std::uint64_t call) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15ULL;
  x ^= (i + 1) * 0xBF58476D1CE4E5B9ULL + call * 0x94D049BB133111EBULL;
  x ^= x >> 31U;
  x *= 0xD6E8FEB86659FD93ULL;
  x ^= x >> 32U;
  const float unit = static_cast<float>(x & 0xFFFFFFU) / static_cast<float>(1U << 24U) - 0.5F;
  return unit * static_cast<float>(1U << (x >> 60U));
}

std::byte ByteAt(int from, int to, std::size_t i, std::uint64_t call) {
  return static_cast<std::byte>((static_cast<std::size_t>(from) * 131 + static_cast<std::size_t>(to) * 31 +
                                 i * 7 + i / 251 + call * 17) &
                                0xFFU);
}

std::string CheckAllReduce(Communicator& comm, std::size_t n, std::uint64_t call) {
  std::vector<float> data(n);
  for (std::size_t i = 0; i < n; ++i) {
    data[i] = ValueAt(comm.rank(), i, call);
  }
  if (auto done = comm.AllReduceSum(data); !done.ok()) {
    return Say(done);
  }
  for (std::size_t i = 0; i < n; ++i) {
    float sum = ValueAt(0, i, call);
    for (int r = 1; r < comm.size(); ++r) {
      sum += ValueAt(r, i, call);
    }
    if (data[i] != sum) {
      return "all_reduce of " + std::to_string(n) + ": element " + std::to_string(i) + " is " +
             std::to_string(data[i]) + ", not " + std::to_string(sum);
    }
  }
  return "";
}

std::string CheckAllGather(Communicator& comm, const std::vector<std::size_t>& counts, std::uint64_t call) {
  const auto self = static_cast<std::size_t>(comm.rank());
  std::vector<float> in(counts[self]);
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = ValueAt(comm.rank(), i, call);
  }
  std::vector<float> out(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), -1.0F);
  if (auto done = comm.AllGather(in, out, counts); !done.ok()) {
    return Say(done);
  }
  std::size_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    for (std::size_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i, ++at) {
      if (out[at] != ValueAt(r, i, call)) {
        return "all_gather: element " + std::to_string(i) + " of rank " + std::to_string(r) + " is wrong";
      }
    }
  }
  return "";
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
    for (std::size_t i = 0; i < send_bytes.back(); ++i) {
      send.push_back(ByteAt(comm.rank(), r, i, call));
    }
  }
  std::vector<std::byte> recv(std::accumulate(recv_bytes.begin(), recv_bytes.end(), std::size_t{0}));
  if (auto done = comm.AllToAllV(send, send_bytes, recv, recv_bytes); !done.ok()) {
    return Say(done);
  }
  std::size_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    for (std::size_t i = 0; i < recv_bytes[static_cast<std::size_t>(r)]; ++i, ++at) {
      if (recv[at] != ByteAt(r, comm.rank(), i, call)) {
        return "all_to_all_v: byte " + std::to_string(i) + " from rank " + std::to_string(r) + " is wrong";
      }
    }
  }
  return "";
}

std::string CheckBroadcast(Communicator& comm, std::size_t n, int root, std::uint64_t call) {
  std::vector<std::byte> data(n);
  for (std::size_t i = 0; comm.rank() == root && i < n; ++i) {
    data[i] = ByteAt(root, 0, i, call);
  }
  if (auto done = comm.Broadcast(data, root); !done.ok()) {
    return Say(done);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (data[i] != ByteAt(root, 0, i, call)) {
      return "broadcast: byte " + std::to_string(i) + " is wrong";
    }
  }
  return "";
}

std::string CheckSend(Communicator& comm, std::size_t n, int to, std::uint64_t call) {
  std::vector<std::byte> data(n);
  for (std::size_t i = 0; i < n; ++i) {
    data[i] = ByteAt(comm.rank(), to, i, call);
  }
  return Say(comm.Send(data, to));
}

std::string CheckRecv(Communicator& comm, std::size_t n, int from, std::uint64_t call) {
  std::vector<std::byte> data(n);
  if (auto done = comm.Recv(data, from); !done.ok()) {
    return Say(done);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (data[i] != ByteAt(from, comm.rank(), i, call)) {
      return "recv: byte " + std::to_string(i) + " from rank " + std::to_string(from) + " is wrong";
    }
  }
  return "";
}

/// A message around the ring of ranks: even ranks send first, so that no cycle of full buffers arises.
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

/// Nothing, less than a vector, around the one-shot threshold, and several chunks of three megabytes in all.
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
    const auto uneven = [](int from, int to) { return static_cast<std::size_t>(from * 1000 + to * 77); };
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
  std::vector<Case> cases;
  for (const Backend backend : Backends()) {
    for (const int size : {2, 3, 4, 5}) {
      cases.push_back({backend, size});
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
