// SPDX-License-Identifier: Apache-2.0
// Every collective becomes messages between pairs of ranks; what a group of calls gives one
// communicator is one piece of work of its stream.
#include "kernels/simt/nccl.h"

#include "kernels/simt/nccl_segment.h"
#include "kernels/simt/runtime_api.h"
#include "kernels/simt/runtime_state.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::simt {
namespace {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
constexpr int kVersion = 22703;
constexpr int kUint8 = 1;
constexpr int kFloat32 = 7;
constexpr int kSum = 0;
constexpr unsigned kMagic = 0xcafebeef;

struct UniqueId {
  char bytes[128];
};

struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

enum class Kind : std::uint32_t { kMessage, kAllReduce, kAllGather };

// In front of every message.
struct Head {
  Kind kind = Kind::kMessage;
  std::uint32_t number = 0;  // of the collective, counted over the communicator's life
  std::uint64_t bytes = 0;

  bool operator==(const Head&) const = default;
};

struct Comm {
  std::unique_ptr<NcclSegment> segment;
  int rank = 0;
  int ranks = 0;
  bool ready = false;
  int under_way = 0;  // looks until the last call has an answer
  std::uint32_t collectives = 0;
  std::string last_error;
  std::atomic<int> error{kSuccess};
  std::atomic<bool> aborted{false};
};

// What a ncclComm_t points to; work in a stream keeps the communicator beyond its abort.
struct Handle {
  std::shared_ptr<Comm> comm;
};

std::atomic<int> g_error{kSuccess};
std::atomic<std::uint64_t> g_calls{0};

struct Transfer {
  int peer = 0;
  bool sends = false;
  char* data = nullptr;
  Head head;
  std::size_t moved = 0;  // of head and data together
  Head received;

  std::size_t size() const { return sizeof(Head) + head.bytes; }
  bool done() const { return moved == size(); }
};

class Work {
 public:
  explicit Work(std::shared_ptr<Comm> of) : comm_(std::move(of)) {}

  void Send(Kind kind, std::uint32_t number, int peer, const void* data, std::size_t bytes) {
    Add(peer, true, const_cast<void*>(data), {kind, number, bytes});
  }
  void Receive(Kind kind, std::uint32_t number, int peer, void* data, std::size_t bytes) {
    Add(peer, false, data, {kind, number, bytes});
  }
  /// Adds the peers' vectors to `data` when all have come.
  void SumInto(float* data, std::size_t count) {
    sum_ = data;
    count_ = count;
    received_.resize(count * static_cast<std::size_t>(comm_->ranks));
  }
  float* ReceivedFrom(int peer) {
    return received_.data() + static_cast<std::size_t>(peer) * count_;
  }

  const Comm& comm() const { return *comm_; }

  /// One look at every transfer. True when all is done, or the communicator is no more.
  bool Advance() {
    bool done = true;
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      if (comm_->aborted) {
        return true;
      }
      if (!transfers_[i].done() && IsNext(i)) {
        Move(&transfers_[i]);
      }
      done = done && transfers_[i].done();
    }
    if (!done) {
      return false;
    }
    Sum();
    for (Transfer& transfer : transfers_) {
      transfer.moved = 0;  // a graph may run it again
    }
    return true;
  }

 private:
  void Add(int peer, bool sends, void* data, const Head& head) {
    Transfer& transfer = transfers_.emplace_back();
    transfer.peer = peer;
    transfer.sends = sends;
    transfer.data = static_cast<char*>(data);
    transfer.head = head;
  }

  // Messages of one direction between two ranks keep their order.
  bool IsNext(std::size_t index) const {
    const Transfer& own = transfers_[index];
    return std::none_of(transfers_.begin(),
                        transfers_.begin() + static_cast<std::ptrdiff_t>(index),
                        [&](const Transfer& before) {
                          return !before.done() && before.peer == own.peer &&
                                 before.sends == own.sends;
                        });
  }

