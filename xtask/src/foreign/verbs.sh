# Programs of libibverbs and librdmacm, each a server and a client in two processes.
set -eu

# Waits until something listens to the port, by TCP or by rdma_cm.
listens() {
    tcp=$(printf %04X "$1")
    cm=$(printf %x "$1")
    for _ in $(seq 400); do
        if grep -q ":$tcp 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 ||
            grep -q "@barewire-hca/rdma_cm/.*/1[01][0-9a-f]*$cm/[0-9]*$" /proc/net/unix; then
            return 0
        fi
        sleep 0.05
    done
    echo "failed: nothing listens to port $1"
}

# Sets `port` to that of the next pair, below those that the kernel chooses.
choose_port() {
    port=$((20000 + ($$ + pairs * 7) % 12000))
}

# Runs a server and its client, in whose arguments PORT is a port. `ended` is a server that serves
# until it is ended.
pair() {
    choose_port
    pairs=$((pairs + 1))
    server=$(echo "$1" | sed "s/PORT/$port/g")
    client=$(echo "$2" | sed "s/PORT/$port/g")
    timeout 120 $BY $server > server.out 2>&1 &
    process=$!
    listens "$port"
    status=0
    timeout 120 $BY $client > client.out 2>&1 || status=$?
    if [ "${3:-}" = ended ]; then
        kill "$process"
        wait "$process" || true
    else
        wait "$process" || status=$?
    fi
    if [ "$status" = 0 ]; then
        echo passed 1
    else
        cat server.out client.out
        echo "failed $2: status $status"
    fi
}

# The same arguments on both sides.
perftest() {
    pair "$* -n 50 -p PORT" "$* -n 50 -p PORT 127.0.0.1"
}

sockets() {
    pair "$* -S 1000 -I 5 -C 5 -p PORT" "$* -S 1000 -I 5 -C 5 -p PORT -s 127.0.0.1"
}

# By a verb, with a number of blocks. fio's senders do not repeat a message for which the receiver
# has no buffer, so all have one.
fio_by() {
    choose_port
    printf '[global]\nioengine=rdma\nport=%s\nbs=64k\nsize=%s\n' "$port" $((65536 * $2)) > server.fio
    cp server.fio client.fio
    printf '[receiver]\nrw=read\niodepth=%s\n' "$2" >> server.fio
    printf 'hostname=127.0.0.1\nverb=%s\n[sender]\nrw=write\niodepth=4\n' "$1" >> client.fio
    pair "fio server.fio" "fio client.fio"
}

# The first IPv4 address of this machine that is not on the loopback interface, which libfabric
# ignores.
own_address() {
    hostname -I | tr ' ' '\n' | grep -m1 '^[0-9.]*$' || true
}

# A test of fabtests over a provider.
fabtest() {
    at=$(own_address)
    pair "$2 -p $1 -s $at -B PORT" "$2 -p $1 -P PORT -s $at $at"
}

pairs=0
case $1 in
prepare) ;;
units)
    echo perftest
    echo perftest-rdmacm
    echo rsockets
    echo qperf
    echo fio
    echo libfabric
    # Debian has no package of it.
    if command -v fi_msg_pingpong > /dev/null && [ -n "$(own_address)" ]; then echo fabtests; fi
    ;;
run)
    case $2 in
    perftest)
        for test in send_lat write_lat read_lat atomic_lat send_bw write_bw read_bw atomic_bw; do
            perftest "ib_$test"
        done
        for transport in UC UD XRC DC; do perftest ib_send_bw -c $transport; done
        for option in -b -e "-N -D 1" "--use-srq -q 4 -r 16"; do perftest ib_send_bw $option; done
        ;;
    perftest-rdmacm)
        for test in send_lat write_lat read_lat atomic_lat send_bw write_bw read_bw atomic_bw; do
            perftest "ib_$test -R"
        done
        perftest ib_send_bw -R -c UD
        pair "ucmatose -c 1000 -C 1 -S 8 -p PORT" "ucmatose -c 1000 -C 1 -S 8 -p PORT -s 127.0.0.1"
        ;;
    rsockets)
        for option in "" "-T b" "-T n" "-T f" "-T r" "-T v" "-k 2"; do sockets rstream $option; done
        sockets riostream
        pair "rcopy -p PORT" "rcopy /etc/services 127.0.0.1:$PWD/copied -p PORT" ended
        cmp /etc/services copied || echo "failed the copy of rcopy"
        ;;
    qperf)
        tests="rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat"
        tests="$tests rc_rdma_write_bw rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr"
        tests="$tests ver_rc_compare_swap ver_rc_fetch_add"
        pair "qperf -lp PORT" "qperf -lp PORT -cm 1 -t 1 127.0.0.1 $tests quit"
        ;;
    fio)
        fio_by write 64
        fio_by read 64
        fio_by send 16
        ;;
    libfabric)
        for kind in msg dgram; do
            pair "fi_pingpong -p verbs -e $kind -B PORT -I 20" \
                "fi_pingpong -p verbs -e $kind -P PORT -I 20 127.0.0.1"
        done
        ;;
    fabtests)
        for test in fi_cm_data "fi_cq_data -e msg" fi_msg fi_msg_epoll \
            "fi_shared_ctx -e msg --no-tx-shared-ctx" "fi_msg_inject -A inject -v" \
            "fi_bw -e msg -v -T 1" "fi_msg_pingpong -I 5 -v" \
            "fi_msg_bw -I 5 -v" "fi_rma_bw -e msg -o write -I 5" \
            "fi_rma_bw -e msg -o read -I 5" "fi_rma_bw -e msg -o writedata -I 5"; do
            fabtest verbs "$test"
        done
        ;;
    esac
    ;;
esac
