// SPDX-License-Identifier: Apache-2.0
#include "api/batch/batch_job.h"

#include "api/core/generate_params.h"
#include "api/core/json_writer.h"
#include "api/files/disk.h"
#include "base/check.h"
#include "base/error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace inferd::api {
namespace {

constexpr std::int64_t kPutOffMs = 250;      // when no better time is known
constexpr std::int64_t kLostPauseMs = 1000;  // doubles with each loss of the same line
constexpr std::int64_t kDiskPauseMs = 5000;
constexpr int kMaxLosses = 5;  // of one line; then its error is its answer

std::string_view TextOf(const base::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()),
          static_cast<std::size_t>(file.size())};
}

std::string LineStart(const std::string& custom_id) {
  std::string line = R"({"id":")" + NewId("batch_req_") + R"(","custom_id":)";
  AppendQuoted(custom_id, &line);
  return line;
}

}  // namespace

std::string AnswerLine(const std::string& custom_id, const LineAnswer& answer) {
  std::string line = LineStart(custom_id) + R"(,"response":{"status_code":)";
  AppendInt(answer.status, &line);
  line += R"(,"request_id":)";
  AppendQuoted(answer.request_id, &line);
  line += R"(,"body":)" + answer.body + R"(},"error":null})";
  line += '\n';
  return line;
}

std::string UnrunLine(const std::string& custom_id, std::string_view code, std::string_view why) {
  std::string line = LineStart(custom_id) + R"(,"response":null,"error":{"code":)";
  AppendQuoted(code, &line);
  line += R"(,"message":)";
  AppendQuoted(why, &line);
  line += "}}\n";
  return line;
}

Result<> BatchJob::OpenFile(File* file, std::unordered_map<std::string, bool>* answered) {
  file->fd.Reset(open(file->path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kPrivateFile));
  if (!file->fd.valid()) {
    return DiskError("open", file->path);
  }
  INFERD_ASSIGN(const base::MappedFile there, base::MappedFile::Open(file->path));
  std::size_t whole_bytes = 0;
  answered->merge(AnsweredIds(TextOf(there), &whole_bytes));
  if (whole_bytes < there.size() &&
      ftruncate(file->fd.get(), static_cast<off_t>(whole_bytes)) != 0) {
    return DiskError("shorten", file->path);
  }
  file->bytes = static_cast<std::int64_t>(whole_bytes);
  return {};
}

Result<std::unique_ptr<BatchJob>> BatchJob::Open(BatchInput input,
                                                 base::MappedFile text,
                                                 const std::string& output_path,
                                                 const std::string& errors_path) {
  std::unique_ptr<BatchJob> job(new BatchJob(std::move(input), std::move(text)));
  std::unordered_map<std::string, bool> answered;
  job->output_.path = output_path;
  INFERD_TRY(OpenFile(&job->output_, &answered));
  if (!errors_path.empty()) {
    job->errors_.path = errors_path;
    INFERD_TRY(OpenFile(&job->errors_, &answered));
  }
  for (std::size_t i = 0; i < job->input_.lines.size(); ++i) {
    const std::string& id = job->input_.lines[i].custom_id;
    const auto it = answered.find(id);
    if (it == answered.end()) {
      job->left_.push_back(i);
    } else {
      ++(it->second ? job->completed_ : job->failed_);
    }
  }
  const auto known = static_cast<std::size_t>(job->completed_ + job->failed_);
  if (known < answered.size()) {
    return InvalidArgument("{} holds answers to requests that are not in the input", output_path);
  }
  return job;
}

void BatchJob::Start(LineRunner* lines, std::uint64_t tag, const std::string& owner) {
  const std::size_t line = left_.front();
  left_.pop_front();
  running_.emplace(tag, line);
  const BatchLine& one = input_.lines[line];
  LineRequest request;
  request.tag = tag;
  request.url = one.url;
  request.body = BodyOf(TextOf(text_).substr(one.at, one.size));
  request.owner = owner;
  lines->Start(std::move(request));
}

void BatchJob::Cancel(LineRunner* lines) {
  for (const auto& [tag, line] : running_) {
    lines->Cancel(tag);
  }
}

Result<> BatchJob::Take(LineAnswer answer, std::int64_t now_ms) {
  const auto it = running_.find(answer.tag);
  INFERD_CHECK(it != running_.end());
  const std::size_t line = it->second;
  running_.erase(it);
  if (answer.kind == LineAnswer::Kind::kPutOff) {
    not_before_ms_ = now_ms + std::max(kPutOffMs, answer.retry_after_ms);
  } else if (answer.kind == LineAnswer::Kind::kLost) {
    const int losses = ++losses_[line];
    not_before_ms_ = now_ms + (kLostPauseMs << losses) / 2;
    answer.kind = losses < kMaxLosses ? answer.kind : LineAnswer::Kind::kAnswered;
  }
  if (answer.kind != LineAnswer::Kind::kAnswered) {
    left_.push_front(line);
    return {};
  }
  if (auto kept = Keep(line, answer); !kept.ok()) {
    left_.push_front(line);
    not_before_ms_ = now_ms + kDiskPauseMs;
    return kept.error();
  }
  return {};
}

Result<> BatchJob::Append(File* file, std::string_view line) {
  ssize_t put = 0;
  do {
    put = write(file->fd.get(), line.data(), line.size());
  } while (put < 0 && errno == EINTR);
  if (put != static_cast<ssize_t>(line.size())) {
    const Error error = put < 0 ? DiskError("append to", file->path)
                                : Internal("the disk of {} is full", file->path);
    // A part of a line must not become the start of the next one.
    [[maybe_unused]] const int cut = ftruncate(file->fd.get(), file->bytes);
    return error;
  }
  file->bytes += put;
  return {};
}

Result<> BatchJob::Keep(std::size_t line, const LineAnswer& answer) {
  const bool good = IsGoodStatus(answer.status);
  File* const file = good || !errors_.fd.valid() ? &output_ : &errors_;
  INFERD_TRY(Append(file, AnswerLine(input_.lines[line].custom_id, answer)));
  ++(good ? completed_ : failed_);
  return {};
}

Result<> BatchJob::EndUnrun(std::string_view code, std::string_view why) {
  while (!left_.empty()) {
    INFERD_TRY(Append(&errors_, UnrunLine(input_.lines[left_.front()].custom_id, code, why)));
    left_.pop_front();
    ++failed_;
  }
  return {};
}

Result<> BatchJob::Sync() {
  for (const File* file : {&output_, &errors_}) {
    if (file->fd.valid() && fsync(file->fd.get()) != 0) {
      return DiskError("sync", file->path);
    }
  }
  return {};
}

}  // namespace inferd::api
