// SPDX-License-Identifier: Apache-2.0
// The few things files and batches do on a disk: folders, durable writes, locks. Every error says
// which path.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

inline constexpr mode_t kPrivateFile = 0600;

/// What errno says, for the log and for the user at start-up: errors of a disk are not a client's.
Error DiskError(std::string_view what, const std::string& path);
/// Makes the folder and those above it, for this user only.
Result<> MakeFolder(const std::string& path);
/// Names of what is in it, in any order.
Result<std::vector<std::string>> NamesIn(const std::string& folder);
/// Written, renamed into place and on the disk when it returns, the folder's entry too.
Result<> WriteDurably(const std::string& folder, const std::string& name, std::string_view content);
/// The folder's entries are on the disk.
Result<> SyncFolder(const std::string& folder);
/// One more name for a file; also when it is there already.
Result<> LinkFile(const std::string& from, const std::string& to);
/// kNotFound when it is not there.
Result<base::UniqueFd> OpenToRead(const std::string& path);
/// Not there: that is fine.
void RemoveFile(const std::string& path);
/// Held until the descriptor closes; kFailedPrecondition when another process holds it.
Result<base::UniqueFd> LockFile(const std::string& path);

}  // namespace inferd::api
