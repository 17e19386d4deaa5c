// SPDX-License-Identifier: Apache-2.0
// Pages of lists against the plain way: all of it, turned, then cut.
#include "api/http/list_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

/// Counts how often one is copied.
struct Counted {
  Counted(std::string name, int place) : id(std::move(name)), order(place) {}
  Counted(const Counted& other) : id(other.id), order(other.order) { ++copies; }
  Counted& operator=(const Counted&) = delete;

  std::string id;
  int order;
  static inline int copies = 0;
};

TEST(ListPageTest, EveryPageIsTheCutOfTheWholeList) {
  for (const int count : {0, 1, 2, 7}) {
    std::vector<Counted> records;
    records.reserve(10);
    for (int i = 0; i < count; ++i) {
      records.emplace_back("id" + std::to_string(i), i);
    }
    std::vector<const Counted*> given;  // in any order
    for (const Counted& record : records) {
      given.insert(given.begin() + static_cast<long>(given.size() / 2), &record);
    }
    for (const bool ascending : {true, false}) {
      std::vector<std::string> whole;
      for (const Counted& record : records) {
        whole.push_back(record.id);
      }
      if (!ascending) {
        std::reverse(whole.begin(), whole.end());
      }
      for (int after = -1; after < count; ++after) {
        for (const int limit : {1, 3, 100}) {
          ListPage page{limit, ascending, after < 0 ? "" : whole[static_cast<std::size_t>(after)]};
          Counted::copies = 0;
          const auto made = PageOf(given, page);
          ASSERT_TRUE(made.has_value());
          std::vector<std::string> want(whole.begin() + (after + 1), whole.end());
          const bool more = static_cast<int>(want.size()) > limit;
          want.resize(std::min<std::size_t>(want.size(), static_cast<std::size_t>(limit)));
          std::vector<std::string> got;
          for (const Counted& record : made->records) {
            got.push_back(record.id);
          }
          EXPECT_EQ(got, want) << count << ascending << after << limit;
          EXPECT_EQ(made->has_more, more);
          EXPECT_LE(Counted::copies, 2 * limit + 2) << "the rest of the list is not copied";
        }
      }
    }
    EXPECT_FALSE(PageOf(given, {5, true, "none"}).has_value());
  }
}

}  // namespace
}  // namespace inferd::api
