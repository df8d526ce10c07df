#!/bin/sh
# Compares the latency of MPI messages over barewire's shm with that over UCX's own shared memory, in
# alternating pairs. Run it on an idle machine with two CPUs or more:
#
#   cargo build --release -p barewire-cli && uct/benches/pingpong.sh [BYTES [PAIRS [ROUNDS]]]
set -eu
bytes=${1:-8} pairs=${2:-15} rounds=${3:-20000}
here=$(dirname "$0")
barewire=${BAREWIRE:-$here/../../target/release/barewire}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpicc -O2 -Wall -o "$work/pingpong" "$here/pingpong.c"

# ranks TRANSPORTS [COMMAND...]: the latency over these transports, in nanoseconds
ranks() {
    transports=$1
    shift
    "$@" timeout 300 mpirun --allow-run-as-root --bind-to core -n 2 --mca pml ucx --mca osc ucx \
        --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any \
        -x "UCX_TLS=$transports" "$work/pingpong" "$bytes" "$rounds"
}

# The median of a file of numbers.
median() {
    sort -n "$1" | awk '{ all[NR] = $1 } END { print NR % 2 ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2 }'
}

printf '%8s %12s %12s %8s\n' pair barewire UCX ratio
pair=0
while [ "$pair" -lt "$pairs" ]; do
    pair=$((pair + 1))
    # Each of the two is first in every second pair.
    if [ $((pair % 2)) -eq 1 ]; then
        ours=$(ranks shm,self "$barewire" uct run --)
        theirs=$(ranks posix,self)
    else
        theirs=$(ranks posix,self)
        ours=$(ranks shm,self "$barewire" uct run --)
    fi
    echo "$ours" >> "$work/ours"
    echo "$theirs" >> "$work/theirs"
    awk -v pair="$pair" -v a="$ours" -v b="$theirs" 'BEGIN { printf "%8s %9.1f ns %9.1f ns %8.2f\n", pair, a, b, a / b }'
done
awk -v bytes="$bytes" -v a="$(median "$work/ours")" -v b="$(median "$work/theirs")" \
    'BEGIN { printf "%d B, medians: %.1f ns / %.1f ns = %.2f (at most 1.00)\n", bytes, a, b, a / b }'
