// SPDX-License-Identifier: Apache-2.0
#include "cluster/harness.h"

#include "base/log.h"
#include "store/model.h"
#include "worker/worker.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

namespace inferd::cluster {
namespace {

std::int64_t TotalBytes(const store::TensorSource& tensors) {
  std::int64_t total = 0;
  for (const store::TensorInfo& tensor : tensors.tensors()) {
    total += static_cast<std::int64_t>(tensor.bytes);
  }
  return total;
}

}  // namespace

spec::ParallelSpec Parallel(int tp, int pp, int ep, int dp) {
  spec::ParallelSpec parallel;
  parallel.tp = tp;
  parallel.pp = pp;
  parallel.ep = ep;
  parallel.dp = dp;
  return parallel;
}

void Collector::Publish(std::span<leader::OutputEvent> events) {
  {
    const std::lock_guard lock(mutex_);
    for (leader::OutputEvent& event : events) {
      Answer& answer = answers_[{event.stream.slot, event.choice}];
      EXPECT_FALSE(answer.ended) << "an event after the end of slot " << event.stream.slot;
      if (event.token) {
        answer.tokens.push_back(event.token->token);
        answer.details.push_back(*event.token);
      }
      answer.cached_tokens += event.cached_tokens;
      for (spec::SampledToken& token : event.prompt_logprobs) {
        answer.prompt_logprobs.push_back(std::move(token));
      }
      if (!event.embedding.empty()) {
        answer.embedding = std::move(event.embedding);
      }
      if (event.error) {
        answer.error = event.error->message();
      }
      if (event.finish != leader::FinishReason::kNone) {
        answer.finish = event.finish;
        answer.ended = true;
      }
    }
  }
  changed_.notify_all();
}

Answer Collector::Wait(std::uint32_t slot, std::int32_t choice, int deadline_s) {
  std::unique_lock lock(mutex_);
  Answer& answer = answers_[{slot, choice}];
  EXPECT_TRUE(
      changed_.wait_for(lock, std::chrono::seconds(deadline_s), [&] { return answer.ended; }))
      << "slot " << slot << " choice " << choice << " did not end within " << deadline_s
      << " s; it has " << answer.tokens.size() << " tokens";
  return answer;
}

std::size_t Collector::WaitForTokens(std::uint32_t slot, std::size_t count, int deadline_s) {
  std::unique_lock lock(mutex_);
  Answer& answer = answers_[{slot, 0}];
  changed_.wait_for(lock, std::chrono::seconds(deadline_s), [&] {
    return answer.ended || answer.tokens.size() >= count;
  });
  return answer.tokens.size();
}

Server::Server(const ServerOptions& options) {
  const std::string path = options.model.starts_with('/')
                               ? options.model
                               : std::string(INFERD_TEST_DATA) + "/" + options.model;
  Result<store::Model> model = store::OpenModel(path);
  if (!model.ok()) {
    ADD_FAILURE() << model.error().message();
    return;
  }
  leader::LeaderOptions leader_options;
  leader_options.model = model->spec;
  leader_options.model.eos_ids = options.eos_ids;
  leader_options.model_path = path;
  leader_options.cut = model->cut;
  leader_options.weight_bytes = TotalBytes(model->tensors);
  leader_options.parallel = options.parallel;
  Result<spec::DeviceChoice> device = spec::ParseDevice(options.device);
  if (!device.ok()) {
    ADD_FAILURE() << device.error().message();
    return;
  }
  leader_options.device = *std::move(device);
  leader_options.comm = options.comm;
  leader_options.max_num_seqs = options.max_num_seqs;
  leader_options.max_num_batched_tokens = options.max_num_batched_tokens;
  leader_options.kv_cache_bytes = options.kv_cache_bytes;
  leader_options.step_deadline_ms = options.step_deadline_ms;
  leader_options.max_waiting = options.max_waiting;
  leader_options.prefix_cache = options.prefix_cache;
  leader_options.enable_sleep_mode = options.enable_sleep_mode;
  auto started = leader::Leader::Start(std::move(leader_options));
  if (!started.ok()) {
    ADD_FAILURE() << started.error().message();
    return;
  }
  const auto give_up_at = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Result<> ready =
      (*started)->WaitUntilReady([](const leader::LoadProgress&) {},
                                 [&] { return std::chrono::steady_clock::now() > give_up_at; });
  if (!ready.ok()) {
    ADD_FAILURE() << ready.error().message();
    return;
  }
  leader_ = *std::move(started);
}

Server::~Server() {
  if (leader_ != nullptr) {
    leader_->Stop();
  }
  EXPECT_TRUE(WorkerPids().empty()) << "worker processes are left";
}

std::uint32_t Server::Submit(const std::vector<std::int32_t>& prompt, std::int32_t max_tokens) {
  leader::GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return Submit(std::move(request));
}

std::uint32_t Server::Submit(leader::GenerateRequest request) {
  const std::uint32_t slot = next_slot_++;
  request.stream = {0, slot, 0};
  request.sink = &collector_;
  Result<> submitted = leader_->Submit(std::move(request), nullptr);
  EXPECT_TRUE(submitted.ok()) << submitted.error().message();
  return slot;
}

std::vector<Answer> Server::Generate(const std::vector<std::vector<std::int32_t>>& prompts,
                                     std::int32_t max_tokens) {
  std::vector<std::uint32_t> slots;
  for (const auto& prompt : prompts) {
    slots.push_back(Submit(prompt, max_tokens));
  }
  std::vector<Answer> answers;
  for (const std::uint32_t slot : slots) {
    answers.push_back(collector_.Wait(slot));
  }
  return answers;
}

std::vector<pid_t> Server::WorkerPids() {
  std::vector<pid_t> pids;
  const std::string path = "/proc/self/task";
  DIR* tasks = ::opendir(path.c_str());
  while (const dirent* task = ::readdir(tasks)) {
    std::ifstream children(path + "/" + task->d_name + "/children");
    pid_t pid = 0;
    while (children >> pid) {
      pids.push_back(pid);
    }
  }
  ::closedir(tasks);
  std::sort(pids.begin(), pids.end());
  return pids;
}

std::int64_t Server::PagesInUseWhenIdle() {
  std::int64_t used = -1;
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  for (int attempt = 0; attempt < 100; ++attempt) {
    used = 0;
    bool idle = true;
    for (const leader::ReplicaStats& stats : leader_->stats()) {
      used += stats.kv_pages_used;
      idle = idle && stats.running == 0 && stats.waiting == 0;
    }
    if (idle && used == 0) {
      break;
    }
    never.wait_for(lock, std::chrono::milliseconds(50));
  }
  return used;
}

std::vector<std::vector<std::int32_t>> RandomPrompts(int count,
                                                     int vocab,
                                                     int max_length,
                                                     std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(count));
  for (auto& prompt : prompts) {
    prompt.resize(3 + random() % static_cast<std::uint64_t>(max_length - 2));
    for (std::int32_t& id : prompt) {
      id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
    }
  }
  return prompts;
}

int WorkerMain(int argc, char** argv) {
  worker::WorkerOptions options;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string_view flag(argv[i]);
    const std::string value(argv[i + 1]);
    if (flag == "--leader") {
      options.leader = value;
    } else if (flag == "--worker-id") {
      options.worker_id = std::stoull(value);
    } else if (flag == "--node-rank") {
      options.node_rank = std::stoi(value);
    } else if (flag == "--data-address") {
      options.data_address = value;
    }
  }
  const char* secret = std::getenv("INFERD_CLUSTER_SECRET");
  options.secret = secret == nullptr ? "" : secret;
  log::Init(log::Level::kWarning, "worker " + std::to_string(options.worker_id));
  const Result<> result = worker::RunWorker(options);
  if (!result.ok()) {
    log::Warning("worker", "ended: {}", result.error().message());
  }
  return result.ok() ? 0 : 1;
}

}  // namespace inferd::cluster
