// SPDX-License-Identifier: Apache-2.0
// A GPU: every operation is one or a few launches on the rank's own stream. Compiled twice, against
// NVIDIA's runtime (namespace cuda) and against the emulated one of kernels/simt (namespace
// cuda_emu); nothing here knows which. Activations are float rows.
//
// Owned and called by one thread, as the CPU device. An operation that fails leaves its error for
// Wait; the device does nothing more after one.
#pragma once

#include "kernels/attention/attention_cuda.h"
#include "kernels/matmul/matmul_cuda.h"
#include "ops/cuda/cuda_activations.h"
#include "ops/cuda/cuda_graphs.h"
#include "ops/cuda/cuda_matrix.h"
#include "ops/cuda/cuda_products.h"
#include "ops/cuda/cuda_queue.h"
#include "ops/cuda/staging.h"
#include "ops/cuda/step_places.h"
#include "ops/cuda/stream_wait.h"
#include "ops/device.h"
#include "ops/thread_team.h"

#include <cuda_runtime.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

class CudaDevice final : public Device {
 public:
  /// `id` as tensor::DeviceQueue::device_id.
  CudaDevice(int index, std::string name, std::string id, std::unique_ptr<ThreadTeam> team);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  Result<> Init();

  /// With the version of cuBLASLt once Reserve has given it products.
  std::string Describe() const override;
  Result<Memory> Allocate(std::size_t bytes, std::string_view what) override;
  Result<Memory> AllocateHost(std::size_t bytes, std::string_view what) override;
  bool SharesHostMemory() const override { return false; }
  void CopyRows(void* to,
                std::size_t to_stride,
                const void* from,
                std::size_t from_stride,
                std::size_t bytes,
                std::int64_t rows) override;
  void Zero(void* at, std::size_t bytes) override;
  void ZeroPages(std::byte* base,
                 std::size_t page_bytes,
                 std::span<const std::int32_t> pages) override;
  Result<> Wait() override;
  tensor::DeviceQueue* queue() override { return &queue_; }
  bool Broken() const override { return error_.has_value() || ADeviceHangs(); }
  Result<> Reserve(const StepLimits& limits) override;
  std::int64_t BeginStep(const StepRows& step) override;
  bool Replay() override;
  bool EndGraph(bool done) override;
  bool RecordsGraphs() const override { return graphs_.records(); }
  void ResetGraphs(bool on) override { graphs_.Reset(on); }
  GraphCounts graph_counts() const override { return graphs_.counts(); }
  int StepsAtOnce() const override { return StepsUnderWay::kMost; }
  std::uint64_t EndStep() override;
  bool IsStepDone(std::uint64_t step) override;
  Result<> WaitForStep(std::uint64_t step) override;
  bool TakesScales() const override { return true; }
  bool TakesColumnOrder() const override { return true; }
  Result<std::unique_ptr<PackedMatrix>> Pack(DType type,
                                             std::span<const std::byte> rows,
                                             std::int64_t n,
                                             std::int64_t k,
                                             std::size_t row_bytes,
                                             const MatrixScales& scales,
                                             const ColumnOrder& order) override;
  Result<EmbeddingTable> MakeTable(DType type,
                                   std::span<const std::byte> rows,
                                   std::int64_t n,
                                   std::int64_t k) override;
  Result<> PrepareMoe(const MoeTask& task) override;
  std::unique_ptr<Activations> NewActivations(std::int64_t max_rows,
                                              std::int64_t k,
                                              unsigned forms) override;
  void Embed(DType type,
             const std::byte* table,
             std::int64_t table_rows,
             std::int64_t first_id,
             std::span<const std::int32_t> ids,
             std::int64_t hidden,
             float scale,
             float* x) override;
  void RmsNorm(const float* x,
               const float* weight,
               float eps,
               std::int64_t rows,
               std::int64_t k,
               Activations* act) override;
  void RmsNormFloat(const float* x,
                    const float* weight,
                    float eps,
                    std::int64_t rows,
                    std::int64_t k,
                    float* y) override;
  void AddRmsNorm(const AddNormTask& task, Activations* act) override;
  void AddRmsNormFloat(const AddNormTask& task, float* y) override;
  void Quantize(const float* x, std::int64_t ldx, std::int64_t rows, Activations* act) override;
  void MatMul(const Activations& act,
              std::int64_t rows,
              std::span<const MatMulTask> tasks) override;
  void QkvPost(const QkvTask& task) override;
  void Attention(const AttentionTask& task) override;
  void HeadMatMul(const HeadTask& task) override;
  void LatentPost(const LatentTask& task) override;
  void GateMul(GateKind kind,
               const float* gate,
               const float* up,
               std::int64_t ld,
               std::int64_t rows,
               std::int64_t ffn,
               Activations* act) override;
  void Add(float* x, const float* y, std::int64_t rows, std::int64_t n) override;
  void Route(const RouteTask& task) override;
  void Moe(const MoeTask& task) override;
  void AddGated(
      float* y, const float* x, const float* gate, std::int64_t rows, std::int64_t n) override;
  void Softcap(float* x, float cap, std::int64_t count) override;
  bool Samples() const override { return true; }
  Result<> ReserveSampling(const SampleLimits& limits) override;
  void Sample(const SampleTask& task) override;
  std::int64_t PageTokens() const override;
  std::size_t KvPageBytes(KvType type, std::int64_t kv_heads, std::int64_t head_dim) const override;
  std::size_t LatentPageBytes(KvType type, std::int64_t dim) const override;
  void ParallelFor(std::int64_t count,
                   void* context,
                   void (*fn)(void* context, std::int64_t index)) override;

