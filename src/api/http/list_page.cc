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

std::optional<PageCut> CutPage(std::span<const std::string_view> ids, const ListPage& page) {
  const std::size_t count = ids.size();
  const auto item_at = [&](std::size_t i) { return page.ascending ? i : count - 1 - i; };
  std::size_t first = 0;
  if (!page.after.empty()) {
    while (first < count && ids[item_at(first)] != page.after) {
      ++first;
    }
    if (first++ == count) {
      return std::nullopt;
    }
  }
  PageCut cut;
  const std::size_t last = std::min(count, first + static_cast<std::size_t>(page.limit));
  for (std::size_t i = first; i < last; ++i) {
    cut.items.push_back(item_at(i));
  }
  cut.has_more = last < count;
  return cut;
}

std::string ListObject(std::vector<Json> items, bool has_more) {
  const Json data(std::move(items));
  const Json list = {{"object", "list"},
                     {"data", data},
                     {"first_id", data.empty() ? Json() : data.front()["id"]},
                     {"last_id", data.empty() ? Json() : data.back()["id"]},
                     {"has_more", has_more}};
  return list.dump();
}

}  // namespace inferd::api
