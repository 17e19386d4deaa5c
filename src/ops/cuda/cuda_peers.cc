// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_peers.h"

#include "base/error.h"
#include "kernels/all_reduce/all_reduce_cuda.h"
#include "kernels/all_reduce/gather_cuda.h"
#include "ops/cuda/stream_wait.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

struct PeerRegion {
  PeerRegion(int device, std::byte* at) : index(device), data(at) {}
  ~PeerRegion() {
    if (!left && cudaSetDevice(index) == cudaSuccess) {
      FreeUnlessHung(data);
    }
  }
  PeerRegion(const PeerRegion&) = delete;
  PeerRegion& operator=(const PeerRegion&) = delete;

  const int index;
  std::byte* const data;
  bool shown = false;  // to other processes, which may have opened it
  bool left = false;   // to the process's end
};

namespace {

namespace k = kernels::cuda;

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMaxFloats = 1024 * kKiB / static_cast<std::int64_t>(sizeof(float));

// The longest messages, in bytes. On H100s one-shot takes 10 us for 512 KiB over 4 ranks and 14 for
// 1 MiB, NCCL 21 and 23; with 8 ranks such kernels win up to some 64 KiB against the library's best
// and longer against its default. From vLLM: one-shot up to 512 KiB for 4 ranks and 256 for 8,
// always for 2 (../shared/docs/performance.md, section 1.3).
struct Limits {
  std::int64_t one_shot;
  std::int64_t two_shot;
};
constexpr Limits LimitsOf(int ranks) {
  if (ranks <= 2) {
    return {1024 * kKiB, 0};
  }
  return ranks <= 4 ? Limits{512 * kKiB, 1024 * kKiB} : Limits{64 * kKiB, 256 * kKiB};
}

/// What a PeerCard holds.
struct Card {
  std::uint64_t process = 0;  // drawn at random: process ids of two containers may be equal
  std::uint64_t region = 0;   // counted within the process
  char device[16] = {};       // its UUID
  cudaIpcMemHandle_t handle{};
};
static_assert(sizeof(Card) <= sizeof(tensor::PeerCard));

Card CardOf(const tensor::PeerCard& from) {
  Card card;
  std::memcpy(&card, from.data(), sizeof(card));
  return card;
}

/// The regions of this process, for ranks that are threads of it.
struct OwnRegions {
  std::mutex mutex;
  std::uint64_t drawn = std::uint64_t{std::random_device()()} << 32 | std::random_device()();
  std::uint64_t count = 0;
  std::map<std::uint64_t, std::weak_ptr<PeerRegion>> all;
};

OwnRegions& TheOwnRegions() {
  static OwnRegions regions;
  return regions;
}

// A forked process has drawn the same.
std::uint64_t ThisProcess() {
  return TheOwnRegions().drawn ^ static_cast<std::uint64_t>(::getpid());
}

Error Why(std::string_view what, cudaError_t error) {
  (void)cudaGetLastError();
  return Unavailable("{}: {}", what, cudaGetErrorString(error));
}

/// The device `uuid` as this process counts; -1: it does not see it.
int IndexOf(const char (&uuid)[16]) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, index) == cudaSuccess &&
        std::memcmp(properties.uuid.bytes, uuid, sizeof(uuid)) == 0) {
      return index;
    }
  }
  (void)cudaGetLastError();
  return -1;
}

/// Peers' memory as long as it is used.
struct Reached {
  std::vector<std::shared_ptr<PeerRegion>> held;  // the own first, then those of the same process
  std::vector<void*> opened;
  k::PeerRegions regions;

  Reached() = default;
  Reached(Reached&& other) noexcept = default;
  Reached& operator=(Reached&&) = delete;
  ~Reached() {
    for (void* memory : opened) {
      CloseUnlessHung(memory);
    }
  }
};

class CudaPeerMemory final : public tensor::PeerMemory {
 public:
  CudaPeerMemory(CudaPeers* owner,
                 std::uint64_t generation,
                 int index,
                 cudaStream_t stream,
                 Reached reached,
                 std::uint32_t* abort)
      : owner_(owner),
        generation_(generation),
        index_(index),
        stream_(stream),
        reached_(std::move(reached)),
        abort_(abort),
        limits_(LimitsOf(reached_.regions.ranks)) {
    reached_.regions.abort = abort;
  }
  // What is still in the stream names memory that ends here.
  ~CudaPeerMemory() override {
    if (cudaSetDevice(index_) != cudaSuccess) {
      return;
    }
    Abort();
    if (AwaitStream(stream_, kDrainFor) == cudaErrorNotReady) {
      return;  // Kernels may still read all of it, the word too.
    }
    FreeHostUnlessHung(abort_);
    owner_->Retire(generation_, std::move(reached_.held.front()));
  }
  CudaPeerMemory(const CudaPeerMemory&) = delete;
  CudaPeerMemory& operator=(const CudaPeerMemory&) = delete;

