#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_weak_symbols.sh LIBRARY: fails if an object of one instruction set defines a weak symbol. The linker could pick
# that copy for the whole program, which would then die of an illegal instruction on older CPUs.
nm -A --defined-only "$1" | awk '/_avx(2|512)\.cc\.o:/ && $(NF-1) ~ /^[WVu]$/ { print; bad = 1 } END { exit bad }'