  static kernels::cuda::KvFormat FormatOf(KvType type);

 private:
  /// The calling thread's CUDA calls go to this device. False after an error: do nothing.
  bool Use();
  void Check(cudaError_t error, std::string_view what);
  void Check(kernels::cuda::Status status, std::string_view what) {
    Check(static_cast<cudaError_t>(status), what);
  }

  // Buffers of Moe for the most (row, slot) pairs, and the experts' matrices of each layer.
  struct Experts {
    std::int64_t pairs = 0;
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;
    Memory begin, source, position;
    Memory slots;                  // [2, slots]: expert and count; of MaskPairs
    Memory slot_pairs, slot_rows;  // [slots, pairs]
    Memory gate, up;               // [pairs, ffn]
    Memory out;                    // [pairs, hidden]
    struct List {
      Memory rows;                  // [experts] device pointers
      Memory scales;                // [experts, scales of a matrix]; empty: none
      std::int64_t num_scales = 0;  // of a matrix
    };
    std::unordered_map<const PackedMatrix* const*, List> lists;
  };

  /// What a wait has shown, with the error to return.
  Result<> Conclude(const CudaQueue::Waited& waited);
  /// A copy of `ids` on the device, until the next wait; null after an error.
  const std::int32_t* Stage(std::span<const std::int32_t> ids);
  Result<Staging> MakeStaging(std::size_t bytes);
  /// `rows` host rows of `bytes`, `stride` apart, to the device through pinned memory.
  Result<> Upload(std::byte* to,
                  const std::byte* from,
                  std::size_t stride,
                  std::size_t bytes,
                  std::int64_t rows);
  Result<Memory> UploadRows(std::span<const std::byte> rows,
                            std::size_t stride,
                            std::size_t bytes,
                            std::int64_t n,
                            std::string_view what);
  Result<Memory> UploadAsFloat16(DType type,
                                 DType target,
                                 std::span<const std::byte> rows,
                                 std::size_t stride,
                                 std::int64_t n,
                                 std::int64_t k);
  /// The first row with an infinity or a NaN; n: none.
  std::int64_t FirstBadRow(DType type,
                           std::span<const std::byte> rows,
                           std::size_t stride,
                           std::int64_t n,
                           std::int64_t k);
  /// One for equal orders; null: in order.
  Result<std::shared_ptr<const ColumnList>> ListColumns(const ColumnOrder& order,
                                                        std::int64_t columns);
  /// Memory for inputs_, and cuBLASLt where it may be used.
  Result<> ReserveProducts(const StepLimits& limits);
  void StartLibrary(const CublasLtApi& api);
  void MultiplyInOrder(const CudaMatrix& weight,
                       const float* x,
                       std::int64_t rows,
                       const MatMulTask& task);
  /// False: our kernels are to do it, and then all of it.
  bool MultiplyByLibrary(const CudaMatrix& weight,
                         const float* x,
                         std::int64_t rows,
                         const MatMulTask& task);
  /// Products with weights and rows of bytes.
  void MatMulBytes(const CudaActivations& act, std::int64_t rows, const MatMulTask& task);
  /// Numbers a step and gives it its half of the host's memory, once no other step needs that.
  void TakeTurn();
  void ListRuns(const StepRows& step);
  /// Writes the step's lists and page tables into the pinned half of places_.
  void FillPlaces(const StepRows& step);
  void AttendRows(const kernels::cuda::AttentionArgs& args, const AttentionRun& run);
  void AttendLatent(const AttentionTask& task);
  Result<> ListExpertRows(std::span<const PackedMatrix* const> experts);
  kernels::cuda::GroupedArgs GroupedArgsOf(std::span<const PackedMatrix* const> experts) const;
  kernels::cuda::GroupedArgs PlacedArgs(std::span<const PackedMatrix* const> experts,
                                        std::int64_t pairs,
                                        bool first) const;
  void PlacePairs(const MoeTask& task);

  const int index_;
  const std::string name_;
  const std::unique_ptr<ThreadTeam> team_;  // for host work
  cudaStream_t stream_ = nullptr;
  CudaGraphs graphs_;
  CudaQueue queue_;
  std::optional<Error> error_;
  bool recording_ = false;
  cudaError_t recording_error_ = cudaSuccess;  // the last of a recording
  std::array<Memory, 2> upload_;               // pinned, while loading
  Staging staging_, sample_staging_;           // of a step; until it is waited for
  StepPlaces places_;
  bool row_kernel_only_ = false;
  Step step_;
  StepsUnderWay steps_;
  Memory group_begin_;  // [kv heads + 1]
  int max_group_ = 1;
  Memory workspace_;  // of the attention over workspace_rows_ rows at a time
  std::int64_t workspace_rows_ = 0;
  Experts experts_;
  ProductLibrary library_;
  ProductInputs inputs_;
  std::vector<std::shared_ptr<const ColumnList>> column_lists_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
