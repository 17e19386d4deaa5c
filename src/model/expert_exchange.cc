// SPDX-License-Identifier: Apache-2.0
#include "model/expert_exchange.h"

#include "base/check.h"
#include "base/error.h"

#include <algorithm>
#include <cstring>

namespace inferd::model {

Result<ExpertExchange> ExpertExchange::Make(int groups,
                                            std::int64_t max_rows,
                                            std::int64_t hidden,
                                            std::int64_t top_k,
                                            ops::Device& device) {
  ExpertExchange exchange;
  exchange.device_ = &device;
  exchange.groups_ = groups;
  exchange.max_rows_ = max_rows;
  exchange.hidden_ = hidden;
  exchange.top_k_ = top_k;
  const auto rows = static_cast<std::size_t>(groups * max_rows);
  const std::size_t matrix_bytes = rows * static_cast<std::size_t>(hidden) * sizeof(float);
  INFERD_ASSIGN(exchange.send_, device.AllocateHost(rows * exchange.RowBytes(), "expert exchange"));
  INFERD_ASSIGN(exchange.recv_, device.AllocateHost(rows * exchange.RowBytes(), "expert exchange"));
  INFERD_ASSIGN(exchange.x_, device.AllocateHost(matrix_bytes, "expert exchange"));
  INFERD_ASSIGN(exchange.y_, device.AllocateHost(matrix_bytes, "expert exchange"));
  const std::size_t list_bytes = rows * static_cast<std::size_t>(top_k) * sizeof(float);
  INFERD_ASSIGN(exchange.expert_, device.AllocateHost(list_bytes, "expert exchange"));
  INFERD_ASSIGN(exchange.weight_, device.AllocateHost(list_bytes, "expert exchange"));
  if (!device.SharesHostMemory()) {
    INFERD_TRY(exchange.AllocateOnDevice());
  }
  exchange.sent_rows_.reserve(rows);
  const auto n = static_cast<std::size_t>(groups);
  exchange.send_counts_.resize(n);
  exchange.recv_counts_.resize(n);
  exchange.send_bytes_.resize(n);
  exchange.recv_bytes_.resize(n);
  return exchange;
}

Result<> ExpertExchange::AllocateOnDevice() {
  const auto groups = static_cast<std::size_t>(groups_);
  const std::size_t x = x_.bytes();
  const std::size_t list = expert_.bytes();
  INFERD_ASSIGN(device_x_, device_->Allocate(x, "expert exchange"));
  INFERD_ASSIGN(device_y_, device_->Allocate(x, "expert exchange"));
  INFERD_ASSIGN(device_expert_, device_->Allocate(list, "expert exchange"));
  INFERD_ASSIGN(device_weight_, device_->Allocate(list, "expert exchange"));
  INFERD_ASSIGN(device_sent_, device_->Allocate(x, "expert exchange"));
  INFERD_ASSIGN(device_part_, device_->Allocate(x / groups, "expert exchange"));
  INFERD_ASSIGN(own_x_, device_->AllocateHost(x / groups, "expert exchange"));
  INFERD_ASSIGN(own_expert_, device_->AllocateHost(list / groups, "expert exchange"));
  INFERD_ASSIGN(own_weight_, device_->AllocateHost(list / groups, "expert exchange"));
  return {};
}

void ExpertExchange::Join(comm::Communicator* ep, std::vector<std::int32_t> owner) {
  ep_ = ep;
  owner_ = std::move(owner);
}

std::size_t ExpertExchange::ValueBytes() const {
  return OnDevice() ? 0 : static_cast<std::size_t>(hidden_) * sizeof(float);
}

std::size_t ExpertExchange::RowBytes() const {
  return ValueBytes() + static_cast<std::size_t>(top_k_) * (sizeof(std::int32_t) + sizeof(float));
}

std::int64_t ExpertExchange::bytes() const {
  return static_cast<std::int64_t>(send_.bytes() + recv_.bytes() + x_.bytes() + y_.bytes() +
                                   device_x_.bytes() + device_y_.bytes() + own_x_.bytes() +
                                   device_sent_.bytes() + device_part_.bytes() +
                                   expert_.bytes() * 2);
}

void ExpertExchange::FillRecords(const float* x,
                                 std::int64_t rows,
                                 const std::int32_t* expert,
                                 const float* weight) {
  const std::size_t x_bytes = ValueBytes();
  const std::size_t list_bytes = static_cast<std::size_t>(top_k_) * sizeof(float);
  sent_rows_.clear();
  std::byte* out = send_.data();
  for (int group = 0; group < groups_; ++group) {
    const std::size_t before = sent_rows_.size();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int32_t* experts = expert + row * top_k_;
      const auto is_here = [&](std::int32_t e) {
        return owner_[static_cast<std::size_t>(e)] == group;
      };
      if (std::none_of(experts, experts + top_k_, is_here)) {
        continue;
      }
      sent_rows_.push_back(static_cast<std::int32_t>(row));
      if (x_bytes > 0) {
        std::memcpy(out, x + row * hidden_, x_bytes);
      }
      auto* list = out + x_bytes;
      for (std::int64_t i = 0; i < top_k_; ++i) {
        const std::int32_t e = is_here(experts[i]) ? experts[i] : -1;
        std::memcpy(list + static_cast<std::size_t>(i) * sizeof(e), &e, sizeof(e));
      }
      std::memcpy(list + list_bytes, weight + row * top_k_, list_bytes);
      out += RowBytes();
    }
    send_counts_[static_cast<std::size_t>(group)] = sent_rows_.size() - before;
  }
}

