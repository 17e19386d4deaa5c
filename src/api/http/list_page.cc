// SPDX-License-Identifier: Apache-2.0
#include "api/http/list_page.h"

#include "api/http/http_message.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace inferd::api {

using Json = nlohmann::ordered_json;

std::optional<std::string_view> QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) {
      return pair.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

Result<ListPage> ReadListPage(std::string_view query,
                              const IntLimit& limit,
                              std::int64_t default_limit,
                              Fault* fault) {
  ListPage page;
  page.limit = default_limit;
  if (const auto text = QueryValue(query, "limit")) {
    const char* const end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, page.limit);
    if (error != std::errc() || stop != end || page.limit < limit.min || page.limit > limit.max) {
      return FieldError(
          fault, "limit", "limit must be an integer from {} to {}", limit.min, limit.max);
    }
  }
  if (const auto order = QueryValue(query, "order")) {
    if (order != "asc" && order != "desc") {
      return FieldError(fault, "order", "order must be asc or desc");
    }
    page.ascending = order == "asc";
  }
  page.after = PercentDecoded(QueryValue(query, "after").value_or(""));
  return page;
}

Result<std::string> ListObject(std::vector<Json> items,
                               const ListPage& page,
                               std::string_view missing,
                               Fault* fault) {
  if (!page.ascending) {
    std::reverse(items.begin(), items.end());
  }
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::find_if(
        items.begin(), items.end(), [&](const Json& item) { return item["id"] == page.after; });
    if (first == items.end()) {
      return FieldError(fault, "after", "{}", missing);
    }
    ++first;
  }
  const auto count = std::min<std::int64_t>(page.limit, items.end() - first);
  const Json data(Json::array_t(first, first + count));
  const Json list = {{"object", "list"},
                     {"data", data},
                     {"first_id", data.empty() ? Json() : data.front()["id"]},
                     {"last_id", data.empty() ? Json() : data.back()["id"]},
                     {"has_more", first + count != items.end()}};
  return list.dump();
}

}  // namespace inferd::api
