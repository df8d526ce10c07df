# ScaLAPACK's drivers of both MPIs: factorizations over BLACS, each checked by residuals.
. "$(dirname "$0")/common.sh"

case $1 in
prepare) ;;
units)
    for driver in xdlu xdqr xdllt xzlu xdinv; do printf '%s\n' "openmpi $driver" "mpich $driver"; done
    ;;
run)
    set -- $2
    # The programs read their input, and write their output, in the current folder.
    cp /usr/lib/*/scalapack/"$1"-tests/*.dat .
    "$1" "$(ls /usr/lib/*/scalapack/"$1"-tests/"$2")" > "$2.txt" 2>&1 || echo "failed $2: exit status $?"
    cat "$2.txt"
    awk -v driver="$2" '
        /tests completed and passed residual checks/ { passed += $1; ended = 1 }
        /tests completed and failed residual checks/ && $1 > 0 { print "failed " driver ": " $1 " residual checks" }
        END { if (!ended) print "failed " driver ": has no summary"; print "passed " passed + 0 }' "$2.txt"
    ;;
esac
