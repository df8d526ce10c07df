# NIXL, whose package brings a UCX of its own with renamed libraries: `nixl.py`.
. "$(dirname "$0")/common.sh"

case $1 in
prepare)
    /usr/bin/python3 -m pip install --quiet --no-deps --target package nixl-cu12==1.5.1
    ;;
units) echo transfers ;;
run)
    PYTHONPATH="$PWD/package" $BY /usr/bin/python3 "$(dirname "$0")/nixl.py"
    ;;
esac
