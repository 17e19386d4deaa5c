// SPDX-License-Identifier: Apache-2.0
// Cost of the scheduler per step and of the prefix cache per block, by size. Per-item times are in
// the "per_item" column.
#include "base/clock.h"
#include "engine/block_manager.h"
#include "engine/prefix_hasher.h"
#include "engine/scheduler.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace inferd::engine {
namespace {

constexpr std::int32_t kPage = 32;

void PerItem(benchmark::State& state, std::int64_t items) {
  state.counters["per_item"] = benchmark::Counter(
      static_cast<double>(items),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// range(0) sequences decode, one step ahead: plan a step, take in the result of the one before.
void BM_DecodeStep(benchmark::State& state) {
  const std::int64_t num_running = state.range(0);
  SchedulerOptions options;
  options.page_size = kPage;
  options.num_pages = num_running * 260;
  options.max_num_seqs = static_cast<std::int32_t>(num_running);
  options.max_batched_tokens = static_cast<std::int32_t>(num_running * 2 + 64);
  options.max_model_len = 8192;
  options.max_waiting = num_running;
  const base::FakeClock clock;
  std::optional<Scheduler> scheduler;
  std::vector<TokenEvent> events;
  spec::StepResult result;
  std::int64_t step = 0;
  std::vector<std::vector<spec::SampledToken>> sampled(4);
  const auto plan_step = [&] {
    std::optional<spec::StepPlan> plan = scheduler->Schedule();
    auto& tokens = sampled[static_cast<std::size_t>(plan->step % 4)];
    tokens.clear();
    for (const spec::RowWork& work : plan->work) {
      if (work.sample) {
        tokens.emplace_back().row = work.row;
        tokens.back().token = work.row + 1;
      }
    }
  };
  const auto complete_step = [&] {
    result.step = step++;
    std::swap(result.sampled, sampled[static_cast<std::size_t>(result.step % 4)]);
    if (!scheduler->Complete(result).ok()) {
      state.SkipWithError("the scheduler refused a result");
    }
    std::swap(result.sampled, sampled[static_cast<std::size_t>(result.step % 4)]);
    scheduler->TakeEvents(&events);
    benchmark::DoNotOptimize(events.data());
  };
  const auto start = [&] {
    scheduler.emplace(options, clock, PrefixHasher({1, 2}, kPage));
    step = 0;
    for (std::int64_t i = 0; i < num_running; ++i) {
      SequenceRequest request;
      request.id = static_cast<std::uint64_t>(i) + 1;
      request.prompt = {static_cast<std::int32_t>(i)};
      request.max_tokens = 8000;
      if (!scheduler->Add(std::move(request)).ok()) {
        state.SkipWithError("the scheduler refused a sequence");
      }
    }
    for (int i = 0; i < 8; ++i) {
      plan_step();
      complete_step();
    }
    plan_step();
  };
  start();
  for (auto _ : state) {
    if (step > 7000) {
      state.PauseTiming();
      start();
      state.ResumeTiming();
    }
    plan_step();
    complete_step();
  }
  PerItem(state, num_running);
}
BENCHMARK(BM_DecodeStep)->RangeMultiplier(4)->Range(1, 1024);

/// Key of one block.
void BM_BlockKey(benchmark::State& state) {
  const PrefixHasher hasher({1, 2}, kPage);
  std::vector<std::int32_t> tokens(kPage * 64);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<Hash128> keys;
  for (auto _ : state) {
    keys.clear();
    hasher.Extend(tokens, "tenant", &keys);
    benchmark::DoNotOptimize(keys.data());
  }
  PerItem(state, 64);
}
BENCHMARK(BM_BlockKey);

constexpr std::int64_t kChain = 32;  // blocks of a prompt

/// A cache of range(0) blocks, full of chains of kChain blocks.
struct FullCache {
  explicit FullCache(std::int64_t num_blocks) : blocks(num_blocks, kPage) {
    const PrefixHasher hasher({1, 2}, kPage);
    for (std::int64_t chain = 0; chain < num_blocks / kChain; ++chain) {
      std::vector<std::int32_t> text(kPage * kChain, static_cast<std::int32_t>(chain));
      std::vector<Hash128> own;
      hasher.Extend(text, "", &own);
      std::vector<std::int32_t> pages;
      blocks.Allocate(kChain, 0, &pages);
      std::uint64_t serial = BlockManager::kRoot;
      for (std::size_t i = 0; i < kChain; ++i) {
        serial = blocks.Commit(pages[i], own[i], std::span(text).subspan(i * kPage, kPage), serial);
      }
      blocks.Release(pages);
      keys.push_back(std::move(own));
    }
  }

  BlockManager blocks;
  std::vector<std::vector<Hash128>> keys;
};

/// Look-up of a random cached chain, its references taken and dropped.
void BM_PrefixHit(benchmark::State& state) {
  FullCache cache(state.range(0));
  std::mt19937 random(1);
  BlockManager::Prefix prefix;
  std::vector<std::int32_t> text(kPage * kChain);
  for (auto _ : state) {
    const std::size_t chain = random() % cache.keys.size();
    std::fill(text.begin(), text.end(), static_cast<std::int32_t>(chain));
    cache.blocks.Lookup(cache.keys[chain], text, kChain, &prefix);
    if (prefix.pages.size() != kChain) {
      state.SkipWithError("a cached chain was not found");
    }
    cache.blocks.Acquire(prefix.pages);
    cache.blocks.Release(prefix.pages);
  }
  PerItem(state, kChain);
}
BENCHMARK(BM_PrefixHit)->RangeMultiplier(10)->Range(1000, 1'000'000);

/// Eviction: a chain's pages taken from a full cache, and given back as free ones.
void BM_Evict(benchmark::State& state) {
  FullCache cache(state.range(0));
  const PrefixHasher hasher({3, 4}, kPage);
  std::vector<std::int32_t> pages;
  std::int32_t salt = 0;
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<std::int32_t> text(kPage * kChain, --salt);
    std::vector<Hash128> keys;
    hasher.Extend(text, "", &keys);
    pages.clear();
    state.ResumeTiming();
    if (!cache.blocks.Allocate(kChain, 0, &pages)) {
      state.SkipWithError("no page");
    }
    std::uint64_t serial = BlockManager::kRoot;
    for (std::size_t i = 0; i < kChain; ++i) {
      serial =
          cache.blocks.Commit(pages[i], keys[i], std::span(text).subspan(i * kPage, kPage), serial);
    }
    cache.blocks.Release(pages);
  }
  PerItem(state, kChain);
}
BENCHMARK(BM_Evict)->RangeMultiplier(10)->Range(1000, 1'000'000)->Iterations(5000);

}  // namespace
}  // namespace inferd::engine

BENCHMARK_MAIN();
