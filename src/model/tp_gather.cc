// SPDX-License-Identifier: Apache-2.0
#include "model/tp_gather.h"

#include "base/check.h"

#include <algorithm>
#include <numeric>

namespace inferd::model {

Result<TpGather> TpGather::Make(std::size_t max_bytes, ops::Device& device) {
  TpGather gather;
  gather.device_ = &device;
  // Every rank's part is rounded up to whole floats.
  const std::size_t bytes = max_bytes + 4096 * sizeof(float);
  INFERD_ASSIGN(gather.send_, device.AllocateHost(bytes, "gathering over tp"));
  INFERD_ASSIGN(gather.recv_, device.AllocateHost(bytes, "gathering over tp"));
  if (!device.SharesHostMemory()) {
    INFERD_ASSIGN(gather.device_recv_, device.Allocate(bytes, "gathering over tp"));
  }
  return gather;
}

Result<> TpGather::Gather(const ops::Activations& mine,
                          std::span<const std::int64_t> columns,
                          std::int64_t rows,
                          ops::Activations* full) {
  if (tp_->device() != nullptr) {
    float* const to = full->FloatsToFill();
    if (mine.Floats() != nullptr && to != nullptr) {
      INFERD_ASSIGN(const bool done,
                    tp_->device()->ShortGather({mine.Floats(), columns, rows, to}));
      if (done) {
        return {};
      }
    }
    return GatherOnDevice(mine, columns, rows, full);
  }
  counts_.clear();
  for (const std::int64_t width : columns) {
    const std::size_t bytes = static_cast<std::size_t>(rows) * full->ColumnBytes(width);
    counts_.push_back((bytes + sizeof(float) - 1) / sizeof(float));
  }
  const std::size_t total = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  INFERD_CHECK(total * sizeof(float) <= recv_.bytes());
  mine.CopyOut(rows, send_.data());
  INFERD_TRY(device_->Wait());
  const std::size_t own = counts_[static_cast<std::size_t>(tp_->rank())];
  INFERD_TRY(tp_->AllGather({send_.floats(), own}, {recv_.floats(), total}, counts_));
  const float* in = recv_.floats();
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < columns.size(); ++rank) {
    full->CopyIn(rows, first, columns[rank], reinterpret_cast<const std::byte*>(in));
    in += counts_[rank];
    first += columns[rank];
  }
  return {};
}

Result<> TpGather::Gather(const float* mine,
                          std::span<const std::int64_t> columns,
                          std::int64_t rows,
                          float* full) {
  if (tp_->device() != nullptr) {
    INFERD_ASSIGN(const bool done, tp_->device()->ShortGather({mine, columns, rows, full}));
    if (done) {
      return {};
    }
  }
  counts_.clear();
  for (const std::int64_t width : columns) {
    counts_.push_back(static_cast<std::size_t>(rows * width));
  }
  const std::size_t total = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  INFERD_CHECK(total * sizeof(float) <= recv_.bytes());
  const std::size_t own = counts_[static_cast<std::size_t>(tp_->rank())];
  if (comm::DeviceCollectives* const device = tp_->device(); device != nullptr) {
    for (std::size_t& count : counts_) {
      count *= sizeof(float);
    }
    INFERD_TRY(device->AllGather(mine, device_recv_.data(), counts_));
    Spread(device_recv_.floats(), columns, rows, full);
    return {};
  }
  if (!device_->SharesHostMemory()) {
    device_->Copy(send_.data(), mine, own * sizeof(float));
    INFERD_TRY(device_->Wait());
    mine = send_.floats();
  } else if (rows == 1 && full != nullptr) {
    return tp_->AllGather({mine, own}, {full, total}, counts_);
  }
  INFERD_TRY(tp_->AllGather({mine, own}, {recv_.floats(), total}, counts_));
  Spread(recv_.floats(), columns, rows, full);
  return {};
}

