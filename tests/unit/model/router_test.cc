// SPDX-License-Identifier: Apache-2.0
// Who multiplies a mixture's router where hosts may differ in what libraries they have.
#include "kernels/simt/cublaslt.h"
#include "store/model.h"
#include "unit/model/harness.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace inferd::model {
namespace {

/// All products of plain matrices are the library's while it lives.
class AllByLibrary {
 public:
  AllByLibrary() { setenv("INFERD_CUBLASLT_ROWS", "1", 1); }
  ~AllByLibrary() { unsetenv("INFERD_CUBLASLT_ROWS"); }
  AllByLibrary(const AllByLibrary&) = delete;
  AllByLibrary& operator=(const AllByLibrary&) = delete;
};

/// Products of the library in one pass of three tokens.
std::uint64_t ProductsOf(int tp) {
  const AllByLibrary all;
  const std::uint64_t before = simt::CountCublasLt().products;
  ShardSetOptions options;
  options.device = "cuda-emu";
  options.parallel.tp = tp;
  auto set = ShardSet::Make(DataPath("mixtral"), options);
  if (!set.ok()) {
    ADD_FAILURE() << set.error().message();
    return 0;
  }
  const std::vector<std::int32_t> ids = {5, 6, 7};
  auto logits = (*set)->Run({ids}, InChunks({ids}, 3));
  if (!logits.ok()) {
    ADD_FAILURE() << logits.error().message();
    return 0;
  }
  return simt::CountCublasLt().products - before;
}

// Two ranks of which one had no library would choose different experts now and then: a router's
// product is never the library's where there are several. All other products of a layer are.
TEST(RouterTest, RanksChooseExpertsWithTheirOwnKernels) {
  const auto model = store::OpenModel(DataPath("mixtral"));
  ASSERT_TRUE(model.ok()) << model.error().message();
  const auto layers = static_cast<std::uint64_t>(model->spec.num_layers);
  const std::uint64_t products = 5 * layers + 1;  // Q, K, V, O and the router; the head
  const std::uint64_t alone = ProductsOf(1);
  ASSERT_GT(alone, 0U);
  ASSERT_EQ(alone % products, 0U);
  EXPECT_EQ(ProductsOf(2), 2 * (products - layers) * (alone / products));
}

}  // namespace
}  // namespace inferd::model
