# SPDX-License-Identifier: Apache-2.0
# Builds the crate in src/text/rs with cargo and offers it as inferd_text_rs. Its build folder is shared by all build
# trees of a user, because the crate takes minutes cold and does not depend on our compiler flags.
find_program(INFERD_CARGO cargo HINTS $ENV{HOME}/.cargo/bin)
if(NOT INFERD_CARGO)
  message(FATAL_ERROR "cargo was not found: install Rust (https://rustup.rs) or set -DINFERD_CARGO=/path/to/cargo")
endif()

if(DEFINED ENV{CARGO_TARGET_DIR})
  set(rust_target_dir $ENV{CARGO_TARGET_DIR})
else()
  set(rust_target_dir $ENV{HOME}/.cache/inferd/cargo-target)
endif()
set(rust_crate ${CMAKE_SOURCE_DIR}/src/text/rs)
set(rust_library ${rust_target_dir}/release/libinferd_text_rs.a)

file(GLOB rust_sources CONFIGURE_DEPENDS ${rust_crate}/src/*.rs)
add_custom_command(
  OUTPUT ${rust_library}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${rust_target_dir}
          ${INFERD_CARGO} build --release --locked --quiet --manifest-path ${rust_crate}/Cargo.toml
  # Cargo leaves the file alone when nothing changed in substance; ninja needs a newer time than the sources.
  COMMAND ${CMAKE_COMMAND} -E touch ${rust_library}
  DEPENDS ${rust_sources} ${rust_crate}/Cargo.toml ${rust_crate}/Cargo.lock
  COMMENT "Building the text libraries (Rust)"
  USES_TERMINAL
  VERBATIM)
add_custom_target(inferd_text_rs_build DEPENDS ${rust_library})

find_package(Threads REQUIRED)
add_library(inferd_text_rs STATIC IMPORTED GLOBAL)
set_target_properties(inferd_text_rs PROPERTIES IMPORTED_LOCATION ${rust_library})
target_link_libraries(inferd_text_rs INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(inferd_text_rs inferd_text_rs_build)
