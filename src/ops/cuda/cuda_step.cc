// SPDX-License-Identifier: Apache-2.0
// What the operations of a step share on a CUDA device, and the attention over it.
#include "base/check.h"
#include "base/error.h"
#include "kernels/attention/qkv_cuda.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

namespace k = kernels::cuda;

// Rows that the row kernel takes at once where a step has more: bounds its workspace.
constexpr std::int64_t kRowsAtOnce = 64;
// Rows for which the attention's workspace would be larger are attended to one part after another.
constexpr std::size_t kMostWorkspaceBytes = std::size_t{256} << 20U;
// Sequences with fewer new rows go to the row kernel: tiles of 64 would be nearly empty.
constexpr std::int64_t kTileRows = 8;

// The lists of StepPlaces; positions come first.
constexpr std::int64_t kIds = 1;
constexpr std::int64_t kSequenceOf = 2;
constexpr std::int64_t kRowBegin = 3;
constexpr std::int64_t kLists = 4;

k::KvPages PagesOf(const KvLayer& kv) {
  k::KvPages pages;
  pages.base = kv.base;
  pages.page_bytes = static_cast<std::int64_t>(kv.page_bytes);
  pages.format = CudaDevice::FormatOf(kv.type);
  pages.kv_heads = static_cast<int>(kv.kv_heads);
  pages.head_dim = static_cast<int>(kv.head_dim);
  pages.k_scale = kv.k_scale;
  pages.v_scale = kv.v_scale;
  return pages;
}

}  // namespace

k::KvFormat CudaDevice::FormatOf(KvType type) {
  switch (type) {
    case KvType::kF16:
      return k::KvFormat::kF16;
    case KvType::kBf16:
      return k::KvFormat::kBf16;
    case KvType::kF32:
      return k::KvFormat::kF32;
    case KvType::kFp8:
      return k::KvFormat::kF8E4M3;
    case KvType::kInt8:
      return k::KvFormat::kInt8;
  }
  return k::KvFormat::kF16;
}

std::int64_t CudaDevice::PageTokens() const { return k::kCudaPageTokens; }

std::size_t CudaDevice::KvPageBytes(KvType type,
                                    std::int64_t kv_heads,
                                    std::int64_t head_dim) const {
  return k::KvBytesPerPage(FormatOf(type), kv_heads, head_dim);
}

Result<> CudaDevice::Reserve(const StepLimits& limits) {
  upload_ = {};
  const auto rows = static_cast<std::size_t>(limits.rows);
  const auto sequences = static_cast<std::size_t>(limits.sequences);
  const auto pages = static_cast<std::size_t>(limits.pages_per_sequence);
  constexpr std::size_t kAlign = 256;
  places_.line = limits.rows + 1;
  places_.max_pages = limits.pages_per_sequence;
  const std::size_t lists_bytes = kLists * (rows + 1) * sizeof(std::int32_t);
  const std::size_t pages_bytes = sequences * pages * sizeof(std::int32_t);
  for (std::size_t turn = 0; turn < places_.host.size(); ++turn) {
    INFERD_ASSIGN(places_.host[turn], AllocateHost(lists_bytes, "the rows of a step"));
    INFERD_ASSIGN(places_.host_pages[turn], AllocateHost(pages_bytes, "the page tables of a step"));
  }
  INFERD_ASSIGN(places_.device, Allocate(lists_bytes, "the rows of a step"));
  INFERD_ASSIGN(places_.device_pages, Allocate(pages_bytes, "the page tables of a step"));
  INFERD_ASSIGN(staging_,
                MakeStaging(static_cast<std::size_t>(limits.row_lists) *
                            (rows * sizeof(std::int32_t) + kAlign)));
  graphs_.Configure(limits.graph_sizes, limits.pages_per_sequence * k::kCudaPageTokens);
  step_.runs.reserve(sequences);
  row_kernel_only_ = limits.batch_invariant;
  std::vector<std::int32_t> begin = {0};
  for (std::size_t i = 0; i < limits.kv_head_of.size(); ++i) {
    while (static_cast<std::int32_t>(begin.size()) <= limits.kv_head_of[i]) {
      begin.push_back(static_cast<std::int32_t>(i));
    }
  }
  begin.push_back(static_cast<std::int32_t>(limits.kv_head_of.size()));
  for (std::size_t i = 1; i < begin.size(); ++i) {
    max_group_ = std::max(max_group_, begin[i] - begin[i - 1]);
  }
  const std::size_t bytes = begin.size() * sizeof(std::int32_t);
  INFERD_ASSIGN(group_begin_, Allocate(bytes, "the head groups"));
  Copy(group_begin_.data(), begin.data(), bytes);
  const auto workspace_bytes = [&] {
    return k::AttentionWorkspaceBytes(workspace_rows_,
                                      static_cast<std::int64_t>(limits.kv_head_of.size()),
                                      limits.head_dim,
                                      limits.pages_per_sequence * k::kCudaPageTokens);
  };
  workspace_rows_ = std::min(limits.rows, std::max(limits.sequences, kRowsAtOnce));
  while (workspace_rows_ > 1 && workspace_bytes() > kMostWorkspaceBytes) {
    workspace_rows_ = (workspace_rows_ + 1) / 2;
  }
  INFERD_ASSIGN(workspace_, Allocate(workspace_bytes(), "attention"));
  INFERD_TRY(ReserveProducts(limits));
  return Wait();
}

