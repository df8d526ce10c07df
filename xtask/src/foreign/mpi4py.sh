# The tests of mpi4py: mpi4py.sh openmpi|mpich prepare|units|run. Open MPI has Debian's package, and
# MPICH the package of the Python Package Index, which loads any MPI of its ABI.
. "$(dirname "$0")/common.sh"

# Without numpy: Open MPI holds a lock for ever after an atomic operation of 1 or 2 bytes, which UCX
# refuses.
case $1 in
openmpi) version=3.1.4 main="runtests.py --no-numpy" ;;
mpich) version=4.1.2 main=main.py ;;
esac

case $2 in
prepare)
    /usr/bin/python3 -m pip download --quiet --no-deps --no-binary mpi4py "mpi4py==$version"
    tar xf "mpi4py-$version.tar.gz"
    if [ "$1" = mpich ]; then
        /usr/bin/python3 -m pip install --quiet --no-deps --target package "mpi4py==$version"
        ln -sf "$(find /usr/lib -name libmpich.so.12)" package/libmpi.so.12
    fi
    ;;
units)
    # Left out, since they do not end with two ranks of either MPI and UCX's own transports:
    # processes that a test spawns or connects to, and graphs with repeated edges.
    ls "mpi4py-$version/test" | sed -n 's/^\(test_.*\)\.py$/\1/p' |
        grep -v -x -e test_spawn -e test_dynproc -e test_comm_topo
    ;;
run)
    if [ "$1" = mpich ]; then
        export PYTHONPATH="$PWD/package" LD_LIBRARY_PATH="$PWD/package" MPI4PY_MPIABI=mpich
    fi
    "$1" /usr/bin/python3 mpi4py-$version/test/$main -i "(^|/)$3(\.py)?\$" > "$3.txt" 2>&1 || true
    cat "$3.txt"
    # A summary of each rank, possibly behind the dots of the other.
    awk -v unit="$3" '
        sub(/^.*Ran /, "") && /^[1-9][0-9]* tests? in/ { ranks++; passed += $1 }
        /^[.sFE]*(FAIL|ERROR): / { failed[$2 " " $3]; passed-- }
        END {
            for (test in failed) print "failed " test
            if (ranks != 2) print "failed " unit ": has no summary of both ranks"
            print "passed " passed + 0
        }' "$3.txt"
    ;;
esac
