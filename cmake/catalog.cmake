# SPDX-License-Identifier: Apache-2.0
# Builds data files of configs/ into rooms, as strings.
function(inferd_embed file room header function)
  set(path ${CMAKE_SOURCE_DIR}/configs/${file})
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} yaml)
  get_filename_component(stem ${file} NAME_WE)
  set(out ${CMAKE_BINARY_DIR}/generated/${stem}_text.cc)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
"// Made from configs/@file@ by cmake/catalog.cmake.
#include \"@header@\"

namespace inferd::@room@ {

std::string_view @function@() {
  return R\"yaml(@yaml@)yaml\";
}

}  // namespace inferd::@room@
")
  target_sources(inferd_${room} PRIVATE ${out})
endfunction()

# The same for all YAML files of a folder of configs/, as the documents of one string.
function(inferd_embed_folder folder room header function)
  file(GLOB paths CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/${folder}/*.yaml)
  list(SORT paths)
  set(yaml)
  foreach(path ${paths})
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} text)
    string(APPEND yaml "---\n${text}")
  endforeach()
  set(out ${CMAKE_BINARY_DIR}/generated/${folder}_text.cc)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
"// Made from configs/@folder@ by cmake/catalog.cmake.
#include \"@header@\"

namespace inferd::@room@ {

std::string_view @function@() {
  return R\"yaml(@yaml@)yaml\";
}

}  // namespace inferd::@room@
")
  target_sources(inferd_${room} PRIVATE ${out})
endfunction()
