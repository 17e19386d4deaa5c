// SPDX-License-Identifier: Apache-2.0
#include "tenant/sqlite.h"

#include "base/error.h"

#include <sqlite3.h>

namespace inferd::tenant {
namespace {

constexpr int kBusyMs = 2000;  // another process may be writing

}  // namespace

void SqliteDeleter::operator()(sqlite3* database) const { sqlite3_close_v2(database); }
void SqliteDeleter::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

void Statement::BindInt(int index, std::int64_t value) {
  sqlite3_bind_int64(statement_.get(), index, value);
}

void Statement::BindText(int index, std::string_view value) {
  sqlite3_bind_text(statement_.get(),
                    index,
                    value.data(),
                    static_cast<int>(value.size()),
                    SQLITE_TRANSIENT);  // NOLINT(performance-no-int-to-ptr)
}

void Statement::BindNull(int index) { sqlite3_bind_null(statement_.get(), index); }

Result<bool> Statement::Step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) {
    return true;
  }
  sqlite3_reset(statement_.get());
  if (code != SQLITE_DONE) {
    return Unavailable("SQLite: {}", sqlite3_errmsg(sqlite3_db_handle(statement_.get())));
  }
  return false;
}

std::int64_t Statement::Int(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

double Statement::Real(int column) const { return sqlite3_column_double(statement_.get(), column); }

std::string Statement::Text(int column) const {
  const auto* const text =
      reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  return text == nullptr ? std::string() : std::string(text);
}

Result<Database> Database::Open(const std::string& path, Mode mode) {
  sqlite3* raw = nullptr;
  const int flags =
      mode == Mode::kWrite ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);  // owned also when the opening failed
  if (code != SQLITE_OK) {
    return Unavailable("cannot open the usage database {}: {}",
                       path,
                       raw == nullptr ? "out of memory" : sqlite3_errmsg(raw));
  }
  sqlite3_busy_timeout(raw, kBusyMs);
  return database;
}

Result<> Database::Run(const std::string& sql) {
  if (sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return Unavailable("SQLite: {}", sqlite3_errmsg(database_.get()));
  }
  return {};
}

Result<Statement> Database::Prepare(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database_.get(), sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) {
    return Unavailable("SQLite: {}", sqlite3_errmsg(database_.get()));
  }
  return Statement(statement);
}

}  // namespace inferd::tenant
