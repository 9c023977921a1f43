#!/usr/bin/env bash
# Compiles each tests/c/test_*.c with all of csrc and runs it, once for each variant named:
#
#   tests/c/run.sh [none | address | undefined | thread | address,undefined | ... | coverage] ...
#
# For another processor: CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar
# RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu". CC=musl-gcc needs Linux's own headers: a script that calls it
# with -idirafter and a directory of links to /usr/include/linux, asm and asm-generic.
# Warnings are errors. FASTITER_PORTABLE=1 takes the portable POSIX path, TESTS="ring order" only these tests.
# With address among the variants it replays the corpus of each fuzz target, too.
# Programs run in the top directory, each for at most TEST_SECONDS (300).
set -euo pipefail
cd "$(dirname "$0")/../.."

cc=${CC:-cc}
flags=(-std=c11 -O2 -g -fno-omit-frame-pointer -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror)
flags+=(-pthread -Icsrc -Itests/c)
name=
if [ "${FASTITER_PORTABLE:-0}" != 0 ]; then
    flags+=(-DFI_PORTABLE=1)
    name=portable-
fi
libraries=(-lm -ldl)
[ "$(uname)" != Linux ] || libraries+=(-lrt)

sources=()
if [ -n "${TESTS:-}" ]; then
    for test in $TESTS; do sources+=("tests/c/test_$test.c"); done
else
    sources=(tests/c/test_*.c)
fi

failed=()
for variant in "${@:-none}"; do
    build=build/tests-c/$name$variant
    rm -rf "$build" && mkdir -p "$build"
    sanitize=() objects=()
    # shellcheck disable=SC2206
    runner=(timeout "${TEST_SECONDS:-300}" ${RUNNER:-})
    if [ "$variant" = coverage ]; then
        sanitize=(--coverage -O0)
        objects=(tests/c/coverage.c -Wl,--wrap=_exit)
    elif [ "$variant" != none ]; then
        # At -O2, compilers take a third more time for what these programs do in seconds.
        sanitize=("-fsanitize=$variant" -fno-sanitize-recover=all -O1)
    fi
    case $variant in
    # ThreadSanitizer's memory layout does not fit the widest address randomisation of newer kernels.
    *thread*) runner+=(setarch "$(uname -m)" --addr-no-randomize) ;;
    esac
    for source in csrc/*/*.c; do
        "$cc" "${flags[@]}" "${sanitize[@]}" -c "$source" -o "$build/$(basename "$source" .c).o"
    done
    # An archive, so that a test which includes a source file to put hooks into it links without that file's object.
    "${AR:-ar}" rcs "$build/libfi.a" "$build"/fi_*.o
    for source in "${sources[@]}"; do
        program=$build/$(basename "$source" .c)
        "$cc" "${flags[@]}" "${sanitize[@]}" "$source" "${objects[@]}" "$build/libfi.a" "${libraries[@]}" -o "$program"
        start=$SECONDS
        if "${runner[@]}" "$program"; then
            echo "ok     $program ($((SECONDS - start)) s)"
        else
            echo "FAILED $program (exit code $?)"
            failed+=("$program")
        fi
    done
done
# The fuzz targets are built with these sanitizers and no others.
if [ -z "${TESTS:-}" ] && [[ " $* " == *address* ]] && ! tests/c/fuzz/run.sh; then
    failed+=(fuzz)
fi
if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
