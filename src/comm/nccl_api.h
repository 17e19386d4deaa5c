// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's public C interface that we use, found by name when a group first asks for it:
// inferd has no link dependency on NCCL and starts without one. Numbers and layouts are fixed by
// NCCL's binary interface (docs.nvidia.com/deeplearning/nccl, "NCCL API").
#pragma once

#include "inferd/result.h"
#include "tensor/device_queue.h"

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

namespace inferd::comm {

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

struct NcclUniqueId {
  char bytes[128];
};

/// ncclConfig_t as of 2.18; `size` and `version` tell a newer library to take its defaults for what
/// came later.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN: not set
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

using NcclComm = struct NcclCommHandle*;

/// Non-blocking communicators can be given up in every state only since this version.
inline constexpr int kOldestNccl = 21800;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclFloat32 = 7;
inline constexpr int kNcclSum = 0;

/// "2.27.3"; before 2.9 the number was packed otherwise.
std::string NcclVersionText(int version);

/// Immutable after loading; shared by all groups of a process.
struct NcclApi {
  int version = 0;
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm*, int ranks, NcclUniqueId, int rank, NcclConfig*) =
      nullptr;
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*) = nullptr;
  NcclResult (*comm_abort)(NcclComm) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*all_reduce)(const void* in,
                           void* out,
                           std::size_t count,
                           int type,
                           int op,
                           NcclComm,
                           void* stream) = nullptr;
  NcclResult (*all_gather)(
      const void* in, void* out, std::size_t count, int type, NcclComm, void* stream) = nullptr;
  NcclResult (*send)(const void*, std::size_t count, int type, int peer, NcclComm, void* stream) =
      nullptr;
  NcclResult (*recv)(void*, std::size_t count, int type, int peer, NcclComm, void* stream) =
      nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclComm) = nullptr;

  /// "unhandled system error (ncclSystemError): <NCCL's last words>".
  std::string Describe(NcclResult result, NcclComm comm) const;
};

/// From a library that `find` looks into, called `name` in errors: kUnavailable when it is older
/// than kOldestNccl or has not all functions.
Result<NcclApi> FindNccl(const tensor::FindFunction& find, const std::string& name);

/// The host's NCCL. kUnavailable: it is not installed (or older than kOldestNccl), and what to do.
/// It stays loaded; thread-safe.
Result<NcclApi> LoadNccl(const char* library = "libnccl.so.2");

}  // namespace inferd::comm
