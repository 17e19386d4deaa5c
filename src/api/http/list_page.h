// SPDX-License-Identifier: Apache-2.0
// Lists page by page, as OpenAI's API asks for them: limit, after, order in the query; an object
// with data, first_id, last_id and has_more in the answer.
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
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

/// The page of `items` (objects with an id, oldest first) as a list object. `missing` is said of an
/// `after` that is none of them.
Result<std::string> ListObject(std::vector<nlohmann::ordered_json> items,
                               const ListPage& page,
                               std::string_view missing,
                               Fault* fault);

}  // namespace inferd::api
