// SPDX-License-Identifier: Apache-2.0
// The Hugging Face hub: which files of a repository a model needs. And the manifest that says a
// folder of the cache is complete. Included by .cc files of this room and its tests.
#pragma once

#include "inferd/result.h"
#include "store/catalog.h"

#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

/// From the hub's answer to /api/models/REPO/revision/REVISION?blobs=true: the files to load.
/// Without a selector safetensors with their configs and tokenizer, or the only GGUF model; with
/// one the GGUF files that it names ("Q4_K_M", or a file name). Refuses a repository that holds
/// nothing to run, or several GGUF models to choose from.
Result<std::vector<CatalogFile>> ChooseHubFiles(std::string_view repo,
                                                std::string_view answer,
                                                std::string_view selector);

/// The same from names and sizes that are known already. `what` names their place.
Result<std::vector<CatalogFile>> ChooseModelFiles(std::string_view what,
                                                  const std::vector<CatalogFile>& files,
                                                  std::string_view selector);
/// A name that stays inside the folder it is put into: NAME, or additional_chat_templates/NAME.
bool IsSafeName(std::string_view name);

/// A file is complete when it exists (it gets its name last); a folder when its manifest and all
/// files of it do.
bool IsComplete(const std::string& path);
Result<> WriteManifest(const std::string& folder, const std::vector<CatalogFile>& files);

}  // namespace inferd::store
