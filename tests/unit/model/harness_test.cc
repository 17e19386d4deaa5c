// SPDX-License-Identifier: Apache-2.0
// The harness of this room's tests (see harness.h).
#include "unit/model/harness.h"

#include "base/error.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>

namespace inferd::model {

std::string DataFolder() {
  const char* const folder = std::getenv("INFERD_TEST_DATA");
  return folder != nullptr ? folder : INFERD_TEST_DATA;
}

std::string DataPath(const std::string& family, const std::string& file) {
  return DataFolder() + "/" + family + (file.empty() ? "" : "/" + file);
}

Golden ReadGolden(const std::string& family) {
  std::ifstream in(DataPath(family, "golden.safetensors"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::uint64_t header_size = 0;
  Golden golden;
  if (bytes.size() < sizeof(header_size)) {
    ADD_FAILURE() << "no golden outputs of " << family;
    return golden;
  }
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_size));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      golden.tolerance = std::stof(entry.at("tolerance").get<std::string>());
      continue;
    }
    const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
    const char* data = bytes.data() + 8 + header_size + begin;
    if (entry.at("dtype") == "F32") {
      golden.floats[name].resize((end - begin) / 4);
      std::memcpy(golden.floats[name].data(), data, end - begin);
    } else {
      golden.ints[name].resize((end - begin) / 4);
      std::memcpy(golden.ints[name].data(), data, end - begin);
    }
  }
  return golden;
}

std::vector<RankComms> MakeComms(const std::vector<spec::ShardPlan>& plans) {
  std::vector<RankComms> comms(plans.size());
  const auto group = [&](std::unique_ptr<comm::Communicator> RankComms::*member,
                         const auto& key,
                         const auto& order) {
    std::map<decltype(key(plans[0])), std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      groups[key(plans[i])].push_back(i);
    }
    for (auto& [unused, members] : groups) {
      std::sort(members.begin(), members.end(), [&](auto a, auto b) {
        return order(plans[a]) < order(plans[b]);
      });
      auto made = comm::MakeFakeGroup(static_cast<int>(members.size()));
      for (std::size_t i = 0; i < members.size() && members.size() > 1; ++i) {
        comms[members[i]].*member = std::move(made[i]);
      }
    }
  };
  group(
      &RankComms::tp,
      [](const auto& p) { return std::pair(p.stage, p.group); },
      [](const auto& p) { return p.tp_rank; });
  group(
      &RankComms::ep,
      [](const auto& p) { return std::pair(p.stage, p.tp_rank); },
      [](const auto& p) { return p.group; });
  group(
      &RankComms::pp,
      [](const auto& p) { return std::pair(p.group, p.tp_rank); },
      [](const auto& p) { return p.stage; });
  std::map<int, std::vector<std::size_t>>
      ids;  // by expert group: the sampler, then the first stage
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].is_sampler()) {
      ids[plans[i].group].insert(ids[plans[i].group].begin(), i);
    } else if (plans[i].has_embedding) {
      ids[plans[i].group].push_back(i);
    }
  }
  for (const auto& [unused, members] : ids) {
    auto made = comm::MakeFakeGroup(static_cast<int>(members.size()));
    for (std::size_t i = 0; i < members.size() && members.size() > 1; ++i) {
      comms[members[i]].ids = std::move(made[i]);
    }
  }
  return comms;
}

Schedule InChunks(const std::vector<std::vector<std::int32_t>>& sequences, std::int64_t chunk) {
  Schedule schedule;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto size = static_cast<std::int64_t>(sequences[s].size());
    for (std::int64_t start = 0; start < size; start += chunk) {
      schedule.push_back({{s, start, std::min(chunk, size - start)}});
    }
  }
  return schedule;
}

Result<> OnThreads(std::size_t ranks,
                   std::vector<RankComms>* comms,
                   const std::function<Result<>(std::size_t)>& fn) {
  std::mutex mutex;
  std::optional<Error> first;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Result<> done = fn(rank);
      if (done.ok()) {
        return;
      }
      const std::lock_guard lock(mutex);
      if (!first) {
        first = done.error().WithContext("rank " + std::to_string(rank));
      }
      for (RankComms& each : *comms) {
        for (comm::Communicator* comm :
             {each.tp.get(), each.ep.get(), each.pp.get(), each.ids.get()}) {
          if (comm != nullptr) {
            comm->Abort();
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    return *first;
  }
  return {};
}

namespace {
constexpr std::int64_t kPages = 64;
constexpr std::int64_t kMaxTokens = 256;
}  // namespace

Result<std::unique_ptr<ShardSet>> ShardSet::Make(const std::string& path,
                                                 const ShardSetOptions& options) {
  auto set = std::make_unique<ShardSet>();
  INFERD_ASSIGN(store::Model model,
                store::OpenModel(path, options.quantization, options.device.starts_with("cuda")));
  set->model_ = std::make_unique<store::Model>(std::move(model));
  const spec::ModelSpec& spec = set->model_->spec;
  INFERD_ASSIGN(set->plans_, spec::PlanShards(spec, options.parallel, set->model_->cut));
  ShardOptions shard_options;
  shard_options.max_batched_tokens = kMaxTokens;
  shard_options.max_num_seqs = 8;
  shard_options.max_model_len =
      options.max_model_len > 0 ? options.max_model_len : spec.max_position;
  shard_options.kv_pages = kPages;
  shard_options.kv_type = KvTypeOf(options.kv_dtype, spec);
  LoadWeightsOptions load_options;
  load_options.threads = options.threads;
  for (const spec::ShardPlan& plan : set->plans_) {
    if (shard_options.kv_type == ops::KvType::kFp8) {
      INFERD_ASSIGN(shard_options.kv_scales, ReadKvScales(*set->model_, plan));
    }
    INFERD_ASSIGN(auto device,
                  ops::MakeDevice(options.device, options.threads, {}, options.bf16_dot));
    INFERD_ASSIGN(ShardWeights weights, LoadWeights(*set->model_, plan, *device, load_options));
    INFERD_ASSIGN(auto shard, Shard::Make(spec, plan, std::move(weights), *device, shard_options));
    set->devices_.push_back(std::move(device));
    set->shards_.push_back(std::move(shard));
  }
  set->comms_ = MakeComms(set->plans_);
  INFERD_TRY(OnThreads(set->plans_.size(), &set->comms_, [&](std::size_t rank) {
    return set->shards_[rank]->Join(set->comms_[rank].tp.get(), set->comms_[rank].ep.get());
  }));
  return set;
}

std::int64_t ShardSet::weight_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& shard : shards_) {
    bytes += shard->weight_bytes();
  }
  return bytes;
}

