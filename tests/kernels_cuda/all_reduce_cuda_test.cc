// SPDX-License-Identifier: Apache-2.0
// Exchanges through peer memory among ranks that are threads with a stream each.
#include "kernels/all_reduce/all_reduce_cuda.h"

#include "device_fixture.h"
#include "kernels/all_reduce/gather_cuda.h"
#include "kernels/rows/rows_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

namespace inferd::kernels::cuda {
namespace {

constexpr std::int64_t kMaxCount = 30000;

/// A rank: its stream, and the regions of all.
struct Rank {
  PeerRegions peers;
  cudaStream_t stream = nullptr;

  std::vector<float> Download(const DeviceArray<float>& array) const {
    std::vector<float> values(array.size());
    EXPECT_EQ(cudaMemcpyAsync(
                  values.data(), array.get(), values.size() * 4, cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return values;
  }
};

void Among(int ranks, const std::function<void(Rank&)>& body, std::int64_t max_count = kMaxCount) {
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> regions;
  for (int rank = 0; rank < ranks; ++rank) {
    regions.push_back(std::make_unique<DeviceArray<std::byte>>(
        std::vector<std::byte>(ReduceRegionBytes(max_count), std::byte{0})));
  }
  std::vector<std::thread> threads;
  // Memory is freed when all are through: freeing waits for the whole device.
  std::atomic<int> through{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Rank own;
      for (int peer = 0; peer < ranks; ++peer) {
        own.peers.region[peer] = regions[static_cast<std::size_t>(peer)]->get();
      }
      own.peers.rank = rank;
      own.peers.ranks = ranks;
      own.peers.max_count = max_count;
      ASSERT_EQ(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking), cudaSuccess);
      body(own);
      for (++through; through < ranks;) {
        std::this_thread::yield();
      }
      cudaStreamDestroy(own.stream);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

std::vector<float> Input(int rank, std::size_t call, std::int64_t count) {
  return RandomFloats(static_cast<std::size_t>(count),
                      static_cast<unsigned>(rank * 100) + static_cast<unsigned>(call));
}

std::vector<float> SumOfInputs(int ranks, std::size_t call, std::int64_t count) {
  std::vector<float> sum = Input(0, call, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const auto x = Input(rank, call, count);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum[i] += x[i];
    }
  }
  return sum;
}

// Calls of different sizes in a row; every rank checks its results. `at`: where in memory that is
// aligned the data begin.
void SumAmong(int ranks, Status (*reduce)(const AllReduceArgs&, Stream), std::int64_t at) {
  const std::vector<std::int64_t> counts = {1, kMaxCount, 100, 8192, 0, 20001, 77};
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays;
  for (int rank = 0; rank < ranks; ++rank) {
    arrays.push_back(std::make_unique<DeviceArray<float>>(static_cast<std::size_t>(kMaxCount + 8)));
  }
  Among(ranks, [&](Rank& own) {
    const DeviceArray<float>& array = *arrays[static_cast<std::size_t>(own.peers.rank)];
    for (std::size_t call = 0; call < counts.size(); ++call) {
      const auto x = Input(own.peers.rank, call, counts[call]);
      float* const data = array.get() + at;
      ASSERT_EQ(cudaMemcpyAsync(data, x.data(), x.size() * 4, cudaMemcpyHostToDevice, own.stream),
                cudaSuccess);
      AllReduceArgs args;
      args.peers = own.peers;
      args.x = args.y = data;
      args.count = counts[call];
      EXPECT_OK(reduce(args, own.stream));
      std::vector<float> y = own.Download(array);
      y.erase(y.begin(), y.begin() + at);
      y.resize(x.size());
      EXPECT_EQ(y, SumOfInputs(ranks, call, counts[call])) << ranks << " ranks, call " << call;
    }
  });
}

TEST(AllReduceCuda, OneShot) {
  for (const int ranks : {1, 2, 3}) {
    SumAmong(ranks, &AllReduceOneShot, ranks == 3 ? 1 : 0);
  }
}

TEST(AllReduceCuda, TwoShot) {
  for (const int ranks : {1, 2, 4}) {
    SumAmong(ranks, &AllReduceTwoShot, ranks == 2 ? 3 : 0);
  }
}

TEST(AllReduceCuda, AbortEndsTheWaitForAPeerThatNeverComes) {
  const DeviceArray<std::byte> mine(std::vector<std::byte>(ReduceRegionBytes(64), std::byte{0}));
  const DeviceArray<std::byte> other(std::vector<std::byte>(ReduceRegionBytes(64), std::byte{0}));
  const DeviceArray<float> x(std::vector<float>(64, 1.0F)), y(64);
  const DeviceArray<std::uint32_t> abort(std::vector<std::uint32_t>{1});
  AllReduceArgs args;
  args.peers.region[0] = mine.get();
  args.peers.region[1] = other.get();
  args.peers.ranks = 2;
  args.peers.max_count = args.count = 64;
  args.peers.abort = abort.get();
  args.x = args.y = x.get();
  EXPECT_OK(AllReduceOneShot(args, nullptr));
  EXPECT_OK(AllReduceTwoShot(args, nullptr));
  GatherArgs gather;
  gather.peers = args.peers;
  gather.mine = x.get();
  gather.columns[0] = gather.columns[1] = 32;
  gather.rows = 1;
  gather.full = y.get();
  EXPECT_OK(GatherFromPeers(gather, nullptr));
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  // The first call said what it had; nothing is said after the wait that was given up.
  const auto bytes = other.Download();
  constexpr std::size_t kFlags = 2 * kMaxReduceRanks * kReduceBlocks;
  std::vector<std::uint32_t> flags(kFlags);
  std::memcpy(flags.data(),
              bytes.data() + bytes.size() - (kFlags + 2 * kReduceBlocks) * sizeof(std::uint32_t),
              kFlags * sizeof(std::uint32_t));
  EXPECT_EQ(std::ranges::count(flags, 1U), kReduceBlocks);
  EXPECT_EQ(std::ranges::count(flags, 0U), static_cast<std::ptrdiff_t>(kFlags) - kReduceBlocks);
  args.count = 65;
  EXPECT_EQ(AllReduceOneShot(args, nullptr), Status::kInvalidValue);
  gather.rows = 3;
  EXPECT_EQ(GatherFromPeers(gather, nullptr), Status::kInvalidValue);
}

/// What the ranks' columns of one call put side by side give.
std::vector<float> SideBySide(const std::vector<int>& columns,
                              std::size_t call,
                              std::int64_t rows) {
  std::vector<float> full;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t rank = 0; rank < columns.size(); ++rank) {
      const auto part = Input(static_cast<int>(rank), call, rows * columns[rank]);
      const auto begin = part.begin() + row * columns[rank];
      full.insert(full.end(), begin, begin + columns[rank]);
    }
  }
  return full;
}

TEST(AllReduceCuda, ColumnsOfAllRanksLieSideBySide) {
  struct Shape {
    std::vector<int> columns;
    std::int64_t rows;
  };
  // Rows that straddle blocks, a rank without columns, widths that are no multiples of four.
  const std::vector<Shape> shapes = {{{4, 8}, 1},
                                     {{4096, 4096}, 7},
                                     {{33, 0}, 5},
                                     {{1, 3}, 300},
                                     {{64, 64}, 0},
                                     {{100, 101, 99}, 90},
                                     {{300, 296, 300, 4}, 64}};
  for (std::size_t call = 0; call < shapes.size(); ++call) {
    const auto& [columns, rows] = shapes[call];
    const auto want = SideBySide(columns, call, rows);
    std::vector<std::unique_ptr<DeviceArray<float>>> parts, fulls;
    for (std::size_t rank = 0; rank < columns.size(); ++rank) {
      parts.push_back(std::make_unique<DeviceArray<float>>(
          Input(static_cast<int>(rank), call, rows * columns[rank])));
      fulls.push_back(std::make_unique<DeviceArray<float>>(want.size()));
    }
    Among(static_cast<int>(columns.size()), [&](Rank& own) {
      const auto rank = static_cast<std::size_t>(own.peers.rank);
      GatherArgs args;
      args.peers = own.peers;
      args.mine = parts[rank]->get();
      std::copy(columns.begin(), columns.end(), args.columns);
      args.rows = rows;
      args.full = fulls[rank]->get();
      EXPECT_OK(GatherFromPeers(args, own.stream));
      args.full = rank == 0 ? args.full : nullptr;  // the others only take part
      EXPECT_OK(GatherFromPeers(args, own.stream));
      EXPECT_EQ(own.Download(*fulls[rank]), want) << "shape " << call;
    });
  }
}

// Exchange, residual and norm in one launch, against the three.
TEST(AllReduceCuda, ThenNormHasTheBitsOfTheKernelsApart) {
  struct Shape {
    std::vector<int> columns;  // empty: a sum
    int ranks;
    std::int64_t k, rows;
  };
  const std::vector<Shape> shapes = {{{200, 133}, 2, 333, 3},
                                     {{}, 2, 333, 3},
                                     {{64, 0, 192}, 3, 256, 40},
                                     {{}, 3, 257, 33},
                                     {{512, 512}, 2, 1024, 1},
                                     {{}, 2, 900, 1}};
  for (std::size_t call = 0; call < shapes.size(); ++call) {
    const Shape& shape = shapes[call];
    const auto size = static_cast<std::size_t>(shape.rows * shape.k);
    const auto weight = RandomFloats(static_cast<std::size_t>(shape.k), 6);
    const auto x = RandomFloats(size, 7);
    const DeviceArray<float> apart(x), w(weight), apart_y(size);
    const DeviceArray<float> add(shape.columns.empty()
                                     ? SumOfInputs(shape.ranks, call, shape.rows * shape.k)
                                     : SideBySide(shape.columns, call, shape.rows));
    EXPECT_OK(AddRmsNorm(apart.get(),
                         shape.k,
                         add.get(),
                         shape.k,
                         w.get(),
                         1e-6F,
                         shape.rows,
                         shape.k,
                         apart_y.get(),
                         shape.k,
                         nullptr));
    const auto want = apart.Download(), want_y = apart_y.Download();
    std::vector<std::unique_ptr<DeviceArray<float>>> parts, xs, ys;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const std::int64_t width =
          shape.columns.empty() ? shape.k : shape.columns[static_cast<std::size_t>(rank)];
      parts.push_back(std::make_unique<DeviceArray<float>>(Input(rank, call, shape.rows * width)));
      xs.push_back(std::make_unique<DeviceArray<float>>(x));
      ys.push_back(std::make_unique<DeviceArray<float>>(size));
    }
    Among(shape.ranks, [&](Rank& own) {
      const auto rank = static_cast<std::size_t>(own.peers.rank);
      PeerNormArgs args;
      args.peers = own.peers;
      args.mine = parts[rank]->get();
      std::copy(shape.columns.begin(), shape.columns.end(), args.columns);
      args.rows = shape.rows;
      args.k = shape.k;
      args.x = xs[rank]->get();
      args.weight = w.get();
      args.eps = 1e-6F;
      args.y = ys[rank]->get();
      EXPECT_OK(PeerAddRmsNorm(args, own.stream));
      EXPECT_EQ(own.Download(*xs[rank]), want) << "shape " << call;
      EXPECT_EQ(own.Download(*ys[rank]), want_y) << "shape " << call;
    });
  }
  EXPECT_TRUE(PeerNormFits(64, 400, kMaxCount));
  EXPECT_FALSE(PeerNormFits(1, 1000, kMaxCount)) << "a block takes whole rows";
}

// A recorded launch knows no call: where its messages lie and which flags it waits for must come
// from memory. Kernels of different kinds and sizes share the regions.
TEST(AllReduceCuda, ReplaysOfARecordingGoOnWhereTheLastCallWas) {
  constexpr std::int64_t kCount = 5000;
  constexpr int kReplays = 5;
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays, fulls;
  for (int rank = 0; rank < 2; ++rank) {
    arrays.push_back(std::make_unique<DeviceArray<float>>(static_cast<std::size_t>(kCount)));
    fulls.push_back(std::make_unique<DeviceArray<float>>(static_cast<std::size_t>(2 * kCount)));
  }
  Among(2, [&](Rank& own) {
    const auto rank = static_cast<std::size_t>(own.peers.rank);
    AllReduceArgs sum;
    sum.peers = own.peers;
    sum.x = sum.y = arrays[rank]->get();
    sum.count = kCount;
    AllReduceArgs little = sum;
    little.count = 10;
    GatherArgs gather;
    gather.peers = own.peers;
    gather.mine = arrays[rank]->get();
    gather.columns[0] = gather.columns[1] = 500;
    gather.rows = 10;
    gather.full = fulls[rank]->get();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(own.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_OK(AllReduceOneShot(sum, own.stream));
    EXPECT_OK(AllReduceTwoShot(little, own.stream));
    EXPECT_OK(GatherFromPeers(gather, own.stream));
    ASSERT_EQ(cudaStreamEndCapture(own.stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int replay = 0; replay < kReplays; ++replay) {
      const auto call = static_cast<std::size_t>(replay);
      const auto x = Input(own.peers.rank, call, kCount);
      ASSERT_EQ(
          cudaMemcpyAsync(
              arrays[rank]->get(), x.data(), x.size() * 4, cudaMemcpyHostToDevice, own.stream),
          cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(exec, own.stream), cudaSuccess);
      if (replay == 2) {  // a launch between replays
        EXPECT_OK(GatherFromPeers(gather, own.stream));
      }
      std::vector<float> want = SumOfInputs(2, call, kCount);
      for (std::size_t i = 0; i < 10; ++i) {
        want[i] += want[i];
      }
      EXPECT_EQ(own.Download(*arrays[rank]), want) << "replay " << replay;
      std::vector<float> twice;
      for (std::size_t row = 0; row < 10; ++row) {
        for (int side = 0; side < 2; ++side) {
          twice.insert(twice.end(),
                       want.begin() + static_cast<long>(row * 500),
                       want.begin() + static_cast<long>((row + 1) * 500));
        }
      }
      std::vector<float> full = own.Download(*fulls[rank]);
      full.resize(twice.size());
      EXPECT_EQ(full, twice) << "replay " << replay;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
}

}  // namespace
}  // namespace inferd::kernels::cuda
