// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once.
#pragma once

namespace inferd::app {

/// Installs the handlers, ignores SIGPIPE. Once, in main, before other threads exist.
void InstallSignalHandlers();
/// A signal has come.
bool StopRequested();
/// Waits until one comes, at most `timeout_ms`.
void WaitForStop(int timeout_ms);

}  // namespace inferd::app