Result<ExpertExchange::Arrived> ExpertExchange::Send(const float* x,
                                                     std::int64_t rows,
                                                     const std::int32_t* expert,
                                                     const float* weight) {
  INFERD_CHECK(rows <= max_rows_);
  const float* const own_x = x;
  if (!device_->SharesHostMemory()) {
    const std::size_t own_list_bytes = static_cast<std::size_t>(rows * top_k_) * sizeof(float);
    device_->Copy(own_x_.data(), x, static_cast<std::size_t>(rows) * ValueBytes());
    device_->Copy(own_expert_.data(), expert, own_list_bytes);
    device_->Copy(own_weight_.data(), weight, own_list_bytes);
    INFERD_TRY(device_->Wait());
    x = own_x_.floats();
    expert = reinterpret_cast<const std::int32_t*>(own_expert_.data());
    weight = own_weight_.floats();
  }
  FillRecords(x, rows, expert, weight);
  const std::size_t x_bytes = ValueBytes();
  const std::size_t list_bytes = static_cast<std::size_t>(top_k_) * sizeof(float);
  INFERD_TRY(ExchangeCounts());
  for (std::size_t group = 0; group < send_counts_.size(); ++group) {
    send_bytes_[group] = send_counts_[group] * RowBytes();
    recv_bytes_[group] = recv_counts_[group] * RowBytes();
  }
  std::size_t arrived = 0;
  for (const std::uint64_t count : recv_counts_) {
    arrived += count;
  }
  INFERD_TRY(ep_->AllToAllV({send_.data(), sent_rows_.size() * RowBytes()},
                            send_bytes_,
                            {recv_.data(), arrived * RowBytes()},
                            recv_bytes_));
  Unpack();
  if (OnDevice()) {
    INFERD_TRY(SendRows(own_x, rows));
  }
  Arrived result;
  result.rows = static_cast<std::int64_t>(arrived);
  result.x = x_.floats();
  result.host_expert = reinterpret_cast<const std::int32_t*>(expert_.data());
  result.expert = result.host_expert;
  result.weight = weight_.floats();
  result.y = y_.floats();
  if (!device_->SharesHostMemory()) {
    device_->Copy(device_x_.data(), x_.data(), arrived * x_bytes);
    device_->Copy(device_expert_.data(), expert_.data(), arrived * list_bytes);
    device_->Copy(device_weight_.data(), weight_.data(), arrived * list_bytes);
    result.x = device_x_.floats();
    result.expert = reinterpret_cast<const std::int32_t*>(device_expert_.data());
    result.weight = device_weight_.floats();
    result.y = device_y_.floats();
  }
  return result;
}

Result<> ExpertExchange::ExchangeCounts() {
  std::fill(send_bytes_.begin(), send_bytes_.end(), sizeof(std::uint64_t));
  INFERD_TRY(ep_->AllToAllV(std::as_bytes(std::span(send_counts_)),
                            send_bytes_,
                            std::as_writable_bytes(std::span(recv_counts_)),
                            send_bytes_));
  for (std::size_t group = 0; group < recv_counts_.size(); ++group) {
    if (recv_counts_[group] > static_cast<std::uint64_t>(max_rows_)) {
      return Internal("expert group {} announces {} rows; the step limit is {}",
                      group,
                      recv_counts_[group],
                      max_rows_);
    }
  }
  return {};
}