void TpGather::Spread(const float* in,
                      std::span<const std::int64_t> columns,
                      std::int64_t rows,
                      float* full) {
  if (full == nullptr) {
    return;
  }
  const auto stride =
      static_cast<std::size_t>(std::accumulate(columns.begin(), columns.end(), std::int64_t{0}));
  std::size_t first = 0;
  for (const std::int64_t width : columns) {
    const auto count = static_cast<std::size_t>(width);
    const std::size_t bytes = count * sizeof(float);
    device_->CopyRows(full + first, stride * sizeof(float), in, bytes, bytes, rows);
    in += count * static_cast<std::size_t>(rows);
    first += count;
  }
}

Result<> TpGather::GatherOnDevice(const ops::Activations& mine,
                                  std::span<const std::int64_t> columns,
                                  std::int64_t rows,
                                  ops::Activations* full) {
  const auto rank = static_cast<std::size_t>(tp_->rank());
  std::byte* own = device_recv_.data();
  counts_.clear();
  for (std::size_t r = 0; r < columns.size(); ++r) {
    counts_.push_back(static_cast<std::size_t>(rows) * full->ColumnBytes(columns[r]));
    own += r < rank ? counts_[r] : 0;
  }
  INFERD_CHECK(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0}) <=
               device_recv_.bytes());
  mine.CopyOut(rows, own);
  INFERD_TRY(tp_->device()->AllGather(own, device_recv_.data(), counts_));
  const std::byte* in = device_recv_.data();
  std::int64_t first = 0;
  for (std::size_t r = 0; r < columns.size(); ++r) {
    full->CopyIn(rows, first, columns[r], in);
    in += counts_[r];
    first += columns[r];
  }
  return {};
}

// Two addends give the same sum in either order. With more, the library's order depends on the
// size of the message, and with it a row's bits on its neighbours: every rank sums a slice itself.
Result<> TpGather::SumOnDevice(float* data, std::int64_t count) {
  comm::DeviceCollectives& device = *tp_->device();
  INFERD_ASSIGN(const bool done, device.ShortSum(data, count));
  if (done) {
    return {};
  }
  const auto size = static_cast<std::int64_t>(tp_->size());
  if (size == 2) {
    return device.AllReduceSum(data, static_cast<std::size_t>(count));
  }
  constexpr std::int64_t kSliceFloats = 16;
  const std::int64_t lines = (count + kSliceFloats - 1) / kSliceFloats;
  const auto begin = [&](std::int64_t r) {
    return std::min(lines * r / size * kSliceFloats, count);
  };
  const std::int64_t rank = tp_->rank();
  const std::int64_t own = begin(rank + 1) - begin(rank);
  INFERD_CHECK(static_cast<std::size_t>(own * size) * sizeof(float) <= device_recv_.bytes());
  counts_.clear();
  for (std::int64_t r = 0; r < size; ++r) {
    counts_.push_back(static_cast<std::size_t>(begin(r + 1) - begin(r)) * sizeof(float));
  }
  const std::vector<std::size_t> slices(static_cast<std::size_t>(size),
                                        static_cast<std::size_t>(own) * sizeof(float));
  INFERD_TRY(device.AllToAllV(data, counts_, device_recv_.data(), slices));
  float* const slice = data + begin(rank);
  device_->Copy(slice, device_recv_.data(), static_cast<std::size_t>(own) * sizeof(float));
  for (std::int64_t r = 1; r < size; ++r) {
    device_->Add(slice, device_recv_.floats() + r * own, 1, own);
  }
  return device.AllGather(slice, data, counts_);
}

Result<bool> TpGather::GatherThenNorm(const float* mine,
                                      std::span<const std::int64_t> columns,
                                      std::int64_t rows,
                                      const tensor::ThenNorm& norm) {
  if (tp_->device() == nullptr) {
    return false;
  }
  return tp_->device()->ShortGatherThenNorm({mine, columns, rows, nullptr}, norm);
}

Result<bool> TpGather::SumThenNorm(const float* part,
                                   std::int64_t rows,
                                   const tensor::ThenNorm& norm) {
  if (tp_->device() == nullptr) {
    return false;
  }
  return tp_->device()->ShortSumThenNorm(part, rows, norm);
}

}  // namespace inferd::model
