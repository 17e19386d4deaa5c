// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_api.h"

#include "base/error.h"

#include <dlfcn.h>

#include <string_view>

namespace inferd::comm {
namespace {

std::string_view NameOf(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "ncclSuccess";
    case NcclResult::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case NcclResult::kSystemError:
      return "ncclSystemError";
    case NcclResult::kInternalError:
      return "ncclInternalError";
    case NcclResult::kInvalidArgument:
      return "ncclInvalidArgument";
    case NcclResult::kInvalidUsage:
      return "ncclInvalidUsage";
    case NcclResult::kRemoteError:
      return "ncclRemoteError";
    case NcclResult::kInProgress:
      return "ncclInProgress";
  }
  return "a newer error";
}

}  // namespace

std::string NcclVersionText(int version) {
  const int base = version < 10'000 ? 1'000 : 10'000;
  return fmt::format("{}.{}.{}", version / base, version % base / 100, version % 100);
}

std::string NcclApi::Describe(NcclResult result, NcclComm comm) const {
  const char* const text = get_error_string(result);
  const char* const last = get_last_error(comm);
  std::string description = fmt::format("{} ({})", text != nullptr ? text : "", NameOf(result));
  if (last != nullptr && *last != '\0') {
    description += fmt::format(": {}", last);
  }
  return description;
}

Result<NcclApi> FindNccl(const tensor::FindFunction& find, const std::string& name) {
  NcclApi api;
  NcclResult (*get_version)(int*) = nullptr;
  INFERD_TRY(tensor::LookUp(find, name, "ncclGetVersion", &get_version));
  if (const NcclResult result = get_version(&api.version); result != NcclResult::kSuccess) {
    return Unavailable("{} does not tell its version: {}", name, NameOf(result));
  }
  if (api.version < kOldestNccl) {
    return Unavailable("{} is NCCL {}; {} or later is needed",
                       name,
                       NcclVersionText(api.version),
                       NcclVersionText(kOldestNccl));
  }
  INFERD_TRY(tensor::LookUp(find, name, "ncclGetUniqueId", &api.get_unique_id));
  INFERD_TRY(tensor::LookUp(find, name, "ncclCommInitRankConfig", &api.comm_init_rank_config));
  INFERD_TRY(tensor::LookUp(find, name, "ncclCommGetAsyncError", &api.comm_get_async_error));
  INFERD_TRY(tensor::LookUp(find, name, "ncclCommAbort", &api.comm_abort));
  INFERD_TRY(tensor::LookUp(find, name, "ncclGroupStart", &api.group_start));
  INFERD_TRY(tensor::LookUp(find, name, "ncclGroupEnd", &api.group_end));
  INFERD_TRY(tensor::LookUp(find, name, "ncclAllReduce", &api.all_reduce));
  INFERD_TRY(tensor::LookUp(find, name, "ncclAllGather", &api.all_gather));
  INFERD_TRY(tensor::LookUp(find, name, "ncclSend", &api.send));
  INFERD_TRY(tensor::LookUp(find, name, "ncclRecv", &api.recv));
  INFERD_TRY(tensor::LookUp(find, name, "ncclGetErrorString", &api.get_error_string));
  INFERD_TRY(tensor::LookUp(find, name, "ncclGetLastError", &api.get_last_error));
  return api;
}

Result<NcclApi> LoadNccl(const char* library) {
  // Never closed: NCCL has threads of its own, which outlive the last communicator.
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Unavailable(
        "NCCL is not to be had ({}); install libnccl2, or add its folder to LD_LIBRARY_PATH",
        why != nullptr ? why : library);
  }
  return FindNccl([handle](const char* name) { return ::dlsym(handle, name); }, library);
}

}  // namespace inferd::comm