  Result<bool> Sum(float* data, std::int64_t count) override {
    const std::int64_t bytes = Bytes(count);
    if (bytes > std::max(limits_.one_shot, limits_.two_shot)) {
      return false;
    }
    k::AllReduceArgs args;
    args.peers = reached_.regions;
    args.x = args.y = data;
    args.count = count;
    return Launched(bytes <= limits_.one_shot ? k::AllReduceOneShot(args, stream_)
                                              : k::AllReduceTwoShot(args, stream_));
  }

  Result<bool> Gather(const tensor::ColumnsTask& task) override {
    if (Bytes(MostColumns(task) * task.rows) > limits_.one_shot) {
      return false;
    }
    k::GatherArgs args;
    args.peers = reached_.regions;
    args.mine = task.mine;
    std::copy(task.columns.begin(), task.columns.end(), args.columns);
    args.rows = task.rows;
    args.full = task.full;
    return Launched(k::GatherFromPeers(args, stream_));
  }

  Result<bool> SumThenNorm(const float* part,
                           std::int64_t rows,
                           const tensor::ThenNorm& norm) override {
    return Norm(part, {}, rows, norm.k, norm);
  }
  Result<bool> GatherThenNorm(const tensor::ColumnsTask& task,
                              const tensor::ThenNorm& norm) override {
    return Norm(task.mine, task.columns, task.rows, MostColumns(task), norm);
  }

  void Abort() override { __atomic_store_n(abort_, 1U, __ATOMIC_RELEASE); }

 private:
  static std::int64_t Bytes(std::int64_t floats) {
    return floats * static_cast<std::int64_t>(sizeof(float));
  }
  static std::int64_t MostColumns(const tensor::ColumnsTask& task) {
    return *std::max_element(task.columns.begin(), task.columns.end());
  }
  Result<bool> Norm(const float* mine,
                    std::span<const std::int64_t> columns,
                    std::int64_t rows,
                    std::int64_t most,
                    const tensor::ThenNorm& norm) {
    if (Bytes(most * rows) > limits_.one_shot || !k::PeerNormFits(rows, most, kMaxFloats)) {
      return false;
    }
    k::PeerNormArgs args;
    args.peers = reached_.regions;
    args.mine = mine;
    std::copy(columns.begin(), columns.end(), args.columns);
    args.rows = rows;
    args.k = norm.k;
    args.x = norm.x;
    args.weight = norm.weight;
    args.eps = norm.eps;
    args.y = norm.y;
    return Launched(k::PeerAddRmsNorm(args, stream_));
  }
  static Result<bool> Launched(k::Status status) {
    if (status != k::Status::kOk) {
      const auto error = static_cast<cudaError_t>(status);
      return Internal("CUDA error {} ({})", static_cast<int>(error), cudaGetErrorString(error));
    }
    return true;
  }

  CudaPeers* const owner_;
  const std::uint64_t generation_;
  const int index_;
  const cudaStream_t stream_;
  Reached reached_;
  std::uint32_t* const abort_;  // pinned: the device reads it where it is
  const Limits limits_;
};

/// The memory of rank `peer`, from device `own_index`; `reached` keeps it.
Result<std::byte*> Reach(const Card& card, std::size_t peer, int own_index, Reached* reached) {
  const int index = IndexOf(card.device);
  if (index < 0) {
    return Unavailable("rank {}'s device is not among those that this process sees", peer);
  }
  int can = index == own_index ? 1 : 0;
  if (can == 0 && cudaDeviceCanAccessPeer(&can, own_index, index) != cudaSuccess) {
    (void)cudaGetLastError();
    can = 0;
  }
  if (can == 0) {
    return Unavailable("devices {} and {} have no peer access", own_index, index);
  }
  OwnRegions& own = TheOwnRegions();
  if (card.process != ThisProcess()) {
    void* memory = nullptr;
    if (const cudaError_t error =
            cudaIpcOpenMemHandle(&memory, card.handle, cudaIpcMemLazyEnablePeerAccess);
        error != cudaSuccess) {
      return Why("opening a peer's memory (cudaIpcOpenMemHandle)", error);
    }
    reached->opened.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  if (index != own_index) {
    const cudaError_t error = cudaDeviceEnablePeerAccess(index, 0);
    (void)cudaGetLastError();
    if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
      return Why("enabling peer access", error);
    }
  }
  const std::lock_guard lock(own.mutex);
  reached->held.push_back(own.all[card.region].lock());
  if (reached->held.back() == nullptr) {
    return Unavailable("rank {} has left", peer);
  }
  return reached->held.back()->data;
}

}  // namespace

