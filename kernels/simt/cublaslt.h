// SPDX-License-Identifier: Apache-2.0
// cuBLASLt on emulated devices, for the part of its interface that inferd uses: the heuristic, the
// check of an algorithm, and the product, which is work of its stream. What a device's library
// would read or write wrongly is an error here: matrices that do not fit each other or their
// memory, addresses below the alignment that an algorithm was chosen for, an algorithm of another
// shape, too little workspace (of which all is overwritten), pageable memory. No algorithm may be
// looked for while the calling thread captures a stream.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inferd::simt {

/// The function called `name` in cuBLASLt's C interface; null where it is left out here.
void* FindCublasLt(const char* name);

/// Calls of this process that succeeded.
struct CublasLtCounts {
  std::uint64_t heuristics = 0;
  std::uint64_t products = 0;
};
CublasLtCounts CountCublasLt();

/// For tests of what a device does then.
struct CublasLtFaults {
  bool no_algorithms = false;  // the heuristic finds none
  bool exact_shapes = false;   // an algorithm takes no more columns of B than it was chosen for
  int product_status = 0;      // of every cublasLtMatmul
};
void SetCublasLtFaults(const CublasLtFaults& faults);

}  // namespace inferd::simt
