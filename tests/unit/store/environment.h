// SPDX-License-Identifier: Apache-2.0
// Sets an environment variable while it lives.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace inferd::store {

class SetEnvironment {
 public:
  SetEnvironment(const std::string& name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name.c_str()); before != nullptr) {
      before_ = before;
    }
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~SetEnvironment() {
    if (before_) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  SetEnvironment(const SetEnvironment&) = delete;
  SetEnvironment& operator=(const SetEnvironment&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace inferd::store
