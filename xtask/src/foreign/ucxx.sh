# UCXX, whose clients connect to listeners by socket addresses, with the UCX of its Python packages:
# `exchange.py`, and the benchmark that the package has.
. "$(dirname "$0")/common.sh"

case $1 in
prepare)
    /usr/bin/python3 -m pip install --quiet --target package ucxx-cu12==0.52.0
    ;;
units)
    echo exchange
    echo ucxx-async
    echo ucxx-core
    ;;
run)
    BAREWIRE_KEY=$(printf '5a%.0s' $(seq 32))
    PYTHONPATH="$PWD/package"
    export BAREWIRE_KEY PYTHONPATH
    case $2 in
    exchange) $BY /usr/bin/python3 "$(dirname "$0")/exchange.py" ;;
    *)
        $BY /usr/bin/python3 -m ucxx.benchmarks.send_recv -l "$2" -o numpy -n 1000000 \
            --n-iter 20 --no-detailed-report
        echo passed 1
        ;;
    esac
    ;;
esac
