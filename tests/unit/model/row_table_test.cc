// SPDX-License-Identifier: Apache-2.0
#include "model/row_table.h"

#include <gtest/gtest.h>

namespace inferd::model {
namespace {

constexpr RowLimits kLimits = {.group = 1,
                               .max_num_seqs = 2,
                               .max_batched_tokens = 8,
                               .max_model_len = 20,
                               .kv_pages = 5,
                               .page_tokens = 4};

spec::OpenRow Open(std::int32_t row, std::vector<std::int32_t> tokens) {
  spec::OpenRow open;
  open.row = row;
  open.group = 1;
  open.num_prompt_tokens = static_cast<std::int32_t>(tokens.size());
  open.tokens = std::move(tokens);
  return open;
}

spec::RowWork Work(std::int32_t row,
                   std::int64_t start,
                   std::int32_t count,
                   std::vector<std::int32_t> pages) {
  spec::RowWork work;
  work.row = row;
  work.group = 1;
  work.start = start;
  work.count = count;
  work.new_pages = std::move(pages);
  return work;
}

TEST(RowTableTest, BuildsTheBatchOfItsOwnGroup) {
  RowTable table(kLimits, true);
  spec::StepPlan plan;
  plan.open_rows = {Open(0, {10, 11, 12, 13, 14}), Open(1, {20, 21})};
  plan.open_rows.push_back(Open(1, {99}));
  plan.open_rows.back().group = 0;
  plan.fresh_pages = {{1, 3}, {0, 4}, {1, 2}};
  plan.work = {Work(0, 0, 5, {3, 2}), Work(1, 1, 1, {4})};
  plan.work.push_back(Work(1, 0, 8, {}));
  plan.work.back().group = 0;
  plan.work[0].sample = true;
  ASSERT_TRUE(table.Apply(plan).ok());
  EXPECT_EQ(std::vector<std::int32_t>(table.fresh_pages().begin(), table.fresh_pages().end()),
            (std::vector<std::int32_t>{3, 2}));
  StepBatch batch;
  table.FillBatch(&batch);
  ASSERT_TRUE(table.FillIds(&batch).ok());
  EXPECT_EQ(batch.ids, (std::vector<std::int32_t>{10, 11, 12, 13, 14, 21}));
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 1}));
  ASSERT_EQ(batch.sequences.size(), 2U);
  EXPECT_EQ(batch.sequences[1].first_row, 5);
  EXPECT_EQ(batch.sequences[0].pages[1], 2);
  ASSERT_EQ(table.places().size(), 1U);
  EXPECT_EQ(table.places()[0].position, 5);
}

TEST(RowTableTest, SampledTokensReachTheNextStepButNotAReopenedRow) {
  RowTable table(kLimits, true);
  spec::StepPlan plan;
  plan.open_rows = {Open(0, {10})};
  plan.work = {Work(0, 0, 1, {0})};
  plan.work[0].sample = true;
  ASSERT_TRUE(table.Apply(plan).ok());
  const TokenPlace place = table.places()[0];
  table.SetToken(place, 42);
  spec::StepPlan next;
  next.work = {Work(0, 1, 1, {})};
  next.work[0].input_step = 0;
  ASSERT_TRUE(table.Apply(next).ok());
  EXPECT_EQ(table.newest_input_step(), 0);
  StepBatch batch;
  table.FillBatch(&batch);
  ASSERT_TRUE(table.FillIds(&batch).ok());
  EXPECT_EQ(batch.ids, (std::vector<std::int32_t>{42}));

  spec::StepPlan reopen;
  reopen.close_rows = {{1, 0}};
  reopen.open_rows = {Open(0, {7})};
  reopen.work = {Work(0, 0, 1, {1})};
  ASSERT_TRUE(table.Apply(reopen).ok());
  table.SetToken(place, 43);
  EXPECT_EQ(table.row(0).tokens, (std::vector<std::int32_t>{7}));
}

