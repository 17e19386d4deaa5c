#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts what check.sh runs, with the libraries it needs, into one archive, for a GPU machine with neither compilers nor network.
#
#   tests/gpu/bundle.sh [--build DIR] [--out FILE.tar.xz] [--mib N]
#
# DIR (build/cuda) is what `./dev cuda gpu_check` made. On the other machine, in a copy of the sources:
#
#   tar xf build/gpu-bundle.tar.xz -C build && tests/gpu/check.sh --build build/gpu-bundle
#
# The C and C++ libraries are that machine's: the versions they must have are printed. Fails when the archive is larger than N MiB (60).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=build/cuda out=build/gpu-bundle.tar.xz most=60
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build="$2"; shift ;;
    --out) out="$2"; shift ;;
    --mib) most="$2"; shift ;;
    *) printf 'bundle.sh: unknown argument %s\n' "$1" >&2; exit 64 ;;
  esac
  shift
done
binaries=(inferd src/test_model tests/kernels_cuda/test_kernels_cuda tests/gpu/shape_bench tests/gpu/kernel_sweep)
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
target="$folder/gpu-bundle"
mkdir -p "$target/lib"
for binary in "${binaries[@]}"; do
  [ -x "$build/$binary" ] || { printf 'bundle.sh: %s is missing: ./dev cuda gpu_check makes it\n' "$build/$binary" >&2; exit 64; }
  install -D -m 755 "$build/$binary" "$target/$binary"
  strip "$target/$binary"
  ldd "$build/$binary"
done > "$folder/linked"
if grep 'not found' "$folder/linked" >&2; then
  printf 'bundle.sh: these libraries are not on this machine\n' >&2
  exit 1
fi
awk '$2 == "=>" && $3 ~ /^\// { print $3 }' "$folder/linked" | sort -u \
  | grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so' > "$folder/libraries"
xargs -a "$folder/libraries" cp -L -t "$target/lib"
symbols="$(find "$target" -type f -exec objdump -T {} + 2>/dev/null | grep -oE 'GLIBC(XX)?_[0-9.]+' | sort -uV)"
needs="$(grep GLIBC_ <<< "$symbols" | tail -n 1), $(grep GLIBCXX_ <<< "$symbols" | tail -n 1)"
mkdir -p "$(dirname "$out")"
tar -C "$folder" -cf - gpu-bundle | xz -T0 -3 > "$out"
mib=$((($(stat -c %s "$out") + 1048575) / 1048576))
printf '%s: %d MiB, needs %s\n' "$out" "$mib" "$needs"
[ "$mib" -le "$most" ] || { printf 'bundle.sh: that is more than %d MiB\n' "$most" >&2; exit 1; }
