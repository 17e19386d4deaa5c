// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cublaslt_api.h"

#include "base/error.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#ifdef INFERD_SIMT
#include "kernels/simt/cublaslt.h"
#else
#include <array>
#endif

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

std::string CublasLtVersionText(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

Result<CublasLtApi> FindCublasLt(const tensor::FindFunction& find, const std::string& name) {
  CublasLtApi api;
  std::size_t (*get_version)() = nullptr;
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtGetVersion", &get_version));
  api.version = get_version();
  if (api.version < kOldestCublasLt) {
    return Unavailable("{} is cuBLASLt {}; {} or later is needed",
                       name,
                       CublasLtVersionText(api.version),
                       CublasLtVersionText(kOldestCublasLt));
  }
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtGetStatusName", &api.status_name));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtCreate", &api.create));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtDestroy", &api.destroy));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmulDescCreate", &api.product_create));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmulDescDestroy", &api.product_destroy));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmulDescSetAttribute", &api.product_set));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatrixLayoutCreate", &api.layout_create));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatrixLayoutDestroy", &api.layout_destroy));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatrixLayoutSetAttribute", &api.layout_set));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmulPreferenceCreate", &api.preference_create));
  INFERD_TRY(
      tensor::LookUp(find, name, "cublasLtMatmulPreferenceDestroy", &api.preference_destroy));
  INFERD_TRY(
      tensor::LookUp(find, name, "cublasLtMatmulPreferenceSetAttribute", &api.preference_set));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmulAlgoGetHeuristic", &api.choose));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmulAlgoCheck", &api.check));
  INFERD_TRY(tensor::LookUp(find, name, "cublasLtMatmul", &api.multiply));
  return api;
}

Result<CublasLtApi> OpenCublasLt(std::span<const char* const> libraries) {
  std::string why;
  for (const char* const library : libraries) {
    // Never closed: its kernels stay loaded in the device's context.
    if (void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
      return FindCublasLt([handle](const char* name) { return ::dlsym(handle, name); }, library);
    }
    const char* const error = ::dlerror();
    why = why.empty() && error != nullptr ? error : why;
  }
  return Unavailable(
      "cuBLASLt is not to be had ({}); install libcublas, or add its folder to LD_LIBRARY_PATH",
      why);
}

Result<CublasLtApi> LoadCublasLt() {
#ifdef INFERD_SIMT
  return FindCublasLt(simt::FindCublasLt, "the emulated cuBLASLt");
#else
  static constexpr std::array<const char*, 2> kLibraries = {"libcublasLt.so.13",
                                                            "libcublasLt.so.12"};
  return OpenCublasLt(kLibraries);
#endif
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
