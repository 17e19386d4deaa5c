// SPDX-License-Identifier: Apache-2.0
// A name, a mark, and the arguments as JSON.
#pragma once

#include "text/call_body.h"
#include "text/json_stream.h"

namespace inferd::text {

class NamedBody final : public CallBody {
 public:
  explicit NamedBody(const CallDialect& dialect) : dialect_(dialect) {}

  Status Push(char c, CallSink* sink) override;
  bool MayEnd() const override { return !value_.in_string(); }
  bool End(bool at_marker, CallSink* sink) override;

 private:
  bool TakeHeader();

  const CallDialect& dialect_;
  std::string header_;
  std::string name_;
  std::string id_;
  bool in_arguments_ = false;
  bool begun_ = false;
  JsonValue value_;
};

/// Letters, digits and _ . - / : only, at most 256 of them.
bool IsToolName(std::string_view name);

}  // namespace inferd::text
