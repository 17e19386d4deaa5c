// SPDX-License-Identifier: Apache-2.0
// The CPU device: cuts each operation over the rank's threads and calls the kernels of the chosen
// instruction set. Owned and called by one thread, the rank's step thread (the loader's before the
// first step).
#pragma once

#include "kernels/kernels.h"
#include "ops/device.h"
#include "ops/thread_team.h"
#include "ops/work_shares.h"
#include "tensor/host_arena.h"
#include "tensor/host_buffer.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::ops {

kernels::Gate KernelGate(GateKind kind);

class CpuMatrix final : public PackedMatrix {
 public:
  CpuMatrix(kernels::PackForm pack_form,
            std::int64_t n,
            std::int64_t k,
            ActForm form,
            tensor::HostBuffer data);

  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }
  ActForm form() const override { return form_; }
  std::size_t bytes() const override { return data_.size(); }

  std::int64_t num_panels() const { return kernels::NumPanels(n_); }
  std::size_t panel_bytes() const { return panel_bytes_; }
  /// What a panel costs for so many rows, in bytes: reading it costs as much as about eight rows of
  /// arithmetic.
  double PanelCost(std::int64_t rows) const;
  /// Arguments of a product with this matrix over all its panels; rows, result and scratch are the
  /// caller's to fill in.
  kernels::MatMulArgs Args() const;

 private:
  kernels::PackForm pack_form_;
  ActForm form_;
  std::int64_t n_;
  std::int64_t k_;
  std::size_t panel_bytes_;
  tensor::HostBuffer data_;
};

class CpuActivations final : public Activations {
 public:
  CpuActivations(std::int64_t max_rows,
                 std::int64_t k,
                 unsigned forms,
                 const kernels::KernelTable& kernels);

  std::int64_t max_rows() const override { return max_rows_; }
  std::int64_t k() const override { return k_; }
  unsigned forms() const { return forms_; }

  std::size_t ColumnBytes(std::int64_t columns) const override;
  void CopyOut(std::int64_t rows, std::byte* out) const override;
  void CopyIn(std::int64_t rows,
              std::int64_t first,
              std::int64_t columns,
              const std::byte* in) override;

  /// Takes x[0..count) as values [column, column + count) of a row; column is a multiple of 32,
  /// count even unless it reaches the row's end.
  void Fill(std::int64_t row, std::int64_t column, const float* x, std::int64_t count);
  /// Copies a row of the same forms and k.
  void CopyRow(const CpuActivations& from, std::int64_t from_row, std::int64_t row);
  /// Makes rows [first, first + rows) a product's inputs.
  void SetInputs(std::int64_t first, std::int64_t rows, kernels::MatMulArgs* args) const;

 private:
  std::int64_t max_rows_;
  std::int64_t k_;
  unsigned forms_;
  const kernels::KernelTable& kernels_;
  std::ptrdiff_t ld_int8_;
  std::ptrdiff_t ld_bf16_;
  tensor::HostBuffer int8_;
  tensor::HostBuffer float_;
  tensor::HostBuffer bf16_;

  // One form as bytes, for CopyOut and CopyIn.
  struct Plane {
    std::byte* data;
    std::size_t row_bytes;
    std::int64_t unit;  // columns per unit
    std::size_t unit_bytes;
  };
  /// The forms held, in a fixed order; the rest have no bytes.
  std::array<Plane, 3> Planes() const;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(const kernels::KernelTable& kernels, std::unique_ptr<ThreadTeam> team);

  std::string Describe() const override;
  Result<Memory> Allocate(std::size_t bytes, std::string_view what) override;
  Result<Memory> AllocateHost(std::size_t bytes, std::string_view what) override;
  bool SharesHostMemory() const override { return true; }
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
  Result<> Wait() override { return {}; }
  bool Broken() const override { return false; }
  Result<> Reserve(const StepLimits&) override { return {}; }
  std::int64_t BeginStep(const StepRows& step) override {
    return static_cast<std::int64_t>(step.positions.size());
  }
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
  Result<> PrepareMoe(const MoeTask&) override { return {}; }
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
  void GatedMatMul(const Activations& in,
                   std::int64_t rows,
                   GateKind kind,
                   const std::array<MatMulTask, 2>& gate_up,
                   Activations* act) override;
  void Add(float* x, const float* y, std::int64_t rows, std::int64_t n) override;
  void Route(const RouteTask& task) override;
  void Moe(const MoeTask& task) override;
  void AddGated(
      float* y, const float* x, const float* gate, std::int64_t rows, std::int64_t n) override;
  void Softcap(float* x, float cap, std::int64_t count) override;
  std::int64_t PageTokens() const override { return kernels::kPageTokens; }
  std::size_t KvPageBytes(KvType type, std::int64_t kv_heads, std::int64_t head_dim) const override;
  std::size_t LatentPageBytes(KvType type, std::int64_t dim) const override;
  void ParallelFor(std::int64_t count,
                   void* context,
                   void (*fn)(void* context, std::int64_t index)) override;

