// SPDX-License-Identifier: Apache-2.0
// A thin owner of an SQLite connection and its statements: Results in place of return codes. Only
// the .cc file knows sqlite3.h.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace inferd::tenant {

struct SqliteDeleter {
  void operator()(sqlite3* database) const;
  void operator()(sqlite3_stmt* statement) const;
};

/// Single-threaded. Values are bound by position from 1, columns read from 0.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  void BindInt(int index, std::int64_t value);
  void BindText(int index, std::string_view value);
  void BindNull(int index);
  /// True: a row is there to be read. False: the statement is done, and ready to be bound again.
  Result<bool> Step();
  std::int64_t Int(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;

 private:
  std::unique_ptr<sqlite3_stmt, SqliteDeleter> statement_;
};

class Database {
 public:
  enum class Mode : std::uint8_t { kRead, kWrite };  // kWrite makes the file if it is absent
  static Result<Database> Open(const std::string& path, Mode mode);

  /// One or more statements without results.
  Result<> Run(const std::string& sql);
  Result<Statement> Prepare(const std::string& sql);

 private:
  explicit Database(sqlite3* database) : database_(database) {}

  std::unique_ptr<sqlite3, SqliteDeleter> database_;
};

}  // namespace inferd::tenant
