// SPDX-License-Identifier: Apache-2.0
// Small frames cost one system call each way: header and payload leave together and arrive through
// a buffer; long payloads are read straight to where they belong.
#include "comm/tcp_peer.h"

#include "base/check.h"
#include "base/error.h"
#include "comm/arguments.h"
#include "comm/tcp_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace inferd::comm {
namespace {

template <class T>
void PutLittle(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    at[i] = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
  }
}

template <class T>
T GetLittle(const std::byte* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(at[i]) << (8 * i)));
  }
  return value;
}

void Encode(const FrameHeader& header, std::byte* at) {
  at[0] = static_cast<std::byte>(header.kind);
  at[1] = static_cast<std::byte>(header.op);
  PutLittle(at + 2, header.root);
  PutLittle(at + 4, header.call);
  PutLittle(at + 8, header.bytes);
}

FrameHeader Decode(const std::byte* at) {
  FrameHeader header;
  header.kind = static_cast<FrameKind>(at[0]);
  header.op = static_cast<std::uint8_t>(at[1]);
  header.root = GetLittle<std::uint16_t>(at + 2);
  header.call = GetLittle<std::uint32_t>(at + 4);
  header.bytes = GetLittle<std::uint64_t>(at + 8);
  return header;
}

/// What a peer says before it leaves a broken group.
Error FaultError(const FrameHeader& fault, int reporter) {
  const auto code = static_cast<Code>(fault.op);
  switch (code) {
    case Code::kAborted:
      return Aborted("rank {} aborted the group", fault.root);
    case Code::kDeadlineExceeded:
      return DeadlineExceeded("rank {} is late; rank {} gave up on it", fault.root, reporter);
    case Code::kUnavailable:
      return Unavailable("rank {} is gone, says rank {}", fault.root, reporter);
    default:
      return Internal("rank {} is out of step, says rank {}", fault.root, reporter);
  }
}

}  // namespace

TcpPeer::TcpPeer(int rank, std::string endpoint, base::UniqueFd fd)
    : rank_(rank),
      endpoint_(std::move(endpoint)),
      fd_(std::move(fd)),
      blamed_(rank),
      buffer_(kBufferBytes) {}

Error TcpPeer::Gone(std::string_view why) const {
  return Unavailable("rank {} at {} is gone: {}", rank_, endpoint_, why);
}

Error TcpPeer::OutOfStep(const FrameHeader& got) const {
  if (got.kind == FrameKind::kMessage && posted_.kind == FrameKind::kMessage) {
    return Internal(
        "rank {} sent {} bytes where this rank expects {}; matching Send and Recv must have equal "
        "sizes",
        rank_,
        got.bytes,
        posted_.bytes);
  }
  return Internal(
      "rank {} is in call {} (kind {}, op {}, root {}) of {} bytes, this rank in call {} (kind {}, "
      "op {}, "
      "root {}) of {}; all ranks must make the same calls",
      rank_,
      got.call,
      static_cast<int>(got.kind),
      got.op,
      got.root,
      got.bytes,
      posted_.call,
      static_cast<int>(posted_.kind),
      posted_.op,
      posted_.root,
      posted_.bytes);
}

void TcpPeer::StartSend(const FrameHeader& header, std::span<const std::byte> payload) {
  INFERD_CHECK(!sending_ && header.bytes == payload.size());
  Encode(header, out_header_.data());
  out_ = payload;
  out_done_ = 0;
  sending_ = true;
  Reconsider();
}

Result<> TcpPeer::Write() {
  while (sending_) {
    std::array<iovec, 2> parts = {};
    const std::size_t header_done = std::min(out_done_, kHeaderBytes);
    const std::size_t payload_done = out_done_ - header_done;
    parts[0] = {.iov_base = out_header_.data() + header_done,
                .iov_len = kHeaderBytes - header_done};
    parts[1] = {.iov_base = const_cast<std::byte*>(out_.data()) + payload_done,
                .iov_len = out_.size() - payload_done};
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return {};
      }
      const int error = errno;
      // What the peer said last tells more than the broken pipe.
      INFERD_TRY(Read());
      return Gone(::strerrordesc_np(error));
    }
    out_done_ += static_cast<std::size_t>(n);
    sending_ = out_done_ < kHeaderBytes + out_.size();
  }
  return {};
}

void TcpPeer::StartRecv(const FrameHeader& header, std::span<std::byte> into) {
  INFERD_CHECK(!receiving_ && header.bytes == into.size());
  posted_ = header;
  posted_into_ = into;
  receiving_ = true;
  Reconsider();
}

void TcpPeer::Reconsider() {
  if (incoming_ == Incoming::kHeld) {
    incoming_ = Incoming::kHeader;
  }
}