 private:
  // A product whose panels are dealt over the threads by cost.
  struct PanelJob {
    kernels::MatMulArgs args;
    std::int64_t num_panels;
    double panel_cost;
    int PanelUnit() const { return kernels::TakesPairs(args) ? kernels::kPanelPair : 1; }
  };
  // Two products of the same rows that meet in rows [out_row, ..) of `out`, a gate and what it
  // lets through. Panel i of both makes the same columns.
  struct GatedJob {
    kernels::MatMulArgs gate;
    kernels::MatMulArgs up;
    CpuActivations* out;
    std::int64_t out_row;
    std::int64_t num_panels;
    double panel_cost;
    int PanelUnit() const {
      return kernels::TakesPairs(gate) || kernels::TakesPairs(up) ? kernels::kPanelPair : 1;
    }
  };
  // A tile of query rows of one KV head of one sequence.
  struct AttentionItem {
    const AttentionSequence* sequence;
    std::int64_t kv_head;
    std::int64_t first_head;  // query heads [first_head, first_head + num_heads) share the KV head
    std::int64_t num_heads;
    std::int64_t first;  // of the rows (token, head), token-major
    int count;
  };
  // Buffers of Moe, grown to the largest batch seen.
  struct MoeBuffers {
    std::int64_t assignments = 0;
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;
    unsigned in_forms = 0;
    unsigned mid_forms = 0;
    std::unique_ptr<CpuActivations> in;
    std::unique_ptr<CpuActivations> mid;
    tensor::HostBuffer out;             // [assignments, hidden]
    std::vector<std::int32_t> slot_of;  // [rows, top_k] -> sorted place or -1
    std::vector<std::int32_t> begin;    // [experts + 1], first place of each expert
  };

  /// body(thread, unit) for units [0, count): on the calling thread when `work` (values touched) is
  /// small, else dealt out.
  template <class F>
  void ForEach(std::int64_t count, std::int64_t work, F&& body);
  template <class Job, class F>
  void ForEachShare(std::span<const Job> jobs, F&& body);
  static kernels::MatMulArgs ProductArgs(const Activations& act,
                                         std::int64_t rows,
                                         const MatMulTask& task);
  void RunJobs();
  void RunGatedJobs(GateKind kind);
  void RunGated(
      const GatedJob& job, kernels::Gate kind, std::int64_t first, std::int64_t last, int thread);
  std::uint8_t* Scratch(int thread) {
    return reinterpret_cast<std::uint8_t*>(scratch_[static_cast<std::size_t>(thread)].data());
  }
  void ReserveRows(std::int64_t k);
  /// sequence_of_ = the rows of a step.
  void ListRows(const StepRows& step);
  void PostRow(const QkvTask& task, const AttentionSequence& sequence, std::int64_t row) const;
  void PostLatentRow(const LatentTask& task,
                     const AttentionSequence& sequence,
                     std::int64_t row) const;
  void AttendItem(const AttentionTask& task, const AttentionItem& item) const;
  void AttendLatent(const AttentionTask& task, const AttentionItem& item) const;
  void MoeBlock(const MoeTask& task, std::int64_t first_row, std::int64_t rows);
  void SortByExpert(const MoeTask& task, std::int64_t first_row, std::int64_t rows);
  void ReserveMoe(const MoeTask& task, std::int64_t assignments);
  void AddGatedExperts(const MoeTask& task);
  void AddDownExperts(const MoeTask& task);

  const kernels::KernelTable& kernels_;
  std::unique_ptr<ThreadTeam> team_;
  WorkShares shares_;                              // of the region that runs
  tensor::HostArena weights_;                      // of packed matrices
  std::vector<tensor::HostBuffer> scratch_;        // one per thread, for products
  std::vector<std::vector<float>> row_scratch_;    // one row per thread, grown to the widest
  std::vector<std::vector<float>> gated_scratch_;  // one per thread, grown to the largest
  std::vector<PanelJob> jobs_;
  std::vector<GatedJob> gated_jobs_;
  std::vector<AttentionItem> items_;
  std::vector<std::pair<const AttentionSequence*, std::int64_t>>
      sequence_of_;  // and row, of the rows of QkvPost and LatentPost
  MoeBuffers moe_;
  // Inputs of HeadMatMul by their width, each grown to the largest batch seen.
  std::map<std::int64_t, std::unique_ptr<CpuActivations>> head_in_;
};

}  // namespace inferd::ops
