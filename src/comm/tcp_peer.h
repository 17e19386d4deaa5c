// SPDX-License-Identifier: Apache-2.0
// One authenticated connection: frames out, frames in, without blocking.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::comm {

enum class FrameKind : std::uint8_t { kMessage = 1, kCollective = 2, kFault = 3 };

/// In front of every payload, little-endian on the wire.
struct FrameHeader {
  FrameKind kind = FrameKind::kMessage;
  std::uint8_t op = 0;      ///< which collective; for kFault the error code
  std::uint16_t root = 0;   ///< of a broadcast; for kFault the rank to blame
  std::uint32_t call = 0;   ///< running number of the collective
  std::uint64_t bytes = 0;  ///< of the payload

  bool operator==(const FrameHeader&) const = default;
};

/// At most one frame going out and one receive posted at a time. Frames that are not for the posted
/// receive wait: a message that comes while something else goes on is kept (up to kMaxKeptBytes;
/// two ranks that send to each other do not block each other), a collective's frame stays in the
/// socket until its call is made here. Errors are final.
class TcpPeer {
 public:
  TcpPeer(int rank, std::string endpoint, base::UniqueFd fd);

  int rank() const { return rank_; }
  const std::string& endpoint() const { return endpoint_; }
  int fd() const { return fd_.get(); }
  /// Whom an error of this peer is about: itself, or the rank that its fault names.
  int blamed() const { return blamed_; }

  /// `payload` must live until sending() is false.
  void StartSend(const FrameHeader& header, std::span<const std::byte> payload);
  bool sending() const { return sending_; }
  /// `into` must live until receiving() is false; the frame must carry exactly `header`.
  void StartRecv(const FrameHeader& header, std::span<std::byte> into);
  bool receiving() const { return receiving_; }

  /// Writes what the socket takes.
  Result<> Write();
  /// Reads what there is for the posted receive; without one it reads ahead one header, which is
  /// how a fault is heard.
  Result<> Read();
  /// Whether Read could get further when bytes come: false after the end of the stream and behind a
  /// held frame.
  bool wants_bytes() const { return !ended_ && incoming_ != Incoming::kHeld; }

  /// The peer has ended the stream: in good order, or because it died.
  bool ended() const { return ended_; }

  /// Best effort: tells the peer why the group is broken, then ends the stream in both directions.
  void SendFaultAndShutdown(const FrameHeader& fault);

 private:
  static constexpr std::size_t kHeaderBytes = 16;
  static constexpr std::size_t kBufferBytes = 64U << 10;
  static constexpr std::size_t kMaxKeptBytes = 64U << 20;

  Error Gone(std::string_view why) const;
  Error OutOfStep(const FrameHeader& got) const;
  /// One recv into the buffer. False when nothing came.
  Result<bool> Fill();
  /// A held frame may have a place now.
  void Reconsider();
  /// Takes the next header. False when it has not come.
  Result<bool> TakeHeader();
  /// Finds a place for the payload of `header_`, or holds it.
  Result<> Route();
  /// Moves payload from the buffer and the socket to its place. False when it must wait.
  Result<bool> TakePayload();
  /// Serves the posted receive from the kept messages, if it can.
  Result<> TakeKept();

  const int rank_;
  const std::string endpoint_;
  base::UniqueFd fd_;
  int blamed_;

  bool sending_ = false;
  std::array<std::byte, kHeaderBytes> out_header_ = {};
  std::span<const std::byte> out_;
  std::size_t out_done_ = 0;  ///< of header and payload together

  bool receiving_ = false;
  FrameHeader posted_;
  std::span<std::byte> posted_into_;

  std::vector<std::byte> buffer_;
  std::size_t buffer_begin_ = 0;
  std::size_t buffer_end_ = 0;
  bool ended_ = false;

  enum class Incoming { kNone, kHeader, kHeld, kPosted, kKept };
  Incoming incoming_ = Incoming::kNone;  ///< kPosted and kKept: the payload is coming in
  FrameHeader header_;
  std::span<std::byte> place_;
  std::size_t placed_ = 0;

  std::deque<std::vector<std::byte>>
      kept_;  ///< whole messages, and at the back the one that is coming in
  std::size_t kept_bytes_ = 0;
};

}  // namespace inferd::comm