Result<bool> TcpPeer::Fill() {
  if (buffer_begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(buffer_begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(buffer_end_),
              buffer_.begin());
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
  }
  const std::size_t before = buffer_end_;
  switch (ReadSome(fd(), buffer_.data(), buffer_.size(), buffer_end_)) {
    case Io::kProgress:
      return buffer_end_ > before;
    case Io::kWouldBlock:
      return false;
    case Io::kClosed:
      ended_ = true;
      return false;
  }
  return false;
}

Result<bool> TcpPeer::TakeHeader() {
  while (buffer_end_ - buffer_begin_ < kHeaderBytes) {
    if (!ended_) {
      INFERD_ASSIGN(const bool more, Fill());
      if (!more && !ended_) {
        return false;
      }
    }
    if (ended_) {
      return receiving_ || sending_ ? Result<bool>(Gone("it closed the connection")) : false;
    }
  }
  header_ = Decode(buffer_.data() + buffer_begin_);
  buffer_begin_ += kHeaderBytes;
  incoming_ = Incoming::kHeader;
  return true;
}

Result<> TcpPeer::Route() {
  placed_ = 0;
  const bool wanted = receiving_ && header_.kind == posted_.kind;
  switch (header_.kind) {
    case FrameKind::kFault:
      blamed_ = header_.root;
      return FaultError(header_, rank_);
    case FrameKind::kCollective:
      if (!receiving_) {
        incoming_ = Incoming::kHeld;
        return {};
      }
      break;
    case FrameKind::kMessage:
      if (wanted && kept_.empty()) {
        break;
      }
      if ((receiving_ || sending_) && header_.bytes <= kMaxKeptBytes - kept_bytes_) {
        kept_.emplace_back(header_.bytes);
        kept_bytes_ += header_.bytes;
        place_ = kept_.back();
        incoming_ = Incoming::kKept;
      } else {
        incoming_ = Incoming::kHeld;
      }
      return {};
    default:
      return Internal("rank {} at {} sent a frame of unknown kind {}",
                      rank_,
                      endpoint_,
                      static_cast<int>(header_.kind));
  }
  if (!wanted || header_ != posted_) {
    return OutOfStep(header_);
  }
  place_ = posted_into_;
  incoming_ = Incoming::kPosted;
  return {};
}

Result<bool> TcpPeer::TakePayload() {
  const std::size_t buffered = std::min(place_.size() - placed_, buffer_end_ - buffer_begin_);
  CopyBytes(place_.data() + placed_, buffer_.data() + buffer_begin_, buffered);
  buffer_begin_ += buffered;
  placed_ += buffered;
  while (placed_ < place_.size()) {
    switch (ReadSome(fd(), place_.data(), place_.size(), placed_)) {
      case Io::kProgress:
        break;
      case Io::kWouldBlock:
        return false;
      case Io::kClosed:
        ended_ = true;
        return Gone("it closed the connection in the middle of a frame");
    }
  }
  return true;
}

Result<> TcpPeer::TakeKept() {
  const std::size_t whole = kept_.size() - (incoming_ == Incoming::kKept ? 1 : 0);
  if (!receiving_ || posted_.kind != FrameKind::kMessage || whole == 0) {
    return {};
  }
  const std::vector<std::byte> message = std::move(kept_.front());
  kept_.pop_front();
  kept_bytes_ -= message.size();
  if (message.size() != posted_.bytes) {
    FrameHeader got = posted_;
    got.bytes = message.size();
    return OutOfStep(got);
  }
  CopyBytes(posted_into_.data(), message.data(), message.size());
  receiving_ = false;
  return {};
}

Result<> TcpPeer::Read() {
  const bool was_receiving = receiving_;
  while (true) {
    INFERD_TRY(TakeKept());
    if (was_receiving && !receiving_) {
      return {};
    }
    if (incoming_ == Incoming::kNone) {
      INFERD_ASSIGN(const bool taken, TakeHeader());
      if (!taken) {
        return {};
      }
    }
    if (incoming_ == Incoming::kHeader) {
      INFERD_TRY(Route());
    }
    if (incoming_ == Incoming::kHeld) {
      return {};
    }
    INFERD_ASSIGN(const bool whole, TakePayload());
    if (!whole) {
      return {};
    }
    receiving_ = receiving_ && incoming_ != Incoming::kPosted;
    incoming_ = Incoming::kNone;
  }
}

void TcpPeer::SendFaultAndShutdown(const FrameHeader& fault) {
  if (!sending_ || out_done_ == 0) {
    std::array<std::byte, kHeaderBytes> bytes = {};
    Encode(fault, bytes.data());
    std::size_t done = 0;
    // A frame of 16 bytes either fits or the peer has far more to read first.
    static_cast<void>(WriteSome(fd(), bytes.data(), bytes.size(), done));
  }
  ::shutdown(fd(), SHUT_RDWR);
}

}  // namespace inferd::comm
