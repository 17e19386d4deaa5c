// SPDX-License-Identifier: Apache-2.0
#include "api/http/http_message.h"

#include <charconv>

namespace inferd::api {

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, code, 16).ptr ==
            text.data() + i + 3) {
      out += static_cast<char>(code);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

std::string ResponseHead(const HttpResponse& response,
                         const HttpRequest& request,
                         long content_length,
                         bool keep_alive,
                         std::string_view more) {
  std::string head = "HTTP/1.1 ";
  head += std::to_string(response.status);
  head += ' ';
  head += ReasonPhrase(response.status);
  head += "\r\n";
  if (response.status != 204) {
    head += "Content-Type: " + response.content_type + "\r\n";
    if (content_length >= 0) {
      head += "Content-Length: " + std::to_string(content_length) + "\r\n";
    }
  }
  for (const auto& [name, value] : response.headers) {
    head += name + ": " + value + "\r\n";
  }
  if (!request.request_id.empty()) {
    head += "X-Request-Id: " + request.request_id + "\r\n";
  }
  if (!request.traceparent.empty()) {
    head += "traceparent: " + request.traceparent + "\r\n";
  }
  head += more;
  if (!keep_alive) {
    head += "Connection: close\r\n";
  } else if (request.version_minor == 0) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

}  // namespace inferd::api
