// SPDX-License-Identifier: Apache-2.0
// Puts the column slices of a tp group side by side on every rank: inputs of the O and down
// projections, their outputs, and logits. Moves values and adds none, so the result is that of one
// rank to the bit. Through the host's memory, or from device to device where the group can.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "ops/device.h"

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::model {

class TpGather {
 public:
  /// max_bytes: of the widest gathered matrix with all its rows. What it gathers lies on `device`.
  static Result<TpGather> Make(std::size_t max_bytes, ops::Device& device);

  void Join(comm::Communicator* tp) { tp_ = tp; }

  /// full's columns = those of all ranks in rank order; columns[r] of them come from rank r's
  /// `mine`.
  Result<> Gather(const ops::Activations& mine,
                  std::span<const std::int64_t> columns,
                  std::int64_t rows,
                  ops::Activations* full);
  /// mine [rows, columns[rank]] -> full [rows, sum of columns]; null: this rank only takes part.
  /// `full` may be host memory of the device, complete after its next Wait.
  Result<> Gather(const float* mine,
                  std::span<const std::int64_t> columns,
                  std::int64_t rows,
                  float* full);
  /// data [count] = sum over the ranks in rank order, in place; only where tp has device
  /// collectives. `data` is no longer than what is gathered.
  Result<> SumOnDevice(float* data, std::int64_t count);
  /// The second Gather, or SumOnDevice of part [rows, norm.k], with the residual and the next norm
  /// behind it in one launch. False: that is not to be had, and nothing has been done.
  Result<bool> GatherThenNorm(const float* mine,
                              std::span<const std::int64_t> columns,
                              std::int64_t rows,
                              const tensor::ThenNorm& norm);
  Result<bool> SumThenNorm(const float* part, std::int64_t rows, const tensor::ThenNorm& norm);

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(send_.bytes() + recv_.bytes() + device_recv_.bytes());
  }

 private:
  Result<> GatherOnDevice(const ops::Activations& mine,
                          std::span<const std::int64_t> columns,
                          std::int64_t rows,
                          ops::Activations* full);
  void Spread(const float* in,
              std::span<const std::int64_t> columns,
              std::int64_t rows,
              float* full);

  ops::Device* device_ = nullptr;
  comm::Communicator* tp_ = nullptr;
  ops::Memory send_, recv_;          // host
  ops::Memory device_recv_;          // where the device has its own memory
  std::vector<std::size_t> counts_;  // floats per rank, or bytes
};

}  // namespace inferd::model
