// SPDX-License-Identifier: Apache-2.0
// Wire bytes that a socket would not take yet. They leave at the front in pieces of any size
// without moving the rest, so a long answer to a slow client costs what its bytes cost.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace inferd::api {

class UnsentBytes {
 public:
  bool empty() const { return at_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - at_; }
  std::string_view view() const { return std::string_view(bytes_).substr(at_); }

  void Append(std::string_view bytes) {
    if (at_ > bytes_.size() / 2) {  // moves fewer bytes than have left since the last time
      bytes_.erase(0, at_);
      at_ = 0;
    }
    bytes_.append(bytes);
  }
  /// The first `count` have been sent.
  void Drop(std::size_t count) {
    at_ += count;
    if (empty()) {
      std::string().swap(bytes_);
      at_ = 0;
    }
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;  // those before have been sent
};

}  // namespace inferd::api