Result<std::vector<std::vector<float>>> ShardSet::Run(
    const std::vector<std::vector<std::int32_t>>& sequences, const Schedule& schedule) {
  std::vector<std::vector<float>> logits;
  for (const auto& sequence : sequences) {
    logits.emplace_back(sequence.size() * static_cast<std::size_t>(model().vocab_size));
  }
  INFERD_TRY(OnThreads(plans_.size(), &comms_, [&](std::size_t rank) {
    return RunRank(rank, sequences, schedule, &logits);
  }));
  return logits;
}

Result<> ShardSet::RunRank(std::size_t rank,
                           const std::vector<std::vector<std::int32_t>>& sequences,
                           const Schedule& schedule,
                           std::vector<std::vector<float>>* logits) {
  const spec::ShardPlan& plan = plans_[rank];
  Shard& shard = *shards_[rank];
  const std::int64_t page_tokens = devices_[rank]->PageTokens();
  std::vector<std::vector<std::int32_t>> pages(sequences.size());
  std::int32_t next_page = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(sequences[s].size()); t += page_tokens) {
      pages[s].push_back(next_page++);
    }
    std::reverse(pages[s].begin(), pages[s].end());  // no page is where its number would suggest
  }
  if (next_page > kPages) {
    return InvalidArgument("{} pages are more than the test's {}", next_page, kPages);
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(kPages));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::int32_t>(i);
  }
  shard.kv().Zero(*devices_[rank], all);
  for (const auto& step : schedule) {
    StepBatch batch;
    std::vector<Piece> mine;
    for (const Piece& piece : step) {
      if (static_cast<int>(piece.sequence) % plan.ep != plan.group) {
        continue;
      }
      mine.push_back(piece);
      batch.sequences.push_back({batch.rows(), piece.count, piece.start, pages[piece.sequence]});
      for (std::int64_t p = piece.start; p < piece.start + piece.count; ++p) {
        batch.positions.push_back(static_cast<std::int32_t>(p));
        batch.ids.push_back(sequences[piece.sequence][static_cast<std::size_t>(p)]);
      }
    }
    if (!plan.has_embedding && batch.rows() > 0) {
      INFERD_TRY(shard.ReceiveHidden(comms_[rank].pp.get(), plan.stage - 1, batch.rows()));
    }
    INFERD_TRY(shard.Forward(batch));
    if (!plan.has_head) {
      if (batch.rows() > 0) {
        INFERD_TRY(shard.SendHidden(comms_[rank].pp.get(), plan.stage + 1, batch.rows()));
      }
      continue;
    }
    std::vector<std::pair<std::size_t, std::int64_t>> places;  // (sequence, position) of each row
    for (const Piece& piece : mine) {
      for (std::int64_t p = piece.start; p < piece.start + piece.count; ++p) {
        places.emplace_back(piece.sequence, p);
      }
    }
    const auto vocab = static_cast<std::size_t>(model().vocab_size);
    const auto at_once = static_cast<std::size_t>(shard.max_logit_rows());
    for (std::size_t begin = 0; begin < places.size(); begin += at_once) {
      std::vector<std::int32_t> rows;
      for (std::size_t i = begin; i < std::min(places.size(), begin + at_once); ++i) {
        rows.push_back(static_cast<std::int32_t>(i));
      }
      INFERD_ASSIGN(const float* out, shard.Logits(rows));
      for (std::size_t i = 0; i < rows.size() && out != nullptr; ++i) {
        const auto [sequence, position] = places[begin + i];
        std::copy_n(out + i * vocab,
                    vocab,
                    (*logits)[sequence].data() + static_cast<std::size_t>(position) * vocab);
      }
    }
  }
  return {};
}

}  // namespace inferd::model
