#!/usr/bin/env bash
# Checks the models of the ring and of streams with Spin: every configuration must pass, and every
# deliberate mistake must be found. check.sh [quick|full] [NAME...]: quick takes a minute,
# full an hour and 8 GB. Needs spin and a C compiler. WRAP is put before each search.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$here/ring.pml
effort=${1:-quick}
shift || true
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# The depth of a search, and 2 ** w entries of its table: to clear the memory for more takes seconds.
if [ "$effort" = full ]; then room="-m4000000 -w26"; else room="-m1000000 -w23"; fi

# explore NAME "MODEL DEFINES" "PAN DEFINES" "PAN OPTIONS" [OPTIMISATION] -> output in $work/NAME/out
explore() {
    mkdir -p "$work/$1"
    cd "$work/$1"
    spin $2 -a "$model" >spin.out
    gcc "${5:--O1}" -w -DVECTORSZ=2048 $3 -o pan pan.c
    ${WRAP:-} ./pan $room $4 >out
    cd "$work"
}

report() { # NAME VERDICT
    local out=$work/$1/out
    printf '%-22s %-7s %9s states %6s s  %s\n' "$1" "$2" \
        "$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$out" | head -1)" \
        "$(sed -n 's/^pan: elapsed time \([0-9.e+]*\) seconds/\1/p' "$out")" \
        "$(sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' "$out" | head -1)"
    rm -f "$work/$1/pan"
}

