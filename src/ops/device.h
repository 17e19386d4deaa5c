// SPDX-License-Identifier: Apache-2.0
// The operations a device offers to `model`: one call is one parallel region over the rank's own
// threads (CPU) or a few launches (CUDA). Arguments are plain pointers and sizes; checks and the
// choice of kernel happen behind this interface. All rows are independent: a row's bits never
// depend on its neighbours, on chunking or on the number of threads. Only the attention of a GPU
// for many rows of one sequence, and its products of many rows, take other kernels with other last
// bits, unless StepLimits::batch_invariant forbids it.
//
// Pointers are device addresses (from Allocate) unless they are said to be the host's; spans are
// the host's. On the CPU the two are one. Operations run in the order given; on a GPU they may
// still be running when the call returns, and what fails is told by the next wait.
#pragma once

#include "base/dtype.h"
#include "inferd/result.h"
#include "ops/memory.h"
#include "ops/sampling.h"
#include "ops/tasks.h"
#include "tensor/device_queue.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::ops {

/// Number formats in which a kernel takes activations; which one a matrix wants follows from its
/// stored type.
enum ActForm : unsigned {
  kActFloat = 1,    // float rows: F32, F16, BF16 and F8_E4M3 weights
  kActInt8 = 2,     // int8 blocks of 32 with scale and sums: all block-quantised weights
  kActBf16 = 4,     // bf16 rows: BF16 and F8_E4M3 weights of a CPU device with bf16_dot
  kActRowInt8 = 8,  // int8 or E4M3 with one scale per row: weights that MatrixScales::by_token asks
  kActRowFp8 = 16,  // it for
  /// Besides a form: CopyOut or CopyIn will be used, so that what a slice travels as is kept.
  kActCarried = 32,
};

/// A weight matrix in the kernels' layout, [n output rows, k inputs]. Immutable after packing.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual std::int64_t n() const = 0;
  virtual std::int64_t k() const = 0;
  virtual ActForm form() const = 0;
  virtual std::size_t bytes() const = 0;
};

/// Activation rows [rows, k] in one form or both at once. Owned by `model`'s arena; refilled every
/// step.
class Activations {
 public:
  virtual ~Activations() = default;
  virtual std::int64_t max_rows() const = 0;
  virtual std::int64_t k() const = 0;

  /// Bytes of `columns` columns of one row, all forms together; for carrying slices between ranks.
  virtual std::size_t ColumnBytes(std::int64_t columns) const = 0;
  /// out [rows, ColumnBytes(k)] = all columns of rows [0, rows). `out` is host or device memory.
  virtual void CopyOut(std::int64_t rows, std::byte* out) const = 0;
  /// Columns [first, first + columns) of rows [0, rows) = in [rows, ColumnBytes(columns)], which
  /// came from CopyOut of activations with the same forms and k = columns. `first` is a multiple of
  /// 32 where there is an int8 form. `in` is host or device memory.
  virtual void CopyIn(std::int64_t rows,
                      std::int64_t first,
                      std::int64_t columns,
                      const std::byte* in) = 0;
  /// The values themselves, [max_rows, k], where they are kept as floats, if beside another form;
  /// else null.
  virtual const float* Floats() const { return nullptr; }
  /// The same, to be filled: what other forms hold is of no account from then on.
  virtual float* FloatsToFill() { return nullptr; }
};

class Device {
 public:
  virtual ~Device() = default;

  /// "cpu avx512-vnni, 2 threads".
  virtual std::string Describe() const = 0;

