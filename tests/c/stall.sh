#!/usr/bin/env bash
# The one test that notices a missing memory fence: builds the ring with each of its fences F1 to F5 left out and
# looks whether it then stalls, and with all of them, when it must not. A few minutes, on two idle processors.
#
#   tests/c/stall.sh [SECONDS]       for each build (15; a fence may need several tries)
#
# Fails if the complete ring stalls, or if the ring does not stall without F1 or without F4: then the program has
# lost its eye for them. The other three are reported.
set -uo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-15}
build=build/tests-c/stall
mkdir -p "$build" || exit
failed=0

# try FENCE: 0 never stalled, 3 stalled; fence 0 leaves nothing out.
try() {
    "${CC:-cc}" -std=c11 -O2 -g -Wall -Wextra -Werror -pthread -Icsrc -Itests/c -DFI_LEAVE_OUT_FENCE="$1" \
        tests/c/stall.c csrc/*/*.c -lm -o "$build/stall$1" || exit
    timeout $((seconds + 60)) "$build/stall$1" "$seconds"
}

for attempt in 1 2 3; do
    echo "all fences, run $attempt"
    try 0 || failed=1
done
for fence in 1 2 3 4 5; do
    for attempt in 1 2 3 4; do
        echo "without F$fence, try $attempt"
        try "$fence"
        case $? in
        3) continue 2 ;;
        0) ;;
        *) failed=1 && continue 2 ;;
        esac
    done
    case $fence in
    1 | 4) echo "the ring did not stall without F$fence" && failed=1 ;;
    esac
done
exit "$failed"
