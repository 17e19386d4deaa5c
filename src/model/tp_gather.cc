// SPDX-License-Identifier: Apache-2.0
#include "model/tp_gather.h"

#include "base/check.h"

#include <numeric>

namespace inferd::model {

Result<TpGather> TpGather::Make(std::size_t max_bytes, ops::Device& device) {
  TpGather gather;
  gather.device_ = &device;
  // Every rank's part is rounded up to whole floats.
  const std::size_t bytes = max_bytes + 4096 * sizeof(float);
  INFERD_ASSIGN(gather.send_, device.AllocateHost(bytes, "gathering over tp"));
  INFERD_ASSIGN(gather.recv_, device.AllocateHost(bytes, "gathering over tp"));
  return gather;
}

Result<> TpGather::Gather(const ops::Activations& mine,
                          std::span<const std::int64_t> columns,
                          std::int64_t rows,
                          ops::Activations* full) {
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
  counts_.clear();
  for (const std::int64_t width : columns) {
    counts_.push_back(static_cast<std::size_t>(rows * width));
  }
  const std::size_t total = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  INFERD_CHECK(total * sizeof(float) <= recv_.bytes());
  const std::size_t own = counts_[static_cast<std::size_t>(tp_->rank())];
  if (!device_->SharesHostMemory()) {
    device_->Copy(send_.data(), mine, own * sizeof(float));
    INFERD_TRY(device_->Wait());
    mine = send_.floats();
  } else if (rows == 1 && full != nullptr) {
    return tp_->AllGather({mine, own}, {full, total}, counts_);
  }
  INFERD_TRY(tp_->AllGather({mine, own}, {recv_.floats(), total}, counts_));
  if (full == nullptr) {
    return {};
  }
  const std::size_t stride = total / static_cast<std::size_t>(rows);
  const float* in = recv_.floats();
  std::size_t first = 0;
  for (const std::int64_t width : columns) {
    const auto count = static_cast<std::size_t>(width);
    const std::size_t bytes = count * sizeof(float);
    device_->CopyRows(full + first, stride * sizeof(float), in, bytes, bytes, rows);
    in += count * static_cast<std::size_t>(rows);
    first += count;
  }
  return {};
}

}  // namespace inferd::model
