#!/usr/bin/env bash
# Builds each tests/c/fuzz/fuzz_*.c with AddressSanitizer and UBSan, replays its corpus, and goes on with inputs of its
# own for as many seconds as asked for:
#
#   tests/c/fuzz/run.sh [SECONDS]       for each target (0)
#
# With clang, libFuzzer does it; else driver.c, which gcc's coverage tells what is new. FUZZ="ring rows": only these.
# What was found stands in build/tests-c/fuzz/NAME.new; an input worth keeping goes to tests/c/fuzz/corpus/NAME.
set -euo pipefail
cd "$(dirname "$0")/../../.."

seconds=${1:-0}
build=build/tests-c/fuzz
rm -rf "$build" && mkdir -p "$build"
flags=(-std=c11 -O1 -g -fno-omit-frame-pointer -Wall -Wextra -Werror -pthread -Icsrc -Itests/c -Itests/c/fuzz)
flags+=(-fsanitize=address,undefined -fno-sanitize-recover=all)

targets=${FUZZ:-$(basename -as .c tests/c/fuzz/fuzz_*.c | sed s/^fuzz_//)}
if command -v clang >/dev/null && [ -z "${FUZZ_DRIVER:-}" ]; then
    cc=clang instrument=(-fsanitize=fuzzer-no-link) link=(-fsanitize=fuzzer) driver=()
else
    cc=${CC:-cc} instrument=(-fsanitize-coverage=trace-pc) link=() driver=("$build/driver.o")
    "$cc" "${flags[@]}" -c tests/c/fuzz/driver.c -o "$build/driver.o"
fi
for source in csrc/*/*.c; do
    "$cc" "${flags[@]}" "${instrument[@]}" -c "$source" -o "$build/$(basename "$source" .c).o"
done
# An archive: a target that includes a source file links without that file's object.
ar rcs "$build/libfi.a" "$build"/fi_*.o
for name in $targets; do
    program=$build/$name corpus=tests/c/fuzz/corpus/$name
    mkdir -p "$program.new"
    "$cc" "${flags[@]}" "${instrument[@]}" "${link[@]}" "tests/c/fuzz/fuzz_$name.c" "${driver[@]}" "$build/libfi.a" \
        -lm -lrt -o "$program"
    if [ "$cc" = clang ] && [ ${#driver[@]} = 0 ]; then
        "$program" -runs=0 -verbosity=0 "$corpus"
        [ "$seconds" = 0 ] || "$program" -max_total_time="$seconds" -max_len=4096 -verbosity=0 -print_final_stats=1 \
            -artifact_prefix="$program." "$program.new" "$corpus"
    else
        timeout $((seconds + 60)) "$program" "$corpus" "$seconds" "$program.new"
    fi
done