void ExpertExchange::Unpack() {
  const std::size_t x_bytes = ValueBytes();
  const auto k = static_cast<std::size_t>(top_k_);
  const std::byte* in = recv_.data();
  std::size_t rows = 0;
  for (const std::uint64_t count : recv_counts_) {
    rows += count;
  }
  for (std::size_t row = 0; row < rows; ++row, in += RowBytes()) {
    if (x_bytes > 0) {
      std::memcpy(x_.data() + row * x_bytes, in, x_bytes);
    }
    const std::size_t list_bytes = k * sizeof(float);
    std::memcpy(expert_.data() + row * list_bytes, in + x_bytes, list_bytes);
    std::memcpy(weight_.data() + row * list_bytes, in + x_bytes + list_bytes, list_bytes);
  }
}

Result<> ExpertExchange::Return(float* y, std::int64_t rows) {
  const std::size_t x_bytes = static_cast<std::size_t>(hidden_) * sizeof(float);
  std::size_t arrived = 0;
  for (std::size_t group = 0; group < send_counts_.size(); ++group) {
    send_bytes_[group] = recv_counts_[group] * x_bytes;
    recv_bytes_[group] = send_counts_[group] * x_bytes;
    arrived += recv_counts_[group];
  }
  if (OnDevice()) {
    return ReturnRows(y, rows);
  }
  const bool shares = device_->SharesHostMemory();
  if (!shares) {
    device_->Copy(y_.data(), device_y_.data(), arrived * x_bytes);
    INFERD_TRY(device_->Wait());
  }
  // The records sent earlier are no longer needed: their room takes the results.
  INFERD_TRY(ep_->AllToAllV({y_.data(), arrived * x_bytes},
                            send_bytes_,
                            {send_.data(), sent_rows_.size() * x_bytes},
                            recv_bytes_));
  float* const sum = shares ? y : own_x_.floats();
  std::fill(sum, sum + rows * hidden_, 0.0F);
  const float* in = send_.floats();
  for (const std::int32_t row : sent_rows_) {
    float* target = sum + row * hidden_;
    for (std::int64_t i = 0; i < hidden_; ++i) {
      target[i] += in[i];
    }
    in += hidden_;
  }
  if (!shares) {
    device_->Copy(y, sum, static_cast<std::size_t>(rows) * x_bytes);
  }
  return {};
}

// Embed is what gathers rows on the device: a row of x for every id.
Result<> ExpertExchange::SendRows(const float* x, std::int64_t rows) {
  const std::size_t x_bytes = static_cast<std::size_t>(hidden_) * sizeof(float);
  std::size_t done = 0;
  for (std::size_t group = 0; group < send_counts_.size(); ++group) {
    const std::size_t count = send_counts_[group];
    if (count > 0) {
      device_->Embed(DType::kF32,
                     reinterpret_cast<const std::byte*>(x),
                     rows,
                     0,
                     std::span(sent_rows_).subspan(done, count),
                     hidden_,
                     1,
                     device_sent_.floats() + done * static_cast<std::size_t>(hidden_));
    }
    done += count;
    send_bytes_[group] = count * x_bytes;
    recv_bytes_[group] = recv_counts_[group] * x_bytes;
  }
  return ep_->device()->AllToAllV(device_sent_.data(), send_bytes_, device_x_.data(), recv_bytes_);
}

// What came home from one group becomes rows in the order of y, zeros where it had none, and is
// added; so the sums are in group order, as on the host.
Result<> ExpertExchange::ReturnRows(float* y, std::int64_t rows) {
  INFERD_TRY(
      ep_->device()->AllToAllV(device_y_.data(), send_bytes_, device_sent_.data(), recv_bytes_));
  device_->Zero(y, static_cast<std::size_t>(rows * hidden_) * sizeof(float));
  std::size_t done = 0;
  for (const std::uint64_t count : send_counts_) {
    if (count == 0) {
      continue;
    }
    place_.assign(static_cast<std::size_t>(rows), -1);
    for (std::size_t i = 0; i < count; ++i) {
      place_[static_cast<std::size_t>(sent_rows_[done + i])] = static_cast<std::int32_t>(i);
    }
    const std::byte* const home =
        device_sent_.data() + done * static_cast<std::size_t>(hidden_) * sizeof(float);
    device_->Embed(DType::kF32,
                   home,
                   static_cast<std::int64_t>(count),
                   0,
                   place_,
                   hidden_,
                   1,
                   device_part_.floats());
    device_->Add(y, device_part_.floats(), rows, hidden_);
    done += count;
  }
  return {};
}

}  // namespace inferd::model