void CudaDevice::ListRuns(const StepRows& step) {
  step_.runs.clear();
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    const AttentionSequence& sequence = step.sequences[s];
    const bool tiles = !row_kernel_only_ && sequence.num_rows >= kTileRows;
    if (step_.runs.empty() || step_.runs.back().tiles != tiles) {
      AttentionRun& run = step_.runs.emplace_back();
      run.tiles = tiles;
      run.first_row = sequence.first_row;
      run.first_sequence = static_cast<std::int64_t>(s);
    }
    AttentionRun& run = step_.runs.back();
    run.num_rows += sequence.num_rows;
    ++run.num_sequences;
    run.longest = std::max(run.longest, sequence.num_rows);
    run.tokens = std::max(run.tokens, sequence.start + sequence.num_rows);
  }
}

void CudaDevice::FillPlaces(const StepRows& step) {
  const std::int64_t line = places_.line;
  std::int32_t* const position = StepPlaces::Ints(places_.host[step_.turn]);
  std::int32_t* const ids = position + kIds * line;
  std::int32_t* const sequence_of = position + kSequenceOf * line;
  std::int32_t* const row_begin = position + kRowBegin * line;
  std::copy(step.positions.begin(), step.positions.end(), position);
  std::copy(step.ids.begin(), step.ids.end(), ids);
  std::int64_t next = 0;
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    const AttentionSequence& sequence = step.sequences[s];
    INFERD_CHECK(sequence.first_row == next &&
                 static_cast<std::int64_t>(sequence.pages.size()) * k::kCudaPageTokens >=
                     sequence.start + sequence.num_rows &&
                 static_cast<std::int64_t>(sequence.pages.size()) <= places_.max_pages);
    row_begin[s] = static_cast<std::int32_t>(next);
    next += sequence.num_rows;
    std::fill(sequence_of + row_begin[s], sequence_of + next, static_cast<std::int32_t>(s));
    std::copy(sequence.pages.begin(),
              sequence.pages.end(),
              StepPlaces::Ints(places_.host_pages[step_.turn]) +
                  static_cast<std::int64_t>(s) * places_.max_pages);
  }
  INFERD_CHECK(next == static_cast<std::int64_t>(step.positions.size()));
  row_begin[step.sequences.size()] = static_cast<std::int32_t>(next);
  std::fill(position + next, position + step_.rows.rows, -1);
  std::fill(ids + next, ids + step_.rows.rows, -1);
  std::fill(sequence_of + next, sequence_of + step_.rows.rows, 0);
}

void CudaDevice::TakeTurn() {
  if (steps_.begun - steps_.done >= StepsUnderWay::kMost) {
    (void)Wait();  // What it fails with, later waits tell too.
  }
  step_.turn = ++steps_.begun % places_.host.size();
  staging_.Turn();
  sample_staging_.Turn();
}

std::uint64_t CudaDevice::EndStep() {
  if (Use()) {
    Check(cudaEventRecord(steps_.ended[step_.turn], stream_), "the end of a step");
  }
  // A wait in the middle of a step was not for its end.
  steps_.done = std::min(steps_.done, steps_.begun - 1);
  return steps_.begun;
}

