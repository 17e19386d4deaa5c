// SPDX-License-Identifier: Apache-2.0
// Listings of an object store: XML that is not trusted. What is taken has names and sizes that can
// be used.
#include "base/check.h"
#include "store/s3.h"
#include "store/s3_fetch.h"
#include "store/xml.h"
#include "target.h"

#include <filesystem>
#include <set>
#include <string>

namespace inferd::fuzz {

void Look(std::string_view input) {
  store::XmlReader reader("input", input);
  std::size_t text = 0;
  for (;;) {
    const auto token = reader.Next();
    if (!token.ok() || token->kind == store::XmlToken::Kind::kEnd) {
      INFERD_CHECK(!token.ok() || reader.depth() == 0);
      break;
    }
    text += token->kind == store::XmlToken::Kind::kText ? token->text.size() : 0;
  }
  INFERD_CHECK(text <= input.size());  // entities do not grow
  const auto page = store::ParseS3Page("input", input);
  if (!page.ok()) {
    return;
  }
  for (const store::S3Object& object : page->objects) {
    INFERD_CHECK(!object.key.empty() && object.key.size() <= store::kMaxS3Key && object.bytes >= 0);
    INFERD_CHECK(object.etag.find('\n') == std::string::npos);
  }
  for (const char* name : {"s3://bucket", "s3://bucket/a", "s3://bucket/a.gguf"}) {
    const auto files = store::ChooseS3Files(*store::ParseS3Location(name), page->objects);
    std::set<std::string> paths;
    for (const store::S3File& file : files.ok() ? *files : std::vector<store::S3File>()) {
      const std::filesystem::path path = std::filesystem::path("/folder") / file.name;
      INFERD_CHECK(path.lexically_normal().string().starts_with("/folder/"));
      INFERD_CHECK(path.has_filename());
      INFERD_CHECK(paths.insert(path.lexically_normal().string()).second);
    }
  }
}

}  // namespace inferd::fuzz
