// SPDX-License-Identifier: Apache-2.0
// Small helpers around the C ABI of src/text/rs: views in, owned buffers out, codes to errors.
#pragma once

#include "inferd/result.h"
#include "text/text_rs.h"

#include <string>
#include <string_view>

namespace inferd::text {

inline inferd_bytes ToBytes(std::string_view text) { return {text.data(), text.size()}; }

/// A buffer that the crate fills and gets back.
class RustBuffer {
 public:
  RustBuffer() = default;
  RustBuffer(const RustBuffer&) = delete;
  RustBuffer& operator=(const RustBuffer&) = delete;
  ~RustBuffer() { inferd_buffer_free(&buffer_); }

  inferd_buffer* out() { return &buffer_; }
  std::string ToString() const {
    return buffer_.data == nullptr ? std::string() : std::string(buffer_.data, buffer_.size);
  }

 private:
  inferd_buffer buffer_{};
};

/// Ok for 0, else the error that the crate described in `message`.
inline Result<> ToResult(std::int32_t code, const RustBuffer& message) {
  if (code == 0) {
    return {};
  }
  return Error(static_cast<Code>(code), message.ToString());
}

}  // namespace inferd::text