holds() { # EFFORT NAME "MODEL DEFINES" ["PAN DEFINES"] ["PAN OPTIONS"]
    [ "$1" = quick ] || [ "$effort" = full ] || return 0
    [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $2 "* ]] || return 0
    explore "$2" "$3" "${4:--DSAFETY -DNOCLAIM -DCOLLAPSE}" "${5:-}"
    if grep -q 'errors: 0' "$work/$2/out" && ! grep -qE 'depth too small|not completed' "$work/$2/out"; then
        report "$2" passes
    else
        report "$2" FAILS && failed=1
    fi
}

is_found() { # EFFORT MISTAKE "MODEL DEFINES" ["PAN DEFINES"] ["PAN OPTIONS"]
    [ "$1" = quick ] || [ "$effort" = full ] || return 0
    [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $2 "* ]] || return 0
    local optimisation=-O1
    [ "$effort" = full ] || optimisation=-O0 # these searches are shorter than an optimising compiler takes
    explore "$2" "-DMISTAKE_$2 $3" "${4:--DSAFETY -DNOCLAIM}" "${5:-}" "$optimisation"
    if grep -q 'errors: 1' "$work/$2/out"; then
        report "$2" found
    else
        report "$2" MISSED && failed=1
    fi
}

only=("$@")
live="-DNFAIR=6 -DHC4"
fair="-a -f"

holds quick one-batch "-DBATCHES=1"
holds quick a-death "-DBATCHES=1 -DB=1 -DDEATHS=1 -DREPLACED=1 -DLEASES=0"
holds quick for-one "-DBATCHES=2 -DB=1 -DFOR_ONE -DLEASES=0"
holds full for-one-death "-DBATCHES=1 -DFOR_ONE -DDEATHS=1 -DREPLACED=1 -DLEASES=0"
holds full for-one-reset "-DBATCHES=2 -DB=1 -DFOR_ONE -DRESETS=1 -DLEASES=0"
holds full a-reset "-DBATCHES=1 -DB=1 -DRESETS=1 -DLEASES=0"

holds full two-rows-death "-DBATCHES=1 -DDEATHS=1 -DREPLACED=1 -DLEASES=0"
holds full two-rows-reset "-DBATCHES=1 -DRESETS=1 -DLEASES=0"
holds full two-batches "-DBATCHES=2"
holds full a-death-unreplaced "-DBATCHES=1 -DDEATHS=1"
holds full a-death-leases "-DBATCHES=1 -DDEATHS=1 -DREPLACED=1"
holds full a-reset-leases "-DBATCHES=1 -DRESETS=1"
holds full two-deaths "-DBATCHES=1 -DDEATHS=2 -DREPLACED=2 -DLEASES=0"
holds full death-and-reset "-DBATCHES=1 -DDEATHS=1 -DRESETS=1 -DLEASES=0"
holds full ranges "-DBATCHES=1 -DB=3 -DRANGES"
holds full three-slots "-DBATCHES=2 -DS=3 -DAHEAD=2 -DB=1 -DLEASES=0"
holds full unequal-pipes "-DBATCHES=2 -DUNEQUAL -DPIPES -DLEASES=0"
holds full pipes-death "-DBATCHES=1 -DPIPES -DDEATHS=1 -DREPLACED=1 -DLEASES=0"
holds full three-workers "-DBATCHES=1 -DW=3 -DB=2 -DLEASES=0"
holds full overtaking "-DBATCHES=3 -DB=1 -DOVERTAKES -DLEASES=0"
holds full overtaking-death "-DBATCHES=3 -DB=1 -DOVERTAKES -DDEATHS=1 -DREPLACED=1 -DLEASES=0"
holds full ends-one-row "-DBATCHES=1 -DB=1 -DLEASES=0" "$live" "$fair"
holds full ends "-DBATCHES=1 -DLEASES=0" "$live" "$fair"
holds full ends-death "-DBATCHES=1 -DB=1 -DDEATHS=1 -DREPLACED=1 -DLEASES=0" "$live" "$fair"

# A worker that stops for ever and takes no signal, or that is taken for one: its batch moves.
holds full frozen "-DBATCHES=1 -DB=1 -DFROZEN=1 -DLEASES=0"
holds full abandoned-early "-DBATCHES=1 -DB=1 -DEARLY=1 -DLEASES=0"
holds full abandoned-death "-DBATCHES=1 -DB=1 -DEARLY=1 -DDEATHS=1 -DLEASES=0" "-DSAFETY -DNOCLAIM -DHC4"
holds full frozen-two-batches "-DBATCHES=2 -DS=3 -DB=1 -DFROZEN=1 -DLEASES=0" "-DSAFETY -DNOCLAIM -DHC4"
holds full frozen-reset "-DBATCHES=1 -DB=1 -DFROZEN=1 -DRESETS=1 -DLEASES=0" "-DSAFETY -DNOCLAIM -DHC4"
holds full abandoned-replaced "-DBATCHES=1 -DB=1 -DSTARTED=1 -DEARLY=1 -DLEASES=0"
holds full abandoned-replaced-death "-DBATCHES=1 -DB=1 -DSTARTED=1 -DDEATHS=1 -DREPLACED=1 -DEARLY=1 -DLEASES=0" "-DSAFETY -DNOCLAIM -DHC4"

# Rows are owned when they have been fetched, and fetched by two workers.
hedge="-DTWO_STEP -DBATCHES=1 -DB=1 -DLEASES=0"
holds quick hedged "$hedge -DHEDGES=1"
holds full hedged-death "$hedge -DHEDGES=1 -DDEATHS=1 -DREPLACED=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full hedged-reset "$hedge -DHEDGES=1 -DRESETS=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full hedged-frozen "$hedge -DHEDGES=1 -DFROZEN=1" "-DSAFETY -DNOCLAIM -DHC4"
# A row is taken from a worker that takes too long to fetch it, before that worker has ended.
holds full taken "$hedge -DTAKES=1"
holds full taken-hedged "$hedge -DHEDGES=1 -DTAKES=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full taken-death "$hedge -DTAKES=1 -DDEATHS=1 -DREPLACED=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full taken-frozen "$hedge -DTAKES=1 -DFROZEN=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full taken-reset "$hedge -DTAKES=1 -DRESETS=1" "-DSAFETY -DNOCLAIM -DHC4"

# A worker has rows of many batches fetched elsewhere, and owns each when its answer comes.
promise="-DTWO_STEP -DB=1 -DLEASES=0 -DPROMISES=2"
holds quick promised "$promise -DBATCHES=2"
holds full promised-two-rows "-DTWO_STEP -DLEASES=0 -DPROMISES=2 -DBATCHES=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full promised-death "$promise -DBATCHES=1 -DDEATHS=1 -DREPLACED=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full promised-reset "$promise -DBATCHES=1 -DRESETS=1" "-DSAFETY -DNOCLAIM -DHC4"
holds full promised-hedged "$promise -DBATCHES=1 -DHEDGES=1" "-DSAFETY -DNOCLAIM -DHC4"

# One word overwritten at any moment: right data or an error, and no deadlock.
holds full corrupt-row "-DBATCHES=1 -DB=1 -DSPOILS=1 -DSILENCES=0 -DLEASES=0"
holds full corrupt-hint "-DBATCHES=1 -DB=1 -DSPOILS=1 -DSILENCES=0 -DLEASES=0 -DHINTS"
holds full corrupt-reset "-DBATCHES=1 -DB=1 -DSPOILS=1 -DRESETS=1 -DSILENCES=0 -DLEASES=0"

# What must not be brought back: the checker finds each.
is_found quick NO_REDO "-DBATCHES=1 -DDEATHS=1 -DLEASES=0"
is_found full NO_SWEEP "-DBATCHES=1 -DDEATHS=1 -DLEASES=0"
is_found full NO_REWIND "-DBATCHES=1 -DDEATHS=1 -DLEASES=0"
is_found full RECHECK_WITHOUT_REDO "-DBATCHES=1 -DDEATHS=1 -DLEASES=0"
is_found quick RECHECK_BEFORE_BELL "-DBATCHES=1 -DLEASES=0"
is_found quick RING_BY_NUMBER "-DBATCHES=1 -DB=1 -DFOR_ONE -DLEASES=0"
is_found full LOOK_BEFORE_PWAIT "-DBATCHES=1 -DLEASES=0"
is_found full RING_BEFORE_TAIL "-DBATCHES=1 -DLEASES=0"
is_found full RING_BEFORE_READY "-DBATCHES=1 -DLEASES=0"
is_found quick FINISH_UNCLAIMED "-DBATCHES=2 -DLEASES=0"
is_found quick FREE_AT_RESET "-DBATCHES=1 -DRESETS=1 -DLEASES=0"
is_found full STATE_NOT_CANCELLED "-DBATCHES=2 -DB=1 -DRESETS=1 -DLEASES=0"
is_found full ROW_WITHOUT_SEQUENCE "-DBATCHES=1 -DRESETS=1 -DLEASES=0"
is_found full NO_DRAIN_RING "-DBATCHES=1 -DRESETS=1 -DS=1 -DAHEAD=0 -DLEASES=0"
is_found quick PLACE_GIVEN_TWICE "-DBATCHES=3 -DB=1 -DOVERTAKES -DLEASES=0"
is_found quick RETURNED_ALIVE "-DBATCHES=1 -DB=1 -DEARLY=1 -DLEASES=0"
is_found quick MOVED_IS_FREE "-DBATCHES=2 -DB=1 -DEARLY=1 -DLEASES=0"
is_found quick MOVE_WITHOUT_REDO "-DBATCHES=1 -DB=1 -DFROZEN=1 -DLEASES=0"
is_found full NUMBER_REUSED "-DBATCHES=1 -DB=1 -DSTARTED=1 -DDEATHS=1 -DREPLACED=1 -DEARLY=1 -DLEASES=0" "-DSAFETY -DNOCLAIM -DHC4"
is_found quick WRITTEN_UNOWNED "$hedge -DHEDGES=1"
is_found quick HEDGER_LEAVES "$hedge -DHEDGES=1"
is_found quick WON_WITHOUT_SEQUENCE "-DTWO_STEP -DBATCHES=2 -DB=1 -DS=1 -DAHEAD=0 -DLEASES=0 -DHEDGES=1"
is_found quick FETCH_IS_DRAINED "$hedge -DRESETS=1"
is_found quick OWNED_IS_TAKEN "$hedge -DTAKES=1"
is_found quick ANSWER_UNCHECKED "$promise -DBATCHES=1"
is_found quick ANSWER_WITHOUT_SEQUENCE "$promise -DBATCHES=1 -DRESETS=1"
is_found full RETURNED_BY_STORE "$hedge -DHEDGES=1 -DDEATHS=1 -DREPLACED=1"
is_found full CORRUPT_IS_DRAINED "-DBATCHES=1 -DB=1 -DSPOILS=1 -DRESETS=1 -DSILENCES=0 -DLEASES=0"

model=$here/stream.pml
holds quick stream-one "-DSAMPLES=1 -DOTHERS=0 -DB=1 -DCREDIT=1"
holds full stream-two-rows "-DSAMPLES=3 -DOTHERS=1 -DB=2 -DCREDIT=2"
holds full stream-lends "-DSAMPLES=3 -DOTHERS=0 -DB=1 -DCREDIT=2 -DE=3 -DSHARES" "-DSAFETY -DNOCLAIM -DHC4"
holds full stream-death "-DSAMPLES=1 -DOTHERS=0 -DB=1 -DCREDIT=1 -DDEATHS=1"
holds full stream-death-of-two "-DSAMPLES=1 -DOTHERS=1 -DB=1 -DCREDIT=1 -DDEATHS=1"
holds full stream-ends "-DSAMPLES=1 -DOTHERS=0 -DB=1 -DCREDIT=1" "$live" "$fair"
holds full stream-ends-death "-DSAMPLES=1 -DOTHERS=0 -DB=1 -DCREDIT=1 -DDEATHS=2" "$live" "$fair"

small="-DSAMPLES=2 -DOTHERS=1 -DB=1 -DCREDIT=1"
is_found quick RECHECK_WITHOUT_CREDIT "$small"
is_found full RECHECK_BEFORE_BELL "$small"
is_found full LOOK_BEFORE_PWAIT "$small"
is_found full RING_BEFORE_CREDIT "$small"
is_found full PUBLISH_FIRST "$small"
is_found full PHASE_LATE "$small"
is_found full LENT_IS_FREE "-DSAMPLES=3 -DOTHERS=0 -DB=1 -DCREDIT=2 -DE=3"

exit $failed
