// SPDX-License-Identifier: Apache-2.0
// Expert parallelism over groups: each group's tokens travel to the groups that hold their experts
// and the results come home, by all-to-all over the ranks of equal tp_rank. Every group takes part
// in every MoE layer, even without rows. Who goes where is decided on the host; where the ranks
// have device collectives the rows themselves stay on the devices.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "ops/device.h"
#include "spec/parallel.h"

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::model {

class ExpertExchange {
 public:
  /// max_rows: most rows one group may send in a step. What it takes and gives lies on `device`.
  static Result<ExpertExchange> Make(int groups,
                                     std::int64_t max_rows,
                                     std::int64_t hidden,
                                     std::int64_t top_k,
                                     ops::Device& device);

  /// owner[e] is the group that holds expert e.
  void Join(comm::Communicator* ep, std::vector<std::int32_t> owner);

  /// Rows that came to this rank: all have an expert in this group.
  struct Arrived {
    std::int64_t rows = 0;
    const float* x = nullptr;                   // [rows, hidden]
    const std::int32_t* expert = nullptr;       // [rows, top_k], global; -1: in another group
    const float* weight = nullptr;              // [rows, top_k]
    const std::int32_t* host_expert = nullptr;  // `expert` on the host
    float* y = nullptr;                         // [rows, hidden], for the caller to fill
  };
  /// Sends each row once to every group that holds one of its experts.
  Result<Arrived> Send(const float* x,
                       std::int64_t rows,
                       const std::int32_t* expert,
                       const float* weight);
  /// Sends Arrived::y home; y [rows, hidden] of the rows given to Send = sum over the groups, in
  /// group order.
  Result<> Return(float* y, std::int64_t rows);

  std::int64_t bytes() const;

 private:
  ExpertExchange() = default;
  /// The ranks move rows from device to device: records hold experts and weights only.
  bool OnDevice() const { return ep_ != nullptr && ep_->device() != nullptr; }
  /// Of x in a record.
  std::size_t ValueBytes() const;
  std::size_t RowBytes() const;
  Result<> AllocateOnDevice();
  void FillRecords(const float* x,
                   std::int64_t rows,
                   const std::int32_t* expert,
                   const float* weight);
  Result<> SendRows(const float* x, std::int64_t rows);
  Result<> ReturnRows(float* y, std::int64_t rows);
  Result<> ExchangeCounts();
  void Unpack();

  ops::Device* device_ = nullptr;
  int groups_ = 1;
  std::int64_t max_rows_ = 0;
  std::int64_t hidden_ = 0;
  std::int64_t top_k_ = 0;
  comm::Communicator* ep_ = nullptr;
  std::vector<std::int32_t> owner_;
  // Rows sent to each group, in row order, one list after the other.
  std::vector<std::int32_t> sent_rows_;
  std::vector<std::uint64_t> send_counts_, recv_counts_;  // rows per group
  std::vector<std::size_t> send_bytes_, recv_bytes_;
  // Each way [groups * max_rows] records: x, then experts, then weights.
  ops::Memory send_, recv_;
  ops::Memory x_, y_;  // [groups * max_rows, hidden]
  // On a device of its own memory: what arrived there, and on the host what this rank sends.
  ops::Memory device_x_, device_y_;            // [groups * max_rows, hidden]
  ops::Memory device_expert_, device_weight_;  // [groups * max_rows, top_k]
  ops::Memory own_x_;                          // [max_rows, hidden]
  ops::Memory own_expert_, own_weight_;        // [max_rows, top_k]
  ops::Memory expert_, weight_;                // [groups * max_rows, top_k]
  // For rows that stay on the devices: those sent, or come home; and one group's share of y.
  ops::Memory device_sent_;          // [groups * max_rows, hidden]
  ops::Memory device_part_;          // [max_rows, hidden]
  std::vector<std::int32_t> place_;  // of each row among those of one group; -1: not there
};

}  // namespace inferd::model
