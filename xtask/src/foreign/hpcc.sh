# HPCC: Linpack, transposition, random access, FFT and more, each checked by residuals.
. "$(dirname "$0")/common.sh"

case $1 in
prepare)
    # The example of the package is for a grid of 2 x 2 ranks.
    sed -e 's/^2  *Ps$/1            Ps/' /usr/share/doc/hpcc/examples/_hpccinf.txt > hpccinf.txt
    ;;
units) echo hpcc ;;
run)
    rm -f hpccoutf.txt
    openmpi hpcc
    grep -E 'PASSED|FAILED|^Success=' hpccoutf.txt
    grep -q '^Success=1$' hpccoutf.txt || echo "failed Success=1"
    awk '
        / FAILED/ { print "failed " $0 }
        / PASSED/ { passed++ }
        END { print "passed " passed + 0 }' hpccoutf.txt
    ;;
esac
