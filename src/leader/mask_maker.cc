// SPDX-License-Identifier: Apache-2.0
#include "leader/mask_maker.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace inferd::leader {

MaskMaker::MaskMaker(int num_threads, std::int64_t vocab_size, Failed failed)
    : vocab_size_(vocab_size), failed_(std::move(failed)) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Loop(); });
  }
}

MaskMaker::~MaskMaker() { Stop(); }

void MaskMaker::Stop() {
  {
    const std::lock_guard lock(jobs_mutex_);
    stop_ = true;
    jobs_.clear();
  }
  jobs_changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

// ---- engine thread

void MaskMaker::Add(std::uint64_t sequence, std::shared_ptr<const TokenConstraint> constraint) {
  auto added = std::make_shared<Sequence>();
  added->id = sequence;
  added->pristine = std::move(constraint);
  sequences_.emplace(sequence, std::move(added));
}

void MaskMaker::TakeToken(std::uint64_t sequence, std::int32_t token) {
  if (const auto found = sequences_.find(sequence); found != sequences_.end()) {
    const std::lock_guard lock(found->second->tokens_mutex);
    found->second->tokens.push_back(token);
  }
}

void MaskMaker::Remove(std::uint64_t sequence) { sequences_.erase(sequence); }

void MaskMaker::Make(const engine::MaskRequest& request,
                     std::uint64_t generation,
                     std::shared_ptr<rpc::Peer> sampler) {
  Job job;
  job.mask.generation = generation;
  job.mask.step = request.step;
  job.mask.group = request.group;
  job.mask.row = request.row;
  job.sampler = std::move(sampler);
  if (const auto found = sequences_.find(request.id); request.wanted && found != sequences_.end()) {
    job.sequence = found->second;
  }
  {
    const std::lock_guard lock(jobs_mutex_);
    jobs_.push_back(std::move(job));
  }
  jobs_changed_.notify_one();
}

// ---- own threads

void MaskMaker::Loop() {
  std::vector<std::uint32_t> words;
  for (;;) {
    Job job;
    {
      std::unique_lock lock(jobs_mutex_);
      jobs_changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) {
        return;
      }
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    Run(&job, &words);
  }
}

void MaskMaker::Run(Job* job, std::vector<std::uint32_t>* words) {
  if (job->sequence != nullptr) {
    Sequence& sequence = *job->sequence;
    const std::lock_guard lock(sequence.own_mutex);
    if (!sequence.failed) {
      if (Result<> filled = Fill(&sequence, words); filled.ok()) {
        spec::SetBits(*words, vocab_size_, &job->mask);
      } else {
        sequence.failed = true;
        failed_(sequence.id, filled.error());
      }
    }
  }
  job->sampler->Send(std::move(job->mask));  // A broken stream is reported by the stream itself.
}

// The tokens taken are all that were given out: a replay asks again for the position after them.
Result<> MaskMaker::Fill(Sequence* sequence, std::vector<std::uint32_t>* words) {
  if (sequence->own == nullptr) {
    INFERD_ASSIGN(sequence->own, sequence->pristine->Clone());
  }
  std::vector<std::int32_t> tokens;
  {
    const std::lock_guard lock(sequence->tokens_mutex);
    tokens.swap(sequence->tokens);
  }
  for (const std::int32_t token : tokens) {
    INFERD_TRY(sequence->own->Accept(token));
  }
  words->assign(spec::MaskWords(vocab_size_), 0);
  INFERD_TRY(sequence->own->FillMask(*words));
  if (std::all_of(words->begin(), words->end(), [](std::uint32_t word) { return word == 0; })) {
    return InvalidArgument("no token can follow under the request's grammar");
  }
  return {};
}

}  // namespace inferd::leader
