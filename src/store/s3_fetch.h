// SPDX-License-Identifier: Apache-2.0
// A model in an object store, and its copies in the cache: one folder per version, so that a model
// that is in use is never written to. Included by .cc files of this room and its tests.
//
//   CacheDir()/models/s3/<bucket and key>-<hash>/        one for each s3:// name
//     lock                                               who loads
//     latest                                             name of the version folder to use offline
//     <hash of keys, sizes and ETags>/                   a version: the files, then the manifest
#pragma once

#include "inferd/result.h"
#include "store/fetch.h"
#include "store/s3.h"

#include <string>
#include <vector>

namespace inferd::store {

/// One object of the model, and the file that it becomes.
struct S3File {
  S3Object object;
  std::string name;
};

/// Of all objects that the store lists under the location's key: the GGUF file of that very key
/// with its further parts, or what a model needs of the folder of that name. NotFound when there is
/// none, InvalidArgument when two would be one file. Names stay below the folder they are put in.
Result<std::vector<S3File>> ChooseS3Files(const S3Location& location,
                                          const std::vector<S3Object>& objects);

/// A location, how to ask for it, and the folder of its versions in the cache.
struct S3Place {
  S3Location location;
  S3Settings settings;
  std::string folder;
};
/// By the environment.
Result<S3Place> PlaceOf(std::string_view name);
/// What the keys of a location's objects begin with.
std::string PrefixOf(const S3Location& location);
/// The name of the version that these files are.
std::string VersionOf(const std::vector<S3File>& files);
/// What OpenModel takes of a version's folder.
std::string ModelIn(const std::string& folder, const S3Location& location);

/// The latest complete version in the cache. NotFound if there is none.
Result<std::string> ResolveS3(std::string_view name);

/// Lists the store, reads what is not in the cache, and returns the path to open. When the store
/// cannot be reached the latest version of the cache does, with a warning.
Result<std::string> FetchS3(std::string_view name, const FetchOptions& options);

}  // namespace inferd::store
