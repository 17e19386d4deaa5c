// SPDX-License-Identifier: Apache-2.0
#include "text/call_body.h"

#include "text/json_body.h"
#include "text/named_body.h"
#include "text/python_body.h"
#include "text/tags_body.h"

namespace inferd::text {

std::unique_ptr<CallBody> MakeCallBody(const CallDialect& dialect, bool bare) {
  switch (dialect.format) {
    case CallFormat::kNamed:
      return std::make_unique<NamedBody>(dialect);
    case CallFormat::kTags:
      return std::make_unique<TagsBody>(dialect);
    case CallFormat::kPython:
      return std::make_unique<PythonBody>(bare);
    case CallFormat::kJson:
    case CallFormat::kChannels:
      break;
  }
  return std::make_unique<JsonBody>(dialect, bare);
}

}  // namespace inferd::text
