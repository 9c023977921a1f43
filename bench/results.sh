#!/bin/sh
# Makes bench/results/ anew: one run per table, then the table of README and the chart.
# PYTHON names the interpreter, options go to python -m bench. Takes about 18 minutes on 2 cores.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
for table in pipelines startup kernels columns; do
    jobs=$table
    [ "$table" = startup ] && jobs="startup import consumer"
    [ "$table" = columns ] && jobs="arrow columns tokens"
    # shellcheck disable=SC2086
    "$python" -m bench $jobs --json "bench/results/$table.json" "$@" \
        > "bench/results/$table.txt" || { cat "bench/results/$table.txt"; exit 1; }
    cat "bench/results/$table.txt"
done
"$python" -m bench render bench/results/pipelines.json bench/results/startup.json \
    --png bench/results/pipelines.png
