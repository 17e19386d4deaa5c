# SPDX-License-Identifier: Apache-2.0
# Builds configs/models.yaml into inferd_store, as a string.
set(INFERD_CATALOG_YAML ${CMAKE_SOURCE_DIR}/configs/models.yaml)
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${INFERD_CATALOG_YAML})
file(READ ${INFERD_CATALOG_YAML} yaml)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/catalog_text.cc @ONLY CONTENT
"// Made from configs/models.yaml by cmake/catalog.cmake.
#include \"store/catalog.h\"

namespace inferd::store {

std::string_view BuiltInCatalog() {
  return R\"yaml(@yaml@)yaml\";
}

}  // namespace inferd::store
")
target_sources(inferd_store PRIVATE ${CMAKE_BINARY_DIR}/generated/catalog_text.cc)