Result<tensor::PeerCard> CudaPeers::Offer(std::chrono::milliseconds within) {
  ++offers_;
  const auto began = std::chrono::steady_clock::now();
  const auto left = [&] {
    return within -
           std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
  };
  Card card;
  cudaDeviceProp properties{};
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) {
    error = AwaitStream(stream_, within);
  }
  if (error == cudaErrorNotReady) {
    return DeadlineExceeded("the device is not done with what is before it after {} ms",
                            within.count());
  }
  offered_ = nullptr;  // That was opened by nobody.
  if (error == cudaSuccess) {
    error = cudaGetDeviceProperties(&properties, index_);
  }
  void* data = nullptr;
  const std::size_t bytes = k::ReduceRegionBytes(kMaxFloats);
  if (error == cudaSuccess) {
    error = cudaMalloc(&data, bytes);
  }
  if (error != cudaSuccess) {
    return Why("allocating what peers reach", error);
  }
  offered_ = std::make_shared<PeerRegion>(index_, static_cast<std::byte*>(data));
  error = cudaMemsetAsync(data, 0, bytes, stream_);
  if (error == cudaSuccess) {
    error = AwaitStream(stream_, left());
  }
  if (error == cudaErrorNotReady) {
    return DeadlineExceeded("the device has not cleared what peers reach after {} ms",
                            within.count());
  }
  if (error == cudaSuccess) {
    error = cudaIpcGetMemHandle(&card.handle, data);
  }
  if (error != cudaSuccess) {
    return Why("sharing device memory (cudaIpcGetMemHandle)", error);
  }
  OwnRegions& own = TheOwnRegions();
  const std::lock_guard lock(own.mutex);
  std::erase_if(own.all, [](const auto& region) { return region.second.expired(); });
  card.process = ThisProcess();
  card.region = ++own.count;
  own.all[card.region] = offered_;
  std::memcpy(card.device, properties.uuid.bytes, sizeof(card.device));
  tensor::PeerCard shown{};
  std::memcpy(shown.data(), &card, sizeof(card));
  return shown;
}

Result<std::unique_ptr<tensor::PeerMemory>> CudaPeers::Open(
    int rank, std::span<const tensor::PeerCard> cards) {
  const std::shared_ptr<PeerRegion> own = std::exchange(offered_, nullptr);
  if (own == nullptr || cards.size() > k::kMaxReduceRanks) {
    return Unavailable("{} ranks; {} at most reach each other's memory",
                       cards.size(),
                       static_cast<int>(k::kMaxReduceRanks));
  }
  own->shown = std::any_of(cards.begin(), cards.end(), [](const tensor::PeerCard& card) {
    return CardOf(card).process != ThisProcess();
  });
  all_offered_ = offers_;
  retired_.clear();
  Result<std::unique_ptr<tensor::PeerMemory>> opened = OpenAll(own, rank, cards);
  if (!opened.ok()) {
    Retire(offers_, own);  // Peers may have opened it.
  }
  return opened;
}

Result<std::unique_ptr<tensor::PeerMemory>> CudaPeers::OpenAll(
    std::shared_ptr<PeerRegion> own, int rank, std::span<const tensor::PeerCard> cards) {
  if (const cudaError_t error = cudaSetDevice(index_); error != cudaSuccess) {
    return Why("choosing the device", error);
  }
  Reached reached;
  reached.held.push_back(std::move(own));
  k::PeerRegions& regions = reached.regions;
  regions.rank = rank;
  regions.ranks = static_cast<int>(cards.size());
  regions.max_count = kMaxFloats;
  regions.region[rank] = reached.held.back()->data;
  for (std::size_t peer = 0; peer < cards.size(); ++peer) {
    if (peer != static_cast<std::size_t>(rank)) {
      INFERD_ASSIGN(regions.region[peer], Reach(CardOf(cards[peer]), peer, index_, &reached));
    }
  }
  void* abort = nullptr;
  if (const cudaError_t error = cudaMallocHost(&abort, sizeof(std::uint32_t));
      error != cudaSuccess) {
    return Why("allocating pinned memory", error);
  }
  std::memset(abort, 0, sizeof(std::uint32_t));
  return std::unique_ptr<tensor::PeerMemory>(std::make_unique<CudaPeerMemory>(
      this, offers_, index_, stream_, std::move(reached), static_cast<std::uint32_t*>(abort)));
}

// A rank that has offered memory for a later generation has left this one.
void CudaPeers::Retire(std::uint64_t generation, std::shared_ptr<PeerRegion> own) {
  if (generation >= all_offered_) {
    retired_.push_back(std::move(own));
  }
}

CudaPeers::~CudaPeers() {
  for (const std::shared_ptr<PeerRegion>& own : retired_) {
    own->left = own->shown;
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