  /// Zeroed device memory; zeroed pinned host memory for copies. Only before the first step. Both
  /// fail with kResourceExhausted; `what` names the use in the message.
  virtual Result<Memory> Allocate(std::size_t bytes, std::string_view what) = 0;
  virtual Result<Memory> AllocateHost(std::size_t bytes, std::string_view what) = 0;
  /// True: device memory is host memory, and Copy to have it on the host is not needed.
  virtual bool SharesHostMemory() const = 0;
  /// `rows` runs of `bytes`, to_stride and from_stride apart; each side host or device memory.
  /// Host memory that is read may change once Wait has returned, unless it came from elsewhere than
  /// AllocateHost: then at once.
  virtual void CopyRows(void* to,
                        std::size_t to_stride,
                        const void* from,
                        std::size_t from_stride,
                        std::size_t bytes,
                        std::int64_t rows) = 0;
  void Copy(void* to, const void* from, std::size_t bytes) {
    CopyRows(to, bytes, from, bytes, bytes, 1);
  }
  virtual void Zero(void* at, std::size_t bytes) = 0;
  /// Zeroes pages [page_bytes each] of `base`.
  virtual void ZeroPages(std::byte* base,
                         std::size_t page_bytes,
                         std::span<const std::int32_t> pages) = 0;
  /// Everything given so far has been done: the host may read what was copied to it. The first
  /// failure of an operation since the device was made; it is not to be used after one.
  virtual Result<> Wait() = 0;
  /// For collectives on the device's own memory; null where the host's memory is the device's. With
  /// a guard in place, Wait also fails with the guard's error, which leaves the device whole.
  virtual tensor::DeviceQueue* queue() { return nullptr; }
  /// True after such a failure: only another process gets a working device.
  virtual bool Broken() const = 0;
  /// Room for what BeginStep will bring; once, before the first step.
  virtual Result<> Reserve(const StepLimits& limits) = 0;
  /// How many steps may be under way at once: begun, and not waited for. Beginning one more waits.
  virtual int StepsAtOnce() const { return 1; }
  /// Comes before the operations of a step, with the rows that Embed, QkvPost and Attention will
  /// name. Returns for how many rows the operations are to be given: the step's, or more where a
  /// graph has more; those have no token, see nothing and store nothing.
  virtual std::int64_t BeginStep(const StepRows& step) = 0;
  /// The operations between BeginStep and EndGraph must depend on nothing but the number of rows,
  /// with what changes read from memory. True: the device has recorded them before and replays
  /// them, so they are left out, and EndGraph too. False: give them.
  virtual bool Replay() { return false; }
  /// False: they could not be recorded and have not been done. Give them once more.
  /// `done` false: an operation among them could not be given, and whatever is recorded is dropped.
  virtual bool EndGraph([[maybe_unused]] bool done) { return true; }
  /// False: a recording has failed, or none was asked for. Steps of ranks that exchange in them are
  /// recorded by all of these or by none.
  virtual bool RecordsGraphs() const { return false; }
  /// Forgets what was recorded. On: steps are recorded from now on, where RecordsGraphs.
  virtual void ResetGraphs([[maybe_unused]] bool on) {}
  virtual GraphCounts graph_counts() const { return {}; }
  /// Behind everything given to the step begun last: its name for the two below. The next step may
  /// begin; Wait ends it too.
  virtual std::uint64_t EndStep() { return 0; }
  /// True: WaitForStep returns at once. Asked again and again by who has other things to do.
  virtual bool IsStepDone(std::uint64_t) { return true; }
  /// As Wait, but only for what was given before that EndStep.
  virtual Result<> WaitForStep(std::uint64_t) { return Wait(); }

  /// True: Pack takes scales, for F8_E4M3 and I8.
  virtual bool TakesScales() const { return false; }
  /// True: Pack takes columns in another order than that of the inputs, for MatMul.
  virtual bool TakesColumnOrder() const { return false; }
  /// Packs host rows [n, k] stored as `type` (row_bytes apart) into the kernels' layout. Fails when
  /// k is no multiple of the block, on an unsupported type, or when scales hold Inf or NaN (naming
  /// the row). With an order the matrix' k() is that of the order.
  virtual Result<std::unique_ptr<PackedMatrix>> Pack(DType type,
                                                     std::span<const std::byte> rows,
                                                     std::int64_t n,
                                                     std::int64_t k,
                                                     std::size_t row_bytes,
                                                     const MatrixScales& scales = {},
                                                     const ColumnOrder& order = {}) = 0;
  /// Stored host rows [n, k] for Embed. They must outlive the table where it reads them in place.
  virtual Result<EmbeddingTable> MakeTable(DType type,
                                           std::span<const std::byte> rows,
                                           std::int64_t n,
                                           std::int64_t k) = 0;
  /// Comes once for the weights of each MoeTask before the first one, with its most rows.
  virtual Result<> PrepareMoe(const MoeTask& task) = 0;
  virtual std::unique_ptr<Activations> NewActivations(std::int64_t max_rows,
                                                      std::int64_t k,
                                                      unsigned forms) = 0;