TEST(RowTableTest, GuessesAreInputsOfOneStepOnly) {
  RowTable table(kLimits, true);
  spec::StepPlan plan;
  plan.open_rows = {Open(0, {10, 11})};
  plan.work = {Work(0, 1, 4, {0, 1})};
  plan.work[0].sample = true;
  plan.work[0].draft = {12, 13, 14};
  ASSERT_TRUE(table.Apply(plan).ok());
  StepBatch batch;
  table.FillBatch(&batch);
  ASSERT_TRUE(table.FillIds(&batch).ok());
  EXPECT_EQ(batch.ids, (std::vector<std::int32_t>{11, 12, 13, 14}));
  ASSERT_EQ(table.places().size(), 4U);
  EXPECT_EQ(table.places()[0].position, 2);
  EXPECT_EQ(table.places()[3].position, 5);
  table.SetToken(table.places()[0], 12);
  table.SetToken(table.places()[1], 99);  // the second guess was wrong
  table.SetToken(table.places()[2], kNoToken);
  table.SetToken(table.places()[3], kNoToken);
  EXPECT_EQ(table.row(0).tokens, (std::vector<std::int32_t>{10, 11, 12, 99}));
}

TEST(RowTableTest, RefusesWhatDoesNotFit) {
  const auto fails = [](spec::OpenRow open, spec::RowWork work) {
    RowTable table(kLimits, false);
    spec::StepPlan plan;
    plan.open_rows = {std::move(open)};
    plan.work = {std::move(work)};
    return !table.Apply(plan).ok();
  };
  EXPECT_FALSE(fails(Open(0, {1, 2}), Work(0, 0, 2, {0})));
  EXPECT_TRUE(fails(Open(2, {1, 2}), Work(0, 0, 2, {0}))) << "no such row";
  EXPECT_TRUE(fails(Open(-1, {1, 2}), Work(0, 0, 2, {0})));
  EXPECT_TRUE(fails(Open(0, {1, 2}), Work(1, 0, 2, {0}))) << "not open";
  EXPECT_TRUE(fails(Open(0, {1, 2}), Work(0, 0, 2, {5}))) << "no such page";
  EXPECT_TRUE(fails(Open(0, {1, 2}), Work(0, 0, 5, {0}))) << "too few pages";
  EXPECT_TRUE(fails(Open(0, {1, 2}), Work(0, 0, 9, {0, 1, 2}))) << "more than a batch";
  EXPECT_TRUE(fails(Open(0, {1, 2}), Work(0, 19, 2, {0, 1, 2, 3, 4}))) << "beyond the model length";
  EXPECT_TRUE(fails(Open(0, {1, 2}), Work(0, -1, 2, {0})));
  EXPECT_TRUE(fails(Open(0, std::vector<std::int32_t>(21)), Work(0, 0, 2, {0})));
  spec::RowWork guesses = Work(0, 1, 2, {0});
  guesses.draft = {5};
  EXPECT_TRUE(fails(Open(0, {1, 2}), guesses)) << "guesses without a sample";
  guesses.sample = true;
  EXPECT_FALSE(fails(Open(0, {1, 2}), guesses));
  guesses.draft = {5, 6};
  EXPECT_TRUE(fails(Open(0, {1, 2}), guesses)) << "no known token before the guesses";
  guesses.draft = {5};
  spec::OpenRow constrained = Open(0, {1, 2});
  constrained.constrained = true;
  EXPECT_TRUE(fails(constrained, guesses)) << "guesses under a mask";
  spec::OpenRow open = Open(0, {1});
  open.num_prompt_tokens = 2;
  EXPECT_TRUE(fails(open, Work(0, 0, 1, {0})));
}

TEST(RowTableTest, UnknownInputIsAnError) {
  RowTable table(kLimits, false);
  spec::StepPlan plan;
  plan.open_rows = {Open(0, {1, 2})};
  plan.work = {Work(0, 0, 3, {0})};
  ASSERT_TRUE(table.Apply(plan).ok());
  StepBatch batch;
  table.FillBatch(&batch);
  EXPECT_FALSE(table.FillIds(&batch).ok());
}

}  // namespace
}  // namespace inferd::model
