// SPDX-License-Identifier: Apache-2.0
// Lists page by page, as OpenAI's API asks for them: limit, after, order in the query; an object
// with data, first_id, last_id and has_more in the answer.
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// The value of a query parameter as it stands.
std::optional<std::string_view> QueryValue(std::string_view query, std::string_view name);

struct ListPage {
  std::int64_t limit = 0;
  bool ascending = false;
  std::string after;  // id of an item; empty: from the first one
};

Result<ListPage> ReadListPage(std::string_view query,
                              const IntLimit& limit,
                              std::int64_t default_limit,
                              Fault* fault);

/// Which items are on the page, in its order, by their place in `ids` (oldest first). Nothing:
/// `after` is none of them.
struct PageCut {
  std::vector<std::size_t> items;
  bool has_more = false;
};
std::optional<PageCut> CutPage(std::span<const std::string_view> ids, const ListPage& page);

/// The records of a page.
template <class Record>
struct RecordPage {
  std::vector<Record> records;
  bool has_more = false;
};

/// Of records with an id and an order, given in any order; only those of the page are copied.
template <class Record>
std::optional<RecordPage<Record>> PageOf(std::vector<const Record*> all, const ListPage& page) {
  std::sort(
      all.begin(), all.end(), [](const Record* a, const Record* b) { return a->order < b->order; });
  std::vector<std::string_view> ids;
  ids.reserve(all.size());
  for (const Record* const one : all) {
    ids.push_back(one->id);
  }
  const auto cut = CutPage(ids, page);
  if (!cut) {
    return std::nullopt;
  }
  RecordPage<Record> made{{}, cut->has_more};
  for (const std::size_t item : cut->items) {
    made.records.push_back(*all[item]);
  }
  return made;
}

/// The items of a page (objects with an id) as a list object.
std::string ListObject(std::vector<nlohmann::ordered_json> items, bool has_more);

}  // namespace inferd::api
