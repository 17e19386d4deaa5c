// SPDX-License-Identifier: Apache-2.0
// HTTP requests: whatever comes, in one piece or in many, gets the same verdict; and the bodies as
// JSON and as forms.
#include "api/core/json_parse.h"
#include "api/files/multipart.h"
#include "api/http/http_parser.h"
#include "base/check.h"
#include "target.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

namespace inferd::fuzz {
namespace {

constexpr std::size_t kMaxBody = 2000;

struct Verdict {
  api::HttpParser::State state = api::HttpParser::State::kMore;
  int status = 0;
  std::string path, body;
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// The first request of the bytes, which come `step` at a time.
Verdict Read(std::string_view bytes, std::size_t step) {
  api::HttpParser parser({.max_bytes = kMaxBody});
  std::string waiting;
  Verdict verdict;
  for (std::size_t at = 0; at < bytes.size() && verdict.state == api::HttpParser::State::kMore;
       at += step) {
    waiting += bytes.substr(at, step);
    std::size_t used = 0;
    verdict.state = parser.Feed(waiting, &used);
    INFERD_CHECK(used <= waiting.size());
    waiting.erase(0, used);
  }
  if (verdict.state == api::HttpParser::State::kBad) {
    verdict.status = parser.status();
    INFERD_CHECK(verdict.status >= 400 && verdict.status < 500 && !parser.reason().empty());
  } else if (verdict.state == api::HttpParser::State::kDone) {
    api::HttpRequest request = parser.Take();
    verdict.path = request.path;
    verdict.body = std::move(request.body);
    INFERD_CHECK(verdict.body.size() <= kMaxBody);
  }
  return verdict;
}

}  // namespace

void Look(std::string_view input) {
  const Verdict whole = Read(input, std::max<std::size_t>(input.size(), 1));
  INFERD_CHECK(whole == Read(input, 1));
  INFERD_CHECK(whole == Read(input, 7));
  for (const std::string_view body : {std::string_view(whole.body), input}) {
    api::Fault fault;
    if (const auto json = api::ParseJsonObject(body, &fault); json.ok()) {
      api::Fault again;
      INFERD_CHECK(api::ParseJsonObject(json->dump(), &again).ok());
    }
    if (const auto parts = api::ParseMultipart(body, "b"); parts.ok()) {
      for (const api::FormPart& part : *parts) {
        INFERD_CHECK(part.data.data() >= body.data() &&
                     part.data.data() + part.data.size() <= body.data() + body.size());
      }
    }
  }
  if (const auto boundary = api::MultipartBoundary(input.substr(0, input.find('\n')));
      boundary.ok()) {
    INFERD_CHECK(!boundary->empty());
  }
}

}  // namespace inferd::fuzz