bool CudaDevice::IsStepDone(std::uint64_t step) {
  if (step <= steps_.done || !Use()) {
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (steps_.looked_at != step) {
    steps_.looked_at = step;
    steps_.first_look = now;
  }
  return queue_.Look(steps_.ended[step % steps_.ended.size()], now - steps_.first_look);
}

Result<> CudaDevice::WaitForStep(std::uint64_t step) {
  if (!Use()) {
    return *error_;
  }
  if (step <= steps_.done) {
    return {};
  }
  std::chrono::nanoseconds looked{};
  if (steps_.looked_at == step) {
    looked = std::chrono::steady_clock::now() - steps_.first_look;
  }
  const CudaQueue::Waited waited = queue_.WaitFor(steps_.ended[step % steps_.ended.size()], looked);
  steps_.done = step;
  return Conclude(waited);
}

std::int64_t CudaDevice::BeginStep(const StepRows& step) {
  step_.host = step;
  step_.rows = {};
  step_.shape = {};
  step_.runs.clear();
  if (step.positions.empty() || !Use()) {
    return static_cast<std::int64_t>(step.positions.size());
  }
  TakeTurn();
  ListRuns(step);
  step_.rows.rows = static_cast<std::int64_t>(step.positions.size());
  if (step_.runs.size() == 1 && !step_.runs[0].tiles) {
    // Only the row kernel: its launches depend on the number of rows and the bound of tokens.
    AttentionRun& run = step_.runs[0];
    step_.shape = graphs_.ShapeOf(step_.rows.rows, run.tokens);
    if (step_.shape.rows > 0) {
      step_.rows.rows = run.num_rows = step_.shape.rows;
      run.tokens = step_.shape.tokens;
    }
  }
  INFERD_CHECK_MSG(
      step_.rows.rows < places_.line && step.sequences.size() * sizeof(std::int32_t) *
                                                static_cast<std::size_t>(places_.max_pages) <=
                                            places_.device_pages.bytes(),
      "a step fits what was reserved");
  FillPlaces(step);
  std::size_t used_pages = 0;
  for (const AttentionSequence& sequence : step.sequences) {
    used_pages = std::max(used_pages, sequence.pages.size());
  }
  constexpr std::size_t kInt = sizeof(std::int32_t);
  const std::size_t line_bytes = static_cast<std::size_t>(places_.line) * kInt;
  CopyRows(places_.device.data(),
           line_bytes,
           places_.host[step_.turn].data(),
           line_bytes,
           static_cast<std::size_t>(step_.rows.rows + 1) * kInt,
           kLists);
  const std::size_t table_bytes = static_cast<std::size_t>(places_.max_pages) * kInt;
  CopyRows(places_.device_pages.data(),
           table_bytes,
           places_.host_pages[step_.turn].data(),
           table_bytes,
           used_pages * kInt,
           static_cast<std::int64_t>(step.sequences.size()));
  const std::int32_t* const lists = StepPlaces::Ints(places_.device);
  step_.rows.position = lists;
  step_.rows.sequence = lists + kSequenceOf * places_.line;
  step_.rows.pages = StepPlaces::Ints(places_.device_pages);
  step_.rows.max_pages = static_cast<int>(places_.max_pages);
  step_.ids = lists + kIds * places_.line;
  step_.row_begin = lists + kRowBegin * places_.line;
  return step_.rows.rows;
}

void CudaDevice::QkvPost(const QkvTask& task) {
  INFERD_CHECK(task.step.positions.data() == step_.host.positions.data());
  if (!Use()) {
    return;
  }
  k::QkvPostArgs args;
  args.q = task.q;
  args.k = task.k;
  args.v = task.v;
  args.ldq = task.ldq;
  args.ldk = task.ldk;
  args.ldv = task.ldv;
  args.q_heads = static_cast<int>(task.q_heads);
  args.q_norm = task.q_norm;
  args.k_norm = task.k_norm;
  args.norm_eps = task.norm_eps;
  args.cos = task.rope.cos;
  args.sin = task.rope.sin;
  args.rotary_dim = static_cast<int>(task.rope.rotary_dim);
  args.interleaved = task.rope.interleaved;
  args.step = step_.rows;
  args.kv = PagesOf(task.kv);
  Check(k::QkvPost(args, stream_), "rotating and storing K and V");
}

void CudaDevice::Attention(const AttentionTask& task) {
  INFERD_CHECK(task.sequences.data() == step_.host.sequences.data());
  if (task.kv.kv_rank > 0) {
    AttendLatent(task);
    return;
  }
  k::AttentionArgs args;
  args.q = task.q;
  args.ldq = task.ldq;
  args.q_heads = static_cast<int>(task.q_heads);
  args.group_begin = reinterpret_cast<const std::int32_t*>(group_begin_.data());
  args.max_group = max_group_;
  args.step = step_.rows;
  args.kv = PagesOf(task.kv);
  args.scale = task.scale;
  args.softcap = task.softcap;
  args.window = static_cast<int>(task.window);
  args.sinks = task.sinks;
  args.y = task.y;
  args.ldy = task.ldy;
  args.workspace = workspace_.floats();
  const bool has_tiles = k::HasAttentionTiles(args.kv);
  for (const AttentionRun& run : step_.runs) {
    args.max_tokens = run.tokens;
    if (run.tiles && has_tiles) {
      if (Use()) {
        Check(k::AttentionTiles(args,
                                step_.row_begin + run.first_sequence,
                                run.num_sequences,
                                run.longest,
                                stream_),
              "attention of a prefill");
      }
    } else {
      AttendRows(args, run);
    }
  }
}

void CudaDevice::AttendRows(const k::AttentionArgs& args, const AttentionRun& run) {
  for (std::int64_t done = 0; done < run.num_rows && Use(); done += workspace_rows_) {
    const std::int64_t row = run.first_row + done;
    k::AttentionArgs part = args;
    part.q += row * args.ldq;
    part.y += row * args.ldy;
    part.step.rows = std::min(workspace_rows_, run.num_rows - done);
    part.step.position += row;
    part.step.sequence += row;
    Check(k::AttentionRows(part, stream_), "attention");
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
