// SPDX-License-Identifier: Apache-2.0
// One batch that runs: which of its lines are left, and the two files that its answers go to, a
// line each, in the order in which they come.
//
// An answer is appended by one write, and what was cut by a crash is cut off when the job is opened
// again: a line that is in a file was answered and is not run again, one that is not is run. So no
// line has two answers.
#pragma once

#include "api/batch/batch_input.h"
#include "api/batch/line_runner.h"
#include "base/file.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inferd::api {

/// {"id","custom_id","response","error"} and a line end.
std::string AnswerLine(const std::string& custom_id, const LineAnswer& answer);
/// The same of a line that did not run.
std::string UnrunLine(const std::string& custom_id, std::string_view code, std::string_view why);

class BatchJob {
 public:
  /// `errors_path` empty: all answers go to one file. A file that holds answers to other requests
  /// is kInvalidArgument.
  static Result<std::unique_ptr<BatchJob>> Open(BatchInput input,
                                                base::MappedFile text,
                                                const std::string& output_path,
                                                const std::string& errors_path);

  /// A line is left, and nothing asks to wait.
  bool Ready(std::int64_t now_ms) const { return !left_.empty() && now_ms >= not_before_ms_; }
  /// Runs the next line; Ready.
  void Start(LineRunner* lines, std::uint64_t tag, const std::string& owner);
  /// Ends what runs; the answers still come.
  void Cancel(LineRunner* lines);
  /// The line of that tag runs and is of this job.
  bool Runs(std::uint64_t tag) const { return running_.contains(tag); }
  /// Takes the answer to one of its lines: keeps it, or runs the line again later. An error of the
  /// disk: the line counts as not answered.
  Result<> Take(LineAnswer answer, std::int64_t now_ms);
  /// Says of every line that is left that it did not run.
  Result<> EndUnrun(std::string_view code, std::string_view why);
  /// What was appended is on the disk.
  Result<> Sync();

  std::size_t left() const { return left_.size(); }
  std::size_t running() const { return running_.size(); }
  std::size_t total() const { return input_.lines.size(); }
  std::int64_t completed() const { return completed_; }
  std::int64_t failed() const { return failed_; }
  bool has_output() const { return output_.bytes > 0; }
  bool has_errors() const { return errors_.bytes > 0; }

 private:
  struct File {
    std::string path;
    base::UniqueFd fd;
    std::int64_t bytes = 0;
  };
  BatchJob(BatchInput input, base::MappedFile text)
      : input_(std::move(input)), text_(std::move(text)) {}
  static Result<> OpenFile(File* file, std::unordered_map<std::string, bool>* answered);
  static Result<> Append(File* file, std::string_view line);
  Result<> Keep(std::size_t line, const LineAnswer& answer);

  BatchInput input_;
  base::MappedFile text_;
  File output_, errors_;  // the second without a descriptor: there is one file
  std::deque<std::size_t> left_;
  std::unordered_map<std::uint64_t, std::size_t> running_;  // lines by tag
  std::unordered_map<std::size_t, int> losses_;             // by line
  std::int64_t not_before_ms_ = 0;
  std::int64_t completed_ = 0, failed_ = 0;
};

}  // namespace inferd::api
