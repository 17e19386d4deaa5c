// SPDX-License-Identifier: Apache-2.0
#include "inferd/result.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace inferd {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) {
    return InvalidArgument("{} is odd", value);
  }
  return value / 2;
}

Result<int> Quarter(int value) {
  INFERD_ASSIGN(const int half, Half(value));
  INFERD_ASSIGN(const int quarter, Half(half));
  return quarter;
}

Result<> CheckQuarter(int value) {
  INFERD_TRY(Quarter(value));
  return {};
}

Result<std::unique_ptr<int>> Boxed(int value) { return std::make_unique<int>(value); }

Result<int> Unboxed(int value) {
  INFERD_ASSIGN(const std::unique_ptr<int> box, Boxed(value));
  return *box;
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = Half(8);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 4);
  const Result<int> bad = Half(7);
  ASSERT_FALSE(bad.ok());
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.error().message(), "7 is odd");
}

TEST(Result, MacrosPassTheFirstErrorOn) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).error().message(), "3 is odd");
  EXPECT_TRUE(CheckQuarter(4).ok());
  EXPECT_EQ(CheckQuarter(5).error().message(), "5 is odd");
}

TEST(Result, MovesWhatCannotBeCopied) { EXPECT_EQ(*Unboxed(5), 5); }

TEST(Error, ContextGoesInFront) {
  const Error error = NotFound("no {}", "file").WithContext("opening the model");
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_EQ(error.message(), "opening the model: no file");
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 1; code <= 16; ++code) {
    const std::string_view name = CodeName(static_cast<Code>(code));
    EXPECT_FALSE(name.empty());
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(CodeName(Code::kInvalidArgument), "INVALID_ARGUMENT");
  EXPECT_EQ(CodeName(Code::kUnauthenticated), "UNAUTHENTICATED");
}

}  // namespace
}  // namespace inferd