  void Move(Transfer* transfer) {
    NcclRing& ring = transfer->sends ? comm_->segment->RingOf(comm_->rank, transfer->peer)
                                     : comm_->segment->RingOf(transfer->peer, comm_->rank);
    while (!transfer->done() && comm_->error == kSuccess) {
      const bool in_head = transfer->moved < sizeof(Head);
      Head* const head = transfer->sends ? &transfer->head : &transfer->received;
      char* const at = in_head ? reinterpret_cast<char*>(head) + transfer->moved
                               : transfer->data + (transfer->moved - sizeof(Head));
      const std::size_t left = (in_head ? sizeof(Head) : transfer->size()) - transfer->moved;
      const std::size_t n = transfer->sends ? ring.Write(at, left) : ring.Read(at, left);
      transfer->moved += n;
      if (!transfer->sends && transfer->moved == sizeof(Head)) {
        CheckHead(*transfer);
      }
      if (n == 0) {
        return;
      }
    }
  }

  void CheckHead(const Transfer& transfer) {
    if (transfer.received == transfer.head) {
      return;
    }
    char text[160];
    std::snprintf(text,
                  sizeof(text),
                  "rank %d sends kind %u number %u of %llu bytes, rank %d expects %u, %u, %llu",
                  transfer.peer,
                  static_cast<unsigned>(transfer.received.kind),
                  transfer.received.number,
                  static_cast<unsigned long long>(transfer.received.bytes),
                  comm_->rank,
                  static_cast<unsigned>(transfer.head.kind),
                  transfer.head.number,
                  static_cast<unsigned long long>(transfer.head.bytes));
    comm_->last_error = text;
    comm_->error = kInvalidUsage;
  }

  // From the last rank to the first: who relies on another order than NCCL promises shall notice.
  void Sum() {
    if (sum_ == nullptr) {
      return;
    }
    std::copy_n(sum_, count_, ReceivedFrom(comm_->rank));
    std::fill_n(sum_, count_, 0.0F);
    for (int r = comm_->ranks - 1; r >= 0; --r) {
      for (std::size_t i = 0; i < count_; ++i) {
        sum_[i] += ReceivedFrom(r)[i];
      }
    }
  }

  const std::shared_ptr<Comm> comm_;
  std::vector<Transfer> transfers_;
  float* sum_ = nullptr;
  std::size_t count_ = 0;
  std::vector<float> received_;  // [ranks, count]
};

// The calls of this thread's open group.
struct Group {
  int depth = 0;
  struct Piece {
    std::shared_ptr<Comm> comm;
    std::shared_ptr<Work> work;
    cudaStream_t stream;
    bool takes_messages;
  };
  std::vector<Piece> pieces;
};
thread_local Group t_group;

/// The work that a call of `comm` adds to: its own, or the messages of its group.
Work& WorkOf(const std::shared_ptr<Comm>& comm, cudaStream_t stream, bool is_message) {
  for (Group::Piece& piece : t_group.pieces) {
    if (is_message && piece.takes_messages && piece.comm == comm && piece.stream == stream) {
      return *piece.work;
    }
  }
  t_group.pieces.push_back({comm, std::make_shared<Work>(comm), stream, is_message});
  return *t_group.pieces.back().work;
}

Result CheckCall(const Handle* handle, const void* data, std::size_t bytes) {
  if (handle == nullptr || !IsDeviceMemory(data, bytes)) {
    return kInvalidArgument;
  }
  Comm& comm = *handle->comm;
  if (!comm.ready || comm.under_way > 0) {
    comm.last_error = "a call while the communicator's last one is under way";
    return kInvalidUsage;
  }
  return static_cast<Result>(comm.error.load());
}

Result GetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

Result GetUniqueId(UniqueId* id) {
  static std::atomic<unsigned> counter{0};
  *id = {};
  std::snprintf(id->bytes,
                sizeof(id->bytes),
                "/nccl-emu-%d-%u-%08x",
                static_cast<int>(::getpid()),
                counter.fetch_add(1),
                std::random_device()());
  return kSuccess;
}

