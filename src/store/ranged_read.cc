// SPDX-License-Identifier: Apache-2.0
#include "store/ranged_read.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace inferd::store {
namespace {

/// Large enough that a round trip does not count, small enough that all connections end together.
constexpr std::int64_t kPieceBytes = 8 << 20;
/// What is lost at most, per connection, when the process is killed.
constexpr std::int64_t kRecordBytes = 1 << 20;
constexpr std::chrono::milliseconds kProgressPeriod{100};

struct Piece {
  const RangedRead* read;
  ByteRange range;
};

std::int64_t NowMs() { return base::SteadyClock::Get().NowMs(); }

class Reader {
 public:
  Reader(const S3Client& client, const std::vector<RangedRead>& reads) : client_(client) {
    for (const RangedRead& read : reads) {
      const std::vector<ByteRange> all = {{0, read.file->size()}};
      for (const ByteRange& wanted : read.wanted.empty() ? all : read.wanted) {
        for (const ByteRange& range : CutRanges(read.file->Missing(wanted), kPieceBytes)) {
          pieces_.push_back({&read, range});
        }
      }
    }
  }

  Result<> Run(int connections, const std::function<bool(std::int64_t)>& progress) {
    if (!progress(0)) {
      return Stopped();
    }
    const std::size_t count = std::min(pieces_.size(), static_cast<std::size_t>(connections));
    working_ = count;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([this] { Work(); });
    }
    {
      std::unique_lock lock(mutex_);
      while (working_ > 0) {
        done_.wait_for(lock, kProgressPeriod);
        if (working_ == 0) {
          break;
        }
        lock.unlock();
        const bool go_on = progress(received_.load());
        lock.lock();
        if (!error_ && !go_on) {
          error_ = Stopped();
          stop_ = true;
        }
      }
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    progress(received_.load());
    return error_ ? Result<>(*std::move(error_)) : Result<>();
  }

 private:
  Error Stopped() const {
    return Cancelled("{}: cancelled; what was loaded is kept for the next time",
                     client_.location().Url());
  }

  std::optional<Piece> Take() {
    const std::lock_guard lock(mutex_);
    if (pieces_.empty() || stop_) {
      return std::nullopt;
    }
    const Piece piece = pieces_.front();
    pieces_.pop_front();
    return piece;
  }

  void Work() {
    HttpConnection connection;
    Result<> result;
    while (result.ok()) {
      const auto piece = Take();
      if (!piece) {
        break;
      }
      result = ReadPiece(&connection, *piece);
    }
    {
      const std::lock_guard lock(mutex_);
      if (!result.ok()) {
        // The first error stops the others, which then end cancelled.
        error_ = error_ ? std::move(error_) : std::move(result).error();
        stop_ = true;
      }
      --working_;
    }
    done_.notify_all();
  }

  Result<> ReadPiece(HttpConnection* connection, const Piece& piece) {
    const S3Object& object = piece.read->object;
    std::int64_t at = piece.range.begin;
    int attempt = 0;
    for (;;) {
      const std::int64_t before = at;
      INFERD_ASSIGN(const HttpAnswer answer, ReadOnce(connection, piece, &at));
      if (at == piece.range.end) {
        return {};
      }
      const bool lost = answer.MayPass() || answer.end == HttpAnswer::End::kDone;
      if (!lost || stop_) {
        return client_.ToError(object.key, answer);
      }
      attempt = at > before ? 1 : attempt + 1;
      if (NowMs() - last_byte_ms_.load() > client_.patience().give_up_ms) {
        return client_.ToError(object.key, answer)
            .WithContext(fmt::format("no byte for {} ms", client_.patience().give_up_ms));
      }
      log::Warning("store",
                   "{}: {}; resuming at byte {}",
                   client_.location().Url(object.key),
                   answer.message.empty() ? "ended early" : answer.message,
                   at);
      if (!PauseBeforeRetry(
              client_.patience().first_backoff_ms, attempt - 1, answer.retry_after_ms, [this] {
                return !stop_ && client_.Alive();
              })) {
        return Stopped();
      }
    }
  }

  /// One request for the rest of a piece. `at` moves past what has come.
  Result<HttpAnswer> ReadOnce(HttpConnection* connection, const Piece& piece, std::int64_t* at) {
    PartFile* file = piece.read->file;
    HttpRequest request = client_.Get(piece.read->object, *at, piece.range.end - *at);
    std::int64_t recorded = *at;
    Result<> written;
    request.write = [&](std::string_view data) {
      const auto size = static_cast<std::int64_t>(data.size());
      if (size > piece.range.end - *at) {
        written = DataLoss("{}: more bytes than asked for",
                           client_.location().Url(piece.read->object.key));
        return false;
      }
      written = file->Write(*at, data);
      if (!written.ok()) {
        return false;
      }
      *at += size;
      received_ += size;
      last_byte_ms_ = NowMs();
      if (*at - recorded >= kRecordBytes) {
        written = file->Record({recorded, *at});
        recorded = *at;
      }
      return written.ok();
    };
    request.alive = [this](std::int64_t, std::int64_t) { return !stop_ && client_.Alive(); };
    HttpAnswer answer = connection->Perform(request);
    INFERD_TRY(file->Record({recorded, *at}));
    INFERD_TRY(std::move(written));
    if (answer.end == HttpAnswer::End::kRangeIgnored) {
      return FailedPrecondition("{}: the store does not serve ranges of an object",
                                client_.location().Url(piece.read->object.key));
    }
    return answer;
  }

  const S3Client& client_;
  std::atomic<std::int64_t> received_ = 0;
  std::atomic<std::int64_t> last_byte_ms_ = NowMs();
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable done_;
  std::deque<Piece> pieces_;
  std::size_t working_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<> ReadRanges(const S3Client& client,
                    const std::vector<RangedRead>& reads,
                    int connections,
                    const std::function<bool(std::int64_t)>& progress) {
  Reader reader(client, reads);
  return reader.Run(connections, progress);
}

}  // namespace inferd::store
