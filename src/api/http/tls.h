// SPDX-License-Identifier: Apache-2.0
// TLS of client connections: certificates that can be exchanged while the server runs, and one
// session per connection on its non-blocking socket. Connections are driven by readiness, so
// OpenSSL is used directly; only tls.cc knows it.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace inferd::api {

struct TlsFiles {
  std::string certificate;  // PEM, with its chain
  std::string key;          // PEM
  std::string authorities;  // PEM; empty: clients need no certificate
};

/// One connection's session. Single-threaded.
class TlsSession {
 public:
  enum class Want : std::uint8_t { kNothing, kRead, kWrite, kClosed };
  struct Moved {
    std::size_t bytes = 0;       // > 0: so many were read or written
    Want want = Want::kNothing;  // with 0 bytes: what must happen first
  };

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// The handshake goes on within both. After kWrite, Write is called again with the same bytes in
  /// front, from wherever they lie now.
  Moved Read(char* to, std::size_t size);
  Moved Write(std::string_view bytes);
  /// Says goodbye, as far as the socket takes it now.
  void Shutdown();

 private:
  friend class TlsContext;
  struct Impl;
  explicit TlsSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Any thread.
class TlsContext {
 public:
  /// Refuses files that are absent, unreadable or do not belong together, by name.
  static Result<std::shared_ptr<TlsContext>> Load(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  /// Reads the files again; on failure the old ones stay in force. Open sessions keep theirs.
  Result<> Reload();
  /// A session on a connected, non-blocking socket, which it does not own. Null: out of memory.
  std::unique_ptr<TlsSession> Accept(int fd) const;

 private:
  struct Loaded;
  explicit TlsContext(const TlsFiles& files);

  const TlsFiles files_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Loaded> loaded_;
};

}  // namespace inferd::api
