# SPDX-License-Identifier: Apache-2.0
# Compiler flags of all our own code. Third-party headers come in as system headers.
add_library(inferd_flags INTERFACE)
target_compile_options(inferd_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror -fno-omit-frame-pointer
  # Bit-for-bit batch invariance: a multiply and an add are fused only where the source says fma.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 reports false positives of these inside its own headers at -O2 and above.
  target_compile_options(inferd_flags INTERFACE -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
    -Wno-restrict -Wno-dangling-pointer -Wno-psabi)
endif()
if(INFERD_SANITIZE)
  add_compile_options(-fsanitize=${INFERD_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${INFERD_SANITIZE})
  if(INFERD_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # Asio's fences, which the sanitizer does not model; its locks order the same accesses
  endif()
endif()
