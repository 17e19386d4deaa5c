// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device that its peers reach: by CUDA's handles between processes, by its address
// within one.
#pragma once

#include "tensor/peer_memory.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <memory>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// A rank's own part of the memory; peers of the same process hold it too.
struct PeerRegion;

class CudaPeers final : public tensor::PeerAccess {
 public:
  explicit CudaPeers(int index) : index_(index) {}

  void set_stream(cudaStream_t stream) { stream_ = stream; }

  Result<tensor::PeerCard> Offer(std::chrono::milliseconds within) override;
  Result<std::unique_ptr<tensor::PeerMemory>> Open(
      int rank, std::span<const tensor::PeerCard> cards) override;

 private:
  const int index_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<PeerRegion> offered_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
