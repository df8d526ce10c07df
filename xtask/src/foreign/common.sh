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
