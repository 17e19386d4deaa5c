// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device that its peers reach: by CUDA's handles between processes, by its address
// within one.
#pragma once

#include "tensor/peer_memory.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// A rank's own part of the memory; peers of the same process hold it too.
struct PeerRegion;

class CudaPeers final : public tensor::PeerAccess {
 public:
  explicit CudaPeers(int index) : index_(index) {}
  ~CudaPeers() override;
  CudaPeers(const CudaPeers&) = delete;
  CudaPeers& operator=(const CudaPeers&) = delete;

  void set_stream(cudaStream_t stream) { stream_ = stream; }

  Result<tensor::PeerCard> Offer(std::chrono::milliseconds within) override;
  Result<std::unique_ptr<tensor::PeerMemory>> Open(
      int rank, std::span<const tensor::PeerCard> cards) override;

  /// Takes this rank's own part of a generation that ended, counted by the offers, and frees it
  /// when no peer reads it any more.
  void Retire(std::uint64_t generation, std::shared_ptr<PeerRegion> own);

 private:
  Result<std::unique_ptr<tensor::PeerMemory>> OpenAll(std::shared_ptr<PeerRegion> own,
                                                      int rank,
                                                      std::span<const tensor::PeerCard> cards);

  const int index_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<PeerRegion> offered_;
  std::uint64_t offers_ = 0;
  std::uint64_t all_offered_ = 0;  // the last of them that all ranks have made
  std::vector<std::shared_ptr<PeerRegion>> retired_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
