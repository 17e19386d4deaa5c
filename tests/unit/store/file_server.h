// SPDX-License-Identifier: Apache-2.0
// FakeHub: a small HTTP server on loopback for tests of downloads. Serves byte ranges, and
// misbehaves on request: drops the connection after some bytes, stalls, ignores ranges, answers
// errors. A path may have an ETag, which If-Match is compared with, and other headers. One
// connection at a time, one request each.
#pragma once

#include "base/file.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace inferd::store {

class FakeHub {
 public:
  /// How one answer goes wrong.
  struct Fault {
    int status = 0;                // answer with this and no body
    std::int64_t drop_after = -1;  // close after this many bytes of the body
    bool stall = false;            // then keep the connection open instead, until the client leaves
  };

  FakeHub() {
    ::setenv("no_proxy", "127.0.0.1", 1);
    listener_ = base::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_.get(), 8);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    endpoint_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeHub() {
    stop_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  const std::string& endpoint() const { return endpoint_; }
  /// `headers` end in "\r\n" each.
  void Serve(const std::string& path, std::string content, const std::string& headers = "") {
    const std::lock_guard lock(mutex_);
    files_[path] = std::move(content);
    headers_[path] = headers;
  }
  /// The next answers to GET go wrong like this, in order.
  void FailNext(std::vector<Fault> faults) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(faults);
  }
  void IgnoreRanges() { ignore_ranges_ = true; }
  /// Requests so far, head and all.
  std::vector<std::string> Requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void Run() {
    while (!stop_) {
      const base::UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client.valid()) {
        Answer(client.get());
      }
    }
  }

  static std::string ReadHead(int fd) {
    std::string head;
    char buffer[4096];
    while (head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
      if (got <= 0) {
        break;
      }
      head.append(buffer, static_cast<std::size_t>(got));
    }
    return head;
  }

  static bool Send(int fd, std::string_view data) {
    while (!data.empty()) {
      const ssize_t put = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
      if (put <= 0) {
        return false;
      }
      data.remove_prefix(static_cast<std::size_t>(put));
    }
    return true;
  }

  void Answer(int fd) {
    const std::string head = ReadHead(fd);
    const auto begin = head.find(' ');
    if (begin == std::string::npos) {
      return;
    }
    const std::string path = head.substr(begin + 1, head.find(' ', begin + 1) - begin - 1);
    Fault fault;
    std::string content;
    std::string headers;
    bool found = false;
    const bool is_head = head.starts_with("HEAD");
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(head);
      if (!faults_.empty() && !is_head) {
        fault = faults_.front();
        faults_.erase(faults_.begin());
      }
      const auto place = files_.find(path);
      found = place != files_.end();
      content = found ? place->second : "";
      headers = found ? headers_[path] : "";
    }
    const auto if_match = head.find("If-Match: ");
    if (if_match != std::string::npos &&
        headers.find("ETag: " +
                     head.substr(if_match + 10, head.find('\r', if_match) - if_match - 10)) ==
            std::string::npos) {
      fault.status = 412;
    }
    if (is_head && found) {
      Send(fd,
           "HTTP/1.1 200 OK\r\n" + headers + "Content-Length: " + std::to_string(content.size()) +
               "\r\nConnection: close\r\n\r\n");
      return;
    }
    if (fault.status != 0 || !found) {
      const int status = fault.status != 0 ? fault.status : 404;
      Send(fd,
           "HTTP/1.1 " + std::to_string(status) +
               " Error\r\nContent-Length: 5\r\nConnection: close\r\n\r\nerror");
      return;
    }
    SendFile(fd, head, content, fault);
  }

  void SendFile(int fd, const std::string& head, std::string content, const Fault& fault) {
    const std::size_t total = content.size();
    std::size_t from = 0;
    std::string answer = "HTTP/1.1 200 OK\r\n";
    const auto range = head.find("Range: bytes=");
    if (range != std::string::npos && !ignore_ranges_) {
      from = std::stoull(head.substr(range + 13));
      if (from >= total) {
        Send(
            fd,
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
      }
      const std::string last = head.substr(head.find('-', range + 13) + 1);
      const std::size_t to = std::isdigit(static_cast<unsigned char>(last[0])) != 0
                                 ? std::min<std::size_t>(std::stoull(last) + 1, total)
                                 : total;
      answer = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(from) +
               "-" + std::to_string(to - 1) + "/" + std::to_string(total) + "\r\n";
      content.resize(to);
    }
    content.erase(0, from);
    answer += "Content-Length: " + std::to_string(content.size()) + "\r\nConnection: close\r\n\r\n";
    if (fault.drop_after >= 0) {
      content.resize(std::min(content.size(), static_cast<std::size_t>(fault.drop_after)));
    }
    Send(fd, answer + content);
    if (fault.stall) {
      pollfd wait{fd, POLLIN | POLLRDHUP, 0};
      ::poll(&wait, 1, 20'000);
    }
  }

  base::UniqueFd listener_;
  std::string endpoint_;
  std::thread thread_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> ignore_ranges_ = false;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> headers_;
  std::vector<Fault> faults_;
  std::vector<std::string> requests_;
};

}  // namespace inferd::store
