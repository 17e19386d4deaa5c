// SPDX-License-Identifier: Apache-2.0
#include "text/stop_matcher.h"

#include "base/error.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace inferd::text {
namespace {

/// No child, or no stop string.
constexpr std::int32_t kNone = -1;

}  // namespace

Result<std::shared_ptr<const StopStrings>> StopStrings::Make(std::span<const std::string> strings) {
  if (strings.size() > kMaxStrings) {
    return InvalidArgument(
        "{} stop strings are too many; use at most {}", strings.size(), kMaxStrings);
  }
  auto stops = std::make_shared<StopStrings>();
  std::size_t total = 0;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) {
      return InvalidArgument("stop string {} is empty", i);
    }
    total += strings[i].size();
    if (total > kMaxTotalBytes) {
      return InvalidArgument("the stop strings are longer than {} bytes together", kMaxTotalBytes);
    }
  }
  stops->strings_.assign(strings.begin(), strings.end());
  stops->Build();
  return std::shared_ptr<const StopStrings>(std::move(stops));
}

void StopStrings::Build() {
  const auto add_node = [this](std::int32_t depth) {
    Node& node = nodes_.emplace_back();
    node.next.fill(kNone);
    node.depth = depth;
    return static_cast<std::int32_t>(nodes_.size() - 1);
  };
  const auto next = [this](std::int32_t node, std::size_t byte) -> std::int32_t& {
    return nodes_[static_cast<std::size_t>(node)].next[byte];
  };

  add_node(0);
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    std::int32_t node = 0;
    for (const char c : strings_[i]) {
      const auto byte = static_cast<std::uint8_t>(c);
      if (next(node, byte) == kNone) {
        const std::int32_t child = add_node(nodes_[static_cast<std::size_t>(node)].depth + 1);
        next(node, byte) = child;
      }
      node = next(node, byte);
    }
    std::int32_t& match = nodes_[static_cast<std::size_t>(node)].match;
    if (match == kNone) {
      match = static_cast<std::int32_t>(i);  // of equal strings the first
    }
  }

  // Breadth first: a node's failure target is shallower, hence complete when the node is reached.
  std::vector<std::int32_t> failure(nodes_.size(), 0);
  std::deque<std::int32_t> queue = {0};
  while (!queue.empty()) {
    const std::int32_t node = queue.front();
    queue.pop_front();
    const std::int32_t fallback = failure[static_cast<std::size_t>(node)];
    if (nodes_[static_cast<std::size_t>(node)].match == kNone) {
      nodes_[static_cast<std::size_t>(node)].match =
          nodes_[static_cast<std::size_t>(fallback)].match;
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::int32_t child = next(node, byte);
      const std::int32_t other = node == 0 ? 0 : next(fallback, byte);
      if (child == kNone) {
        next(node, byte) = other;
      } else {
        failure[static_cast<std::size_t>(child)] = other;
        queue.push_back(child);
      }
    }
  }
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> strings, bool include_stop)
    : strings_(std::move(strings)), include_stop_(include_stop) {}

StopMatcher::Output StopMatcher::Push(std::string_view delta, bool enabled) {
  Output out;
  if (matched_.has_value()) {
    return out;
  }
  if (!enabled || strings_ == nullptr || strings_->empty()) {
    out.text = std::move(held_);
    out.text += delta;
    held_.clear();
    node_ = 0;
    return out;
  }
  std::string text = std::move(held_);
  held_.clear();
  const std::size_t before = text.size();
  text += delta;
  for (std::size_t i = before; i < text.size(); ++i) {
    node_ =
        strings_->nodes_[static_cast<std::size_t>(node_)].next[static_cast<std::uint8_t>(text[i])];
    const std::int32_t match = strings_->nodes_[static_cast<std::size_t>(node_)].match;
    if (match >= 0) {
      matched_ = static_cast<std::size_t>(match);
      const std::size_t stop_size = strings_->strings_[*matched_].size();
      text.resize(include_stop_ ? i + 1 : i + 1 - stop_size);
      out.text = std::move(text);
      out.matched = matched_;
      return out;
    }
  }
  const auto hold =
      static_cast<std::size_t>(strings_->nodes_[static_cast<std::size_t>(node_)].depth);
  held_ = text.substr(text.size() - hold);
  text.resize(text.size() - hold);
  out.text = std::move(text);
  return out;
}

std::string StopMatcher::Finish() {
  node_ = 0;
  return std::exchange(held_, {});
}

}  // namespace inferd::text
