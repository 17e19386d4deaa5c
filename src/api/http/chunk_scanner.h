// SPDX-License-Identifier: Apache-2.0
// Follows the framing of a chunked body as its bytes come, and refuses what the parser behind it
// would repair or wait for: bare LF, bare CR, and folded trailers. Sizes and field names are the
// parser's to judge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace inferd::api {

class ChunkScanner {
 public:
  /// False: the framing is malformed, see reason(). `rest` begins where the parser behind has come
  /// to; what was scanned before is not looked at again.
  bool Scan(std::string_view rest);
  /// The parser behind has taken `bytes`.
  void Advance(std::size_t bytes) { scanned_ -= bytes < scanned_ ? bytes : scanned_; }
  std::string_view reason() const { return reason_; }

 private:
  enum class Place {
    kSize,         // the digits of a chunk's size
    kExtension,    // behind them
    kSizeEnd,      // CR was seen, LF must follow
    kData,         // left_ bytes
    kDataCr,       // the CR behind the data
    kDataLf,       // the LF behind it
    kTrailerLine,  // the first byte of a line behind the last chunk
    kTrailer,      // within such a line
    kTrailerEnd,   // CR was seen, LF must follow
    kEnd,          // the CR of the empty line was seen
    kDone,         // the body has ended, or the parser will refuse it
  };

  bool Bad(std::string_view reason);
  bool Byte(char c);
  bool SizeByte(char c);
  bool TrailerByte(char c);

  Place place_ = Place::kSize;
  std::uint64_t left_ = 0;
  std::size_t scanned_ = 0;
  std::string_view reason_;
};

}  // namespace inferd::api
