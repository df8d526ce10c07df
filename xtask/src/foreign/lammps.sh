# LAMMPS: a melt, whose energies, temperatures and pressures are those of a run over UCX's own
# transports to the last digit.
. "$(dirname "$0")/common.sh"

simulate() {
    rm -f log.lammps
    OMP_NUM_THREADS=1 openmpi lmp -in melt.txt -screen none
    sed -n '/^Step/,/^Loop/p' log.lammps | grep -v '^Loop'
}

case $1 in
prepare)
    cat > melt.txt << 'MELT'
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
run 200
MELT
    BY='' UCX_TLS=all simulate > expected.txt
    ;;
units) echo melt ;;
run)
    simulate > steps.txt
    if diff expected.txt steps.txt; then
        echo "passed $(wc -l < steps.txt)"
    else
        echo "failed melt"
    fi
    ;;
esac