  /// x [rows, hidden] = table[id - first_id] * scale; ids outside [first_id, first_id + table rows)
  /// give zero rows. `table` comes from MakeTable. The very span that BeginStep got is on the
  /// device already, with the rows that BeginStep added.
  virtual void Embed(DType type,
                     const std::byte* table,
                     std::int64_t table_rows,
                     std::int64_t first_id,
                     std::span<const std::int32_t> ids,
                     std::int64_t hidden,
                     float scale,
                     float* x) = 0;
  /// act = RmsNorm(x) * weight in the forms `act` was made with. x [rows, k].
  virtual void RmsNorm(const float* x,
                       const float* weight,
                       float eps,
                       std::int64_t rows,
                       std::int64_t k,
                       Activations* act) = 0;
  /// y = RmsNorm(x) * weight, float to float (may alias).
  virtual void RmsNormFloat(const float* x,
                            const float* weight,
                            float eps,
                            std::int64_t rows,
                            std::int64_t k,
                            float* y) = 0;
  /// Add, then RmsNorm, with the same bits: one pass over memory where a device has it.
  virtual void AddRmsNorm(const AddNormTask& task, Activations* act);
  virtual void AddRmsNormFloat(const AddNormTask& task, float* y);
  /// act = x in the forms `act` was made with; rows of x are ldx apart.
  virtual void Quantize(const float* x, std::int64_t ldx, std::int64_t rows, Activations* act) = 0;
  /// All tasks share the input rows; one region.
  virtual void MatMul(const Activations& act,
                      std::int64_t rows,
                      std::span<const MatMulTask> tasks) = 0;
  virtual void QkvPost(const QkvTask& task) = 0;
  virtual void Attention(const AttentionTask& task) = 0;
  virtual void HeadMatMul(const HeadTask& task) = 0;
  virtual void LatentPost(const LatentTask& task) = 0;
  /// act = gate_fn(gate) * up, [rows, ffn].
  virtual void GateMul(GateKind kind,
                       const float* gate,
                       const float* up,
                       std::int64_t ld,
                       std::int64_t rows,
                       std::int64_t ffn,
                       Activations* act) = 0;
  /// MatMul, then GateMul, with the same bits; y of the tasks may be used on the way. `act` may be
  /// `in`.
  virtual void GatedMatMul(const Activations& in,
                           std::int64_t rows,
                           GateKind kind,
                           const std::array<MatMulTask, 2>& gate_up,
                           Activations* act);
  /// x += y, [rows, n].
  virtual void Add(float* x, const float* y, std::int64_t rows, std::int64_t n) = 0;
  virtual void Route(const RouteTask& task) = 0;
  virtual void Moe(const MoeTask& task) = 0;
  /// y += sigmoid(gate[row]) * x, [rows, n]; without a gate y += x.
  virtual void AddGated(
      float* y, const float* x, const float* gate, std::int64_t rows, std::int64_t n) = 0;

  /// x = cap * tanh(x / cap), `count` values.
  virtual void Softcap(float* x, float cap, std::int64_t count) = 0;
  /// True: Sample works, once ReserveSampling has made room; else logits are the host's to sample.
  virtual bool Samples() const { return false; }
  virtual Result<> ReserveSampling(const SampleLimits&) { return {}; }
  virtual void Sample(const SampleTask&) {}

  /// Tokens per KV page of Attention and QkvPost.
  virtual std::int64_t PageTokens() const = 0;
  /// Bytes of one page of one layer: kv_heads heads of head_dim, K and V.
  virtual std::size_t KvPageBytes(KvType type,
                                  std::int64_t kv_heads,
                                  std::int64_t head_dim) const = 0;
  /// The same of a latent cache whose tokens have `dim` values.
  virtual std::size_t LatentPageBytes(KvType type, std::int64_t dim) const = 0;
  /// Runs fn(thread, threads) on the rank's threads: for packing and host work outside a step.
  virtual void ParallelFor(std::int64_t count,
                           void* context,
                           void (*fn)(void* context, std::int64_t index)) = 0;
};

struct CpuOptions {
  int threads = 1;
  /// CPUs to pin the threads to, one each; empty: not pinned.
  std::span<const int> cpus;
  /// Highest instruction set to use: "auto", "scalar", "avx2", "avx512". INFERD_CPU_ISA stands in
  /// for auto; below AVX-512 there is no bf16_dot.
  std::string_view isa = "auto";
  /// BF16 weights meet activations rounded to bf16 (vdpbf16ps) in place of floats.
  bool bf16_dot = false;
};

/// Whether bf16_dot is faster than floats on this host's CPU.
bool HasFastBf16();

Result<std::unique_ptr<Device>> MakeCpuDevice(const CpuOptions& options);

struct CudaOptions {
  /// Which of the host's devices: an index, a GPU UUID or a MIG UUID. The last two set
  /// CUDA_VISIBLE_DEVICES of this process and work only before its first CUDA call.
  std::string_view name = "0";
  int threads = 1;  // of the host, for what follows the logits
  std::span<const int> cpus;
};

/// kUnavailable with one sentence when the host has no CUDA device or this build no CUDA backend.
Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaOptions& options);
/// The same code on the emulated device of this process; `name` is an index that only Describe
/// shows. kUnimplemented when the build leaves it out.
Result<std::unique_ptr<Device>> MakeCudaEmuDevice(const CudaOptions& options);

/// Memory of each device of this host, as CUDA_VISIBLE_DEVICES leaves them. kUnavailable: none, and
/// why.
Result<std::vector<std::int64_t>> CudaDeviceBytes();

/// By LoadRequest::device: "cpu", "cuda:<name>", "cuda-emu:<index>". bf16_dot: of a CPU device.
Result<std::unique_ptr<Device>> MakeDevice(std::string_view device,
                                           int threads,
                                           std::span<const int> cpus,
                                           bool bf16_dot = false);

}  // namespace inferd::ops
