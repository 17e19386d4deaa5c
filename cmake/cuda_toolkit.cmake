# SPDX-License-Identifier: Apache-2.0
# CUDA as a language of the whole tree: what it finds of the toolkit is needed where programs are linked, not only where
# kernels are compiled.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real)
enable_language(CUDA)
# CMake 3.25 does not know that nvcc has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
