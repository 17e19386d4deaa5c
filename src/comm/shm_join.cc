// SPDX-License-Identifier: Apache-2.0
// JoinShm: rank 0 makes the segment, the others look for it until the join deadline.
#include "base/error.h"
#include "comm/arguments.h"
#include "comm/shm_communicator.h"

#include <poll.h>

#include <utility>

namespace inferd::comm {
namespace {

Result<ShmSegment> OpenWhenThere(const GroupOptions& options,
                                 const std::string& name,
                                 std::size_t bytes,
                                 const Deadline& deadline) {
  while (true) {
    auto segment = ShmSegment::Open(name, bytes);
    if (segment.ok()) {
      auto* header = reinterpret_cast<Header*>(segment->data());
      if (header->magic.load(std::memory_order_acquire) == Header::kMagic) {
        return segment;
      }
    } else if (segment.error().code() != Code::kNotFound) {
      return segment;
    }
    if (deadline.Passed()) {
      return DeadlineExceeded(
          "join of group {}: rank 0 is late; waited {} ms", options.id, deadline.allowed().count());
    }
    ::poll(nullptr, 0, 1);
  }
}

Result<ShmSegment> CreateOrOpen(const GroupOptions& options,
                                const ShmLayout& layout,
                                const Deadline& deadline) {
  const std::string name = ShmName(options.id, options.generation);
  if (options.rank != 0) {
    INFERD_ASSIGN(auto segment, OpenWhenThere(options, name, layout.total, deadline));
    const auto* header = reinterpret_cast<const Header*>(segment.data());
    if (header->size != layout.size || header->chunk_bytes != layout.chunk_bytes ||
        header->generation != options.generation) {
      return InvalidArgument(
          "join of group {}: rank 0 has size {}, chunk_bytes {}, generation {}; rank {} has {}, "
          "{}, {}",
          options.id,
          header->size,
          header->chunk_bytes,
          header->generation,
          options.rank,
          layout.size,
          layout.chunk_bytes,
          options.generation);
    }
    INFERD_TRY(segment.Claim(options.rank));
    return segment;
  }
  INFERD_ASSIGN(auto segment, ShmSegment::Create(name, layout.total, layout.buffers));
  auto* header = reinterpret_cast<Header*>(segment.data());
  header->generation = options.generation;
  header->chunk_bytes = layout.chunk_bytes;
  header->size = static_cast<std::uint32_t>(layout.size);
  header->magic.store(Header::kMagic, std::memory_order_release);
  return segment;
}

}  // namespace

Result<> ShmCommunicator::Join(const Deadline& deadline) {
  // Phase 1 has no data, so the buffers need no memory yet.
  ++phase_;
  RankLine& own = Line(rank());
  RaiseSignal(own.phase, own.parked, phase_);
  waiter_.set_joining(true);
  Result<> joined;
  for (int r = 0; r < size() && joined.ok(); ++r) {
    if (r == rank()) {
      continue;
    }
    RankLine& line = Line(r);
    joined = waiter_.AwaitAtLeast(line.phase, line.parked, phase_, r, deadline, Name(Op::kJoin));
  }
  waiter_.set_joining(false);
  if (rank() == 0 || (!joined.ok() && !segment_.Present(0))) {
    segment_.Unlink();
  }
  if (!joined.ok()) {
    WakeGroup();
    return joined.error().WithContext(fmt::format("group {}", options_.id));
  }
  return {};
}

Result<std::unique_ptr<Communicator>> JoinShm(const GroupOptions& options) {
  INFERD_TRY(CheckGroup(options));
  const Deadline deadline(options.join_deadline);
  const ShmLayout layout(options.size, ChunkBytes(options));
  INFERD_ASSIGN(auto segment, CreateOrOpen(options, layout, deadline));
  auto communicator = std::make_unique<ShmCommunicator>(std::move(segment), options);
  INFERD_TRY(communicator->Join(deadline));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace inferd::comm
