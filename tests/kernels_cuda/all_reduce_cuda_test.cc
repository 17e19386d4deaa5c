// SPDX-License-Identifier: Apache-2.0
// Sums over ranks that are threads with a stream each.
#include "kernels/all_reduce/all_reduce_cuda.h"

#include "device_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

namespace inferd::kernels::cuda {
namespace {

constexpr std::int64_t kMaxCount = 30000;

// Calls of different sizes in a row; every rank checks its results.
void SumAmong(int ranks, Status (*reduce)(const AllReduceArgs&, Stream)) {
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> regions;
  std::vector<std::unique_ptr<DeviceArray<float>>> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    regions.push_back(std::make_unique<DeviceArray<std::byte>>(
        std::vector<std::byte>(ReduceRegionBytes(kMaxCount), std::byte{0})));
    inputs.push_back(std::make_unique<DeviceArray<float>>(static_cast<std::size_t>(kMaxCount)));
  }
  const std::vector<std::int64_t> counts = {1, kMaxCount, 100, 8192, 0, 20001, 77};
  std::vector<std::vector<std::vector<float>>> results(static_cast<std::size_t>(ranks));
  const auto input = [](int rank, std::size_t call, std::int64_t count) {
    return RandomFloats(static_cast<std::size_t>(count),
                        static_cast<unsigned>(rank * 100) + static_cast<unsigned>(call));
  };
  const auto run = [&](int rank) {
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (std::size_t call = 0; call < counts.size(); ++call) {
      const auto x = input(rank, call, counts[call]);
      float* data = inputs[static_cast<std::size_t>(rank)]->get();
      ASSERT_EQ(cudaMemcpyAsync(data, x.data(), x.size() * 4, cudaMemcpyHostToDevice, stream),
                cudaSuccess);
      AllReduceArgs args;
      for (int peer = 0; peer < ranks; ++peer) {
        args.region[peer] = regions[static_cast<std::size_t>(peer)]->get();
      }
      args.rank = rank;
      args.ranks = ranks;
      args.max_count = kMaxCount;
      args.x = args.y = data;
      args.count = counts[call];
      EXPECT_OK(reduce(args, stream));
      std::vector<float> y(x.size());
      ASSERT_EQ(cudaMemcpyAsync(y.data(), data, y.size() * 4, cudaMemcpyDeviceToHost, stream),
                cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      results[static_cast<std::size_t>(rank)].push_back(y);
    }
    cudaStreamDestroy(stream);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(run, rank);
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (std::size_t call = 0; call < counts.size(); ++call) {
    std::vector<float> want = input(0, call, counts[call]);
    for (int rank = 1; rank < ranks; ++rank) {
      const auto x = input(rank, call, counts[call]);
      for (std::size_t i = 0; i < x.size(); ++i) {
        want[i] += x[i];
      }
    }
    for (const auto& result : results) {
      EXPECT_EQ(result[call], want) << ranks << " ranks, call " << call;
    }
  }
}

TEST(AllReduceCuda, OneShot) {
  for (const int ranks : {1, 2, 3}) {
    SumAmong(ranks, &AllReduceOneShot);
  }
}

TEST(AllReduceCuda, TwoShot) {
  for (const int ranks : {1, 2, 4}) {
    SumAmong(ranks, &AllReduceTwoShot);
  }
}

TEST(AllReduceCuda, AbortEndsTheWaitForAPeerThatNeverComes) {
  const DeviceArray<std::byte> mine(std::vector<std::byte>(ReduceRegionBytes(64), std::byte{0}));
  const DeviceArray<std::byte> other(std::vector<std::byte>(ReduceRegionBytes(64), std::byte{0}));
  const DeviceArray<float> x(std::vector<float>(64, 1.0F));
  const DeviceArray<std::uint32_t> abort(std::vector<std::uint32_t>{1});
  AllReduceArgs args;
  args.region[0] = mine.get();
  args.region[1] = other.get();
  args.ranks = 2;
  args.max_count = args.count = 64;
  args.x = args.y = x.get();
  args.abort = abort.get();
  EXPECT_OK(AllReduceOneShot(args, nullptr));
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  args.count = 65;
  EXPECT_EQ(AllReduceOneShot(args, nullptr), Status::kInvalidValue);
}

}  // namespace
}  // namespace inferd::kernels::cuda