Result CommInitRankConfig(Handle** out, int ranks, UniqueId id, int rank, const Config* config) {
  *out = nullptr;
  if (ranks < 1 || ranks > kMaxNcclRanks || rank < 0 || rank >= ranks || config == nullptr ||
      config->magic != kMagic || config->size < sizeof(Config) || config->blocking != 0 ||
      config->version > static_cast<unsigned>(kVersion)) {
    return kInvalidArgument;
  }
  auto comm = std::make_shared<Comm>();
  comm->segment = NcclSegment::Open(id.bytes, ranks);
  if (comm->segment == nullptr) {
    return kSystemError;
  }
  comm->rank = rank;
  comm->ranks = ranks;
  NcclShared& shared = comm->segment->shared();
  if (shared.here[static_cast<std::size_t>(rank)].exchange(1) != 0) {
    return kInvalidUsage;
  }
  shared.joined.fetch_add(1);
  *out = std::make_unique<Handle>(std::move(comm)).release();
  return kInProgress;
}

Result CommGetAsyncError(Handle* handle, int* result) {
  if (handle == nullptr) {
    return kInvalidArgument;
  }
  Comm& comm = *handle->comm;
  if (const int error = g_error != kSuccess ? g_error : comm.error; error != kSuccess) {
    *result = error;
    return kSuccess;
  }
  if (!comm.ready) {
    comm.ready = comm.segment->shared().joined.load() == static_cast<std::uint32_t>(comm.ranks);
    if (comm.ready) {
      comm.segment->Unlink();
    }
    *result = comm.ready ? kSuccess : kInProgress;
    return kSuccess;
  }
  *result = comm.under_way > 0 ? kInProgress : kSuccess;
  comm.under_way = std::max(comm.under_way - 1, 0);
  return kSuccess;
}

Result CommAbort(Handle* handle) {
  if (handle == nullptr) {
    return kInvalidArgument;
  }
  const std::unique_ptr<Handle> owned(handle);
  if (!handle->comm->ready) {
    handle->comm->segment->Unlink();
  }
  handle->comm->aborted = true;
  return kSuccess;
}

Result GroupStart() {
  ++t_group.depth;
  return kSuccess;
}

Result GroupEnd() {
  if (t_group.depth == 0) {
    return kInvalidUsage;
  }
  if (--t_group.depth > 0) {
    return kSuccess;
  }
  const std::vector<Group::Piece> pieces = std::exchange(t_group.pieces, {});
  for (const Group::Piece& piece : pieces) {
    piece.comm->under_way = 2;
    if (EnqueueUntil(piece.stream, [work = piece.work] { return work->Advance(); }) !=
        cudaSuccess) {
      return kInvalidUsage;
    }
    ++g_calls;
  }
  return pieces.empty() ? kSuccess : kInProgress;
}

template <class Call>
Result InGroup(Call call) {
  GroupStart();
  const Result result = call();
  const Result ended = GroupEnd();
  return result != kSuccess ? result : ended;
}

Result AllReduce(const void* in,
                 void* out,
                 std::size_t count,
                 int type,
                 int op,
                 Handle* handle,
                 cudaStream_t stream) {
  return InGroup([&] {
    const std::size_t bytes = count * sizeof(float);
    if (const Result bad = CheckCall(handle, in, bytes); bad != kSuccess) {
      return bad;
    }
    if (type != kFloat32 || op != kSum || in != out) {
      return kInvalidArgument;
    }
    const std::shared_ptr<Comm>& comm = handle->comm;
    const std::uint32_t number = ++comm->collectives;
    Work& work = WorkOf(comm, stream, false);
    work.SumInto(static_cast<float*>(out), count);
    for (int peer = 0; peer < comm->ranks; ++peer) {
      if (peer != comm->rank) {
        work.Send(Kind::kAllReduce, number, peer, in, bytes);
        work.Receive(Kind::kAllReduce, number, peer, work.ReceivedFrom(peer), bytes);
      }
    }
    return kSuccess;
  });
}

