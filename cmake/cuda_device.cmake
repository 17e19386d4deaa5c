# SPDX-License-Identifier: Apache-2.0
# src/ops/cuda, the CUDA device of the ops room, compiled once per runtime it can stand on: NVIDIA's where the kernels were
# built by nvcc, and the emulated one of kernels/simt. Both may be in one binary, hence a namespace each.
file(GLOB cuda_device CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ops/cuda/*.cc)
function(inferd_cuda_device target kernels namespace name)
  add_library(${target} OBJECT ${cuda_device})
  target_link_libraries(${target} PUBLIC inferd_base inferd_tensor ${kernels} PRIVATE inferd_flags)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE INFERD_CUDA_NAMESPACE=${namespace} INFERD_CUDA_NAME="${name}")
  target_sources(inferd_ops PRIVATE $<TARGET_OBJECTS:${target}>)
  # Linked only: what else inferd_ops has speaks of both devices by their names, and must not see one of them renamed.
  target_link_libraries(inferd_ops PRIVATE $<LINK_ONLY:${kernels}>)
endfunction()

if(INFERD_CUDA_EMU)
  inferd_cuda_device(inferd_ops_cuda_emu inferd_kernels_cuda_emu cuda_emu cuda-emu)
  target_compile_definitions(inferd_ops PRIVATE INFERD_HAS_CUDA_EMU=1)
endif()
if(TARGET inferd_kernels_cuda)
  # The static runtime finds the driver when the program runs, so that a host without one starts it too. Not through
  # FindCUDAToolkit: with CUDA 13 it fails in CMake 3.25.
  find_library(INFERD_CUDART cudart_static REQUIRED HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES}
               ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/lib ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/lib64)
  inferd_cuda_device(inferd_ops_cuda inferd_kernels_cuda cuda cuda)
  target_include_directories(inferd_ops_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(inferd_ops PRIVATE ${INFERD_CUDART} ${CMAKE_DL_LIBS} rt)
  target_compile_definitions(inferd_ops PRIVATE INFERD_HAS_CUDA=1)
  # For programs that launch kernels themselves: the kernels, and NVIDIA's headers and runtime.
  add_library(inferd_cuda_runtime INTERFACE)
  target_include_directories(inferd_cuda_runtime SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(inferd_cuda_runtime INTERFACE inferd_kernels_cuda inferd_kernels ${INFERD_CUDART} ${CMAKE_DL_LIBS} rt)
endif()
