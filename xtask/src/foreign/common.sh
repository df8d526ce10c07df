# What the scripts of this folder have in common. `prepare` fetches and builds a suite in the current
# folder, `units` prints what can run alone, a line each, and `run UNIT` prints lines `passed COUNT`
# and `failed TEST` among its other output. BY is the command that runs a program over the transports
# of barewire, or empty for those of UCX.
set -eu

# Two ranks of Debian's Open MPI.
openmpi() {
    $BY mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 --mca mpi_yield_when_idle 1 \
        --mca pml ucx --mca osc ucx --mca opal_common_ucx_tls any \
        --mca opal_common_ucx_devices any "$@"
}

# Two ranks of Debian's MPICH, whose own shared memory is not used.
mpich() {
    MPIR_CVAR_NOLOCAL=1 $BY mpiexec.mpich -n 2 "$@"
}

# Downloads the source of a package in a release of Debian, without Debian's changes, to `source`.
debian_source() {
    mkdir -p lists/partial source
    echo "deb-src http://deb.debian.org/debian $1 main" > sources.list
    apt="apt-get -q -o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=-
        -o Dir::State::lists=$PWD/lists"
    $apt update
    $apt source --download-only "$2"
    tar xf "$2"_*.orig.tar.* -C source --strip-components=1
}
