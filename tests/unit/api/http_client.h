// SPDX-License-Identifier: Apache-2.0
// A blunt HTTP client for tests: sends bytes as they are, reads answers. Every wait has a deadline.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace inferd::api {

struct Reply {
  int status = 0;
  std::string head;  // lower-cased
  std::string body;  // chunks joined

  bool Has(std::string_view header) const { return head.find(header) != std::string::npos; }
  /// The value of a header by its lower-case name; empty: it is not there.
  std::string Header(const std::string& name) const {
    const std::size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) {
      return {};
    }
    const std::size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port, int receive_buffer = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    const int one = 1;  // what is sent in pieces shall arrive in pieces, and at once
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void Close() {
    if (fd_ >= 0) {
      close(fd_);
      fd_ = -1;
    }
  }
  /// Says that nothing more will be sent.
  void EndInput() { shutdown(fd_, SHUT_WR); }
  /// Closes with RST.
  void Reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    Close();
  }

  /// False when the server has closed meanwhile.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  /// Reads one whole answer (head_only: of a HEAD request). Status 0: the connection ended first.
  Reply Read(bool head_only = false) {
    Reply reply;
    std::size_t end = std::string::npos;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
      if (!More()) {
        return reply;
      }
    }
    reply.head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    reply.status = std::atoi(reply.head.substr(9, 3).c_str());
    for (char& c : reply.head) {
      c = static_cast<char>(std::tolower(c));
    }
    if (head_only || reply.status == 204 || reply.status == 100) {
      return reply;
    }
    if (reply.Has("transfer-encoding: chunked")) {
      ReadChunks(&reply);
    } else if (const std::size_t at = reply.head.find("content-length: ");
               at != std::string::npos) {
      const auto size = static_cast<std::size_t>(std::atol(reply.head.c_str() + at + 16));
      while (in_.size() < size && More()) {
      }
      reply.body = in_.substr(0, size);
      in_.erase(0, size);
    } else {
      while (More()) {
      }
      reply.body = std::move(in_);
      in_.clear();
    }
    return reply;
  }

  /// Reads until `text` has been seen in the raw bytes; they stay buffered.
  bool ReadUntil(std::string_view text) {
    while (in_.find(text) == std::string::npos) {
      if (!More()) {
        return false;
      }
    }
    return true;
  }

  /// The server has closed, and nothing is left to be read.
  bool AtEnd() { return in_.empty() && !More(); }
  const std::string& buffered() const { return in_; }

 private:
  void ReadChunks(Reply* reply) {
    for (;;) {
      std::size_t line = std::string::npos;
      while ((line = in_.find("\r\n")) == std::string::npos) {
        if (!More()) {
          return;
        }
      }
      const std::size_t size = std::strtoul(in_.c_str(), nullptr, 16);
      while (in_.size() < line + 2 + size + 2) {
        if (!More()) {
          return;
        }
      }
      reply->body += in_.substr(line + 2, size);
      in_.erase(0, line + 2 + size + 2);
      if (size == 0) {
        return;
      }
    }
  }

  bool More() {
    pollfd watched{fd_, POLLIN, 0};
    if (poll(&watched, 1, 10'000) != 1) {
      ADD_FAILURE() << "nothing came from the server for 10 s; so far: " << in_.substr(0, 500);
      return false;
    }
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      return false;
    }
    in_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }

  int fd_;
  std::string in_;
};

inline std::string PostBytes(std::string_view path,
                             std::string_view body,
                             std::string_view headers = "") {
  std::string bytes = "POST ";
  bytes += path;
  bytes += " HTTP/1.1\r\nHost: localhost\r\n";
  bytes += headers;
  bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  bytes += body;
  return bytes;
}

inline Reply Post(std::uint16_t port, std::string_view path, std::string_view body) {
  HttpClient client(port);
  client.Send(PostBytes(path, body));
  return client.Read();
}

inline Reply Get(std::uint16_t port, std::string_view path) {
  HttpClient client(port);
  client.Send("GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  return client.Read();
}

/// Waits for something another thread does; polls, because there is nothing to wait on. False after
/// 10 s.
template <class F>
bool Eventually(F&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    poll(nullptr, 0, 2);
  }
  return true;
}

}  // namespace inferd::api
