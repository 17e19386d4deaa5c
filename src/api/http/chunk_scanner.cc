// SPDX-License-Identifier: Apache-2.0
#include "api/http/chunk_scanner.h"

#include <algorithm>

namespace inferd::api {
namespace {

constexpr std::string_view kCrWithoutLf = "CR without LF in the framing of a chunked body";
constexpr std::string_view kLfWithoutCr = "LF without CR in the framing of a chunked body";

/// -1: not a hexadecimal digit.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

bool ChunkScanner::Bad(std::string_view reason) {
  reason_ = reason;
  return false;
}

bool ChunkScanner::SizeByte(char c) {
  if (c == '\n') {
    return place_ == Place::kSizeEnd || Bad(kLfWithoutCr);
  }
  if (place_ == Place::kSizeEnd) {
    return Bad(kCrWithoutLf);
  }
  if (c == '\r') {
    place_ = Place::kSizeEnd;
    return true;
  }
  const int digit = place_ == Place::kSize ? HexDigit(c) : -1;
  if (digit < 0) {
    place_ = Place::kExtension;
  } else if (left_ >> 59U != 0) {
    place_ = Place::kDone;  // more than any limit: the parser refuses it
  } else {
    left_ = left_ * 16 + static_cast<std::uint64_t>(digit);
  }
  return true;
}

bool ChunkScanner::TrailerByte(char c) {
  if (place_ == Place::kTrailerEnd || place_ == Place::kEnd) {
    if (c != '\n') {
      return Bad(kCrWithoutLf);
    }
    place_ = place_ == Place::kEnd ? Place::kDone : Place::kTrailerLine;
    return true;
  }
  const bool first = place_ == Place::kTrailerLine;
  if (c == '\n') {
    return Bad(kLfWithoutCr);
  }
  if (first && (c == ' ' || c == '\t')) {
    return Bad("folded line in the trailers of a chunked body");
  }
  if (c == '\r') {
    place_ = first ? Place::kEnd : Place::kTrailerEnd;
  } else {
    place_ = Place::kTrailer;
  }
  return true;
}

bool ChunkScanner::Byte(char c) {
  switch (place_) {
    case Place::kSize:
    case Place::kExtension:
    case Place::kSizeEnd:
      if (!SizeByte(c)) {
        return false;
      }
      if (c == '\n') {
        place_ = left_ == 0 ? Place::kTrailerLine : Place::kData;
      }
      return true;
    case Place::kDataCr:
      place_ = Place::kDataLf;
      return c == '\r' || Bad("a chunk is longer than its size");
    case Place::kDataLf:
      place_ = Place::kSize;
      return c == '\n' || Bad(kCrWithoutLf);
    case Place::kTrailerLine:
    case Place::kTrailer:
    case Place::kTrailerEnd:
    case Place::kEnd:
      return TrailerByte(c);
    case Place::kData:
    case Place::kDone:
      break;
  }
  return true;
}

bool ChunkScanner::Scan(std::string_view rest) {
  while (scanned_ < rest.size() && place_ != Place::kDone) {
    if (place_ == Place::kData) {
      const std::uint64_t step = std::min<std::uint64_t>(left_, rest.size() - scanned_);
      scanned_ += step;
      left_ -= step;
      if (left_ == 0) {
        place_ = Place::kDataCr;
      }
      continue;
    }
    if (!Byte(rest[scanned_])) {
      return false;
    }
    ++scanned_;
  }
  return true;
}

}  // namespace inferd::api
