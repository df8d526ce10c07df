# Mooncake, whose package uses the libibverbs of the machine: `engines.py`.
. "$(dirname "$0")/common.sh"

case $1 in
prepare)
    /usr/bin/python3 -m pip install --quiet --no-deps --target package \
        mooncake-transfer-engine-non-cuda==0.3.13.post1
    ;;
units) echo transfers ;;
run)
    PYTHONPATH="$PWD/package" $BY /usr/bin/python3 "$(dirname "$0")/engines.py"
    ;;
esac