Result AllGather(
    const void* in, void* out, std::size_t count, int type, Handle* handle, cudaStream_t stream) {
  return InGroup([&] {
    if (const Result bad = CheckCall(handle, in, count); bad != kSuccess) {
      return bad;
    }
    const std::shared_ptr<Comm>& comm = handle->comm;
    if (type != kUint8 || !IsDeviceMemory(out, count * static_cast<std::size_t>(comm->ranks))) {
      return kInvalidArgument;
    }
    const std::uint32_t number = ++comm->collectives;
    Work& work = WorkOf(comm, stream, false);
    for (int peer = 0; peer < comm->ranks; ++peer) {
      char* const place = static_cast<char*>(out) + static_cast<std::size_t>(peer) * count;
      if (peer != comm->rank || place != in) {
        work.Send(Kind::kAllGather, number, peer, in, count);
        work.Receive(Kind::kAllGather, number, peer, place, count);
      }
    }
    return kSuccess;
  });
}

Result Message(bool sends,
               void* data,
               std::size_t count,
               int type,
               int peer,
               Handle* handle,
               cudaStream_t stream) {
  return InGroup([&] {
    if (const Result bad = CheckCall(handle, data, count); bad != kSuccess) {
      return bad;
    }
    if (type != kUint8 || peer < 0 || peer >= handle->comm->ranks) {
      return kInvalidArgument;
    }
    Work& work = WorkOf(handle->comm, stream, true);
    if (sends) {
      work.Send(Kind::kMessage, 0, peer, data, count);
    } else {
      work.Receive(Kind::kMessage, 0, peer, data, count);
    }
    return kSuccess;
  });
}

Result SendMessage(
    const void* data, std::size_t count, int type, int peer, Handle* handle, cudaStream_t stream) {
  return Message(true, const_cast<void*>(data), count, type, peer, handle, stream);
}

Result ReceiveMessage(
    void* data, std::size_t count, int type, int peer, Handle* handle, cudaStream_t stream) {
  return Message(false, data, count, type, peer, handle, stream);
}

const char* ErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "system error (emulated)";
    case kInvalidArgument:
      return "invalid argument (emulated)";
    case kInvalidUsage:
      return "invalid usage (emulated)";
    case kRemoteError:
      return "remote process exited or there was a network error (emulated)";
    case kInProgress:
      return "in progress";
  }
  return "unknown error (emulated)";
}

const char* LastError(const Handle* handle) {
  return handle == nullptr ? "" : handle->comm->last_error.c_str();
}

template <class Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* FindNccl(const char* name) {
  static const std::array<std::pair<std::string_view, void*>, 13> functions = {{
      {"ncclGetVersion", Address(GetVersion)},
      {"ncclGetUniqueId", Address(GetUniqueId)},
      {"ncclCommInitRankConfig", Address(CommInitRankConfig)},
      {"ncclCommGetAsyncError", Address(CommGetAsyncError)},
      {"ncclCommAbort", Address(CommAbort)},
      {"ncclGroupStart", Address(GroupStart)},
      {"ncclGroupEnd", Address(GroupEnd)},
      {"ncclAllReduce", Address(AllReduce)},
      {"ncclAllGather", Address(AllGather)},
      {"ncclSend", Address(SendMessage)},
      {"ncclRecv", Address(ReceiveMessage)},
      {"ncclGetErrorString", Address(ErrorString)},
      {"ncclGetLastError", Address(LastError)},
  }};
  const auto found = std::find_if(
      functions.begin(), functions.end(), [name](const auto& f) { return f.first == name; });
  return found != functions.end() ? found->second : nullptr;
}

void SetNcclError(int result) { g_error = result; }

std::uint64_t CountNcclCalls() { return g_calls; }

}  // namespace inferd::simt
