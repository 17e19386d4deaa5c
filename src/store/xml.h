// SPDX-License-Identifier: Apache-2.0
// The little of XML that object stores answer with: elements and text, read without trusting them.
// Included by .cc files of this room and its tests.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

struct XmlToken {
  enum class Kind : std::uint8_t { kOpen, kClose, kText, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // an element's name without its prefix, or text with entities resolved
};

/// Attributes, comments and processing instructions are skipped. Refuses document types (and with
/// them own entities), elements that are not closed in order, and nesting deeper than 32.
class XmlReader {
 public:
  /// `what` names the text in messages. The text must outlive the reader.
  XmlReader(std::string_view what, std::string_view xml) : what_(what), xml_(xml) {}

  /// kEnd at the end, as often as asked.
  Result<XmlToken> Next();
  /// The text of the element that was opened last, up to its end; elements within are skipped.
  Result<std::string> Text();
  /// Elements that are open.
  std::size_t depth() const { return open_.size(); }

 private:
  Error Malformed(std::string_view why) const;
  Result<XmlToken> Markup();
  Result<XmlToken> Open(std::string_view inside);
  Result<XmlToken> Close(std::string_view inside);
  Result<std::string> Resolved(std::string_view text) const;

  const std::string what_;
  std::string_view xml_;
  std::size_t at_ = 0;
  std::vector<std::string> open_;
  bool close_next_ = false;  // <empty/>
};

}  // namespace inferd::store
