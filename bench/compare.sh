#!/bin/sh
# Runs benchmarks in rounds and prints the raw output for ./table to read.
# go test -count 10 runs one benchmark ten times before the next; on a machine
# whose speed drifts, that compares minutes, not libraries. Here each round runs
# all of them once.
#
#	./compare.sh PACKAGE ROUNDS [flags of the test binary, such as -test.bench]
set -eu
cd "$(dirname "$0")"
package=$1 rounds=$2
shift 2
bin=$(mktemp)
trap 'rm -f "$bin"' EXIT
go test -c -o "$bin" "$package"
for _ in $(seq "$rounds"); do
	"$bin" -test.run '^$' "$@"
done
