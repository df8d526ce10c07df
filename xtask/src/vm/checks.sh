# The checks in the guest. Each is a function, called by a script of its own with `sh -eu` in the
# folder of the repository. The variables that are not set here are those of the programs.

# Soft-RoCE on one end of a pair of network devices; the other end is for the software HCA, in the
# network namespace `soft`.
network() {
    ip link set lo up
    ip netns add soft
    ip link add v0 type veth peer name v1 netns soft
    ip addr add 10.98.0.1/24 dev v0
    ip link set v0 up
    ip -n soft link set lo up
    ip -n soft addr add 10.98.0.2/24 dev v1
    ip -n soft link set v1 up
    rdma link add rxe0 type rxe netdev v0
    for tenth in $(seq 100); do
        grep -q 0a62:0001 /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null && exit
        sleep 0.1
    done
    echo 'rxe0 has no GID for 10.98.0.1'
    exit 1
}

# The two sides of the interoperability test, each in its namespace. $1 is their port.
interop() {
    $INTEROP rxe0 --listen 10.98.0.1 --port "$1" & kernel=$!
    ip netns exec soft $INTEROP software --address 10.98.0.2 --connect 10.98.0.1 --port "$1" --operations $OPERATIONS
    wait $kernel
}

# Programs of librdmacm on rxe0 and on the software HCA connect to each other: both managers exchange
# their datagrams.
rdma_cm() {
    soft() {
        ip netns exec soft env BAREWIRE_HCA_WIRE=roce $BAREWIRE hca run --address 10.98.0.2 -- "$@"
    }
    rping -s -C 10 -a 10.98.0.1 -p 7401 & server=$!
    sleep 2
    soft rping -c -C 10 -a 10.98.0.1 -p 7401
    wait $server
    soft rping -s -C 10 -a 10.98.0.2 -p 7402 & server=$!
    sleep 5
    rping -c -C 10 -a 10.98.0.2 -p 7402
    wait $server
    ib_write_bw -R -d rxe0 -s 4096 -n 200 -p 7403 & server=$!
    sleep 2
    soft ib_write_bw -R -s 4096 -n 200 -p 7403 10.98.0.1
    wait $server
    soft ib_write_bw -R -s 4096 -n 200 -p 7404 & server=$!
    sleep 5
    ib_write_bw -R -d rxe0 -s 4096 -n 200 -p 7404 10.98.0.2
    wait $server
}

loss() {
    tc qdisc add dev v0 root netem loss 1%
    tc -n soft qdisc add dev v1 root netem loss 1%
}

# Asserts that there was loss, and removes it.
no_loss() {
    tc -s qdisc show dev v0 | grep 'dropped [1-9]'
    tc -n soft -s qdisc show dev v1 | grep 'dropped [1-9]'
    tc qdisc del dev v0 root
    tc -n soft qdisc del dev v1 root
}

# The tests of `verbs/` that need a device, on rxe0.
verbs() {
    export BAREWIRE_DEVICE=rxe0
    $TESTS --ignored --test-threads=1 events:: memory:: objects:: posting::
}

# The tests of the transport API's operations, over `rc_verbs`.
transport() {
    export BAREWIRE_TEST_TRANSPORT=rc_verbs BAREWIRE_TEST_DEVICES=rxe0:1,rxe0:1
    $TRANSPORT remote_errors:: rc_verbs:: --test-threads=1
    for behaviours in messages:: rma:: atomics:: ordering:: lists:: closing::; do
        $CONFORMANCE $behaviours --test-threads=1
    done
}

# The tests of transports over datagrams.
datagrams() {
    export BAREWIRE_TEST_TRANSPORT=ud_verbs BAREWIRE_TEST_DEVICES=rxe0:1,rxe0:1
    $TRANSPORT datagrams:: --test-threads=1
    for behaviours in messages:: pending:: closing:: events::a events::who; do
        $CONFORMANCE $behaviours --test-threads=1
    done
}

# A second Soft-RoCE and a wire between the two: the network namespace `soft` forwards between two
# pairs of network devices. Both devices are in the first namespace, since this kernel's Soft-RoCE
# listens in no other. The rules send packets for the other device out, although its address
# belongs to this machine.
wire() {
    ip link add w0 type veth peer name w1 netns soft
    ip addr add 10.97.0.1/24 dev w0
    ip link set w0 up
    ip -n soft addr add 10.97.0.2/24 dev w1
    ip -n soft link set w1 up
    ip netns exec soft sysctl -q -w net.ipv4.ip_forward=1
    for device in all v0 w0; do
        sysctl -q -w net.ipv4.conf.$device.accept_local=1 net.ipv4.conf.$device.rp_filter=0
    done
    ip rule add pref 100 iif v0 lookup local
    ip rule add pref 101 iif w0 lookup local
    ip rule add pref 200 from 10.98.0.1 to 10.97.0.1 lookup 200
    ip rule add pref 201 from 10.97.0.1 to 10.98.0.1 lookup 201
    ip rule add pref 300 lookup local
    ip rule del pref 0
    ip route add 10.97.0.1 via 10.98.0.2 dev v0 table 200
    ip route add 10.98.0.1 via 10.97.0.2 dev w0 table 201
    rdma link add rxe1 type rxe netdev w0
    for tenth in $(seq 100); do
        grep -q 0a61:0001 /sys/class/infiniband/rxe1/ports/1/gids/* 2>/dev/null && exit
        sleep 0.1
    done
    echo 'rxe1 has no GID for 10.97.0.1'
    exit 1
}

# Two processes, each with its own device, on a wire with loss: `hello` compares the received data
# bytewise, `fadd` by words.
two_devices() {
    export BAREWIRE_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    tc qdisc add dev v0 root netem loss 1%
    tc qdisc add dev w0 root netem loss 1%
    serve() {
        $BAREWIRE "$@" & server=$!
        for tenth in $(seq 100); do
            netstat -ltn | grep -q ':7200 ' && break
            sleep 0.1
        done
    }
    for transport in rc_verbs ud_verbs; do
        serve hello -t $transport -d rxe1:1 -p 7200 -s 1000 --bcopy
        $BAREWIRE hello -t $transport -d rxe0:1 -p 7200 -n 127.0.0.1 -s 1000 --bcopy
        wait $server
        tests='am_lat am_bw'
        if [ $transport = rc_verbs ]; then tests='am_lat put_bw get fadd'; fi
        for test in $tests; do
            serve perf --listen -x $transport -d rxe1:1 -p 7200
            $BAREWIRE perf 127.0.0.1 -x $transport -d rxe0:1 -p 7200 -t $test -n 300 -w 10 -s 8 | grep 'Final: *300 '
            wait $server
        done
    done
    tc -s qdisc show dev v0 | grep 'dropped [1-9]'
    tc qdisc del dev v0 root
    tc qdisc del dev w0 root
}

# While messages stream, the port goes down or the peer is killed: one error reports it, and the
# process ends. If the port comes back before the timeout of `ud_verbs`, there is no error. The
# server's timeout is longer than the client's, so the side whose port is down reports it.
gone() {
    export BAREWIRE_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    export BAREWIRE_PEER_TIMEOUT=3s BAREWIRE_RETRY_COUNT=3
    # A server that lost its client says so and waits for the next one.
    warned() {
        for tenth in $(seq 300); do
            grep -q 'waiting for the next client' $1 && break
            sleep 0.1
        done
        cat $1
        grep -q 'waiting for the next client' $1
    }
    stream() {
        BAREWIRE_PEER_TIMEOUT=30s $BAREWIRE perf --listen -x $1 -d rxe1:1 -p 7300 2> /run/server & server=$!
        for tenth in $(seq 100); do
            netstat -ltn | grep -q ':7300 ' && break
            sleep 0.1
        done
        $BAREWIRE perf 127.0.0.1 -x $1 -d rxe0:1 -p 7300 -t am_bw -n 1000M > /run/client 2>&1 & client=$!
        sleep 3
    }
    for transport in rc_verbs ud_verbs; do
        stream $transport
        ip link set v0 down
        if wait $client; then exit 1; fi
        cat /run/client
        # Soft-RoCE gives the requests of a connection back, or keeps them for ever; then it is the command line that loses its patience.
        if [ $transport = ud_verbs ]; then grep 'the port of rxe0:1 is Down: bring its link up' /run/client; fi
        warned /run/server
        kill $server
        ip link set v0 up
        for tenth in $(seq 100); do
            grep -q 0a62:0001 /sys/class/infiniband/rxe0/ports/1/gids/* && break
            sleep 0.1
        done
        ip route replace 10.97.0.1 via 10.98.0.2 dev v0 table 200
        sleep 1
        stream $transport
        kill -9 $server
        if wait $client; then exit 1; fi
        cat /run/client
    done
    unset BAREWIRE_PEER_TIMEOUT
    $BAREWIRE perf --listen -x ud_verbs -d rxe1:1 -p 7300 & server=$!
    sleep 1
    $BAREWIRE perf 127.0.0.1 -x ud_verbs -d rxe0:1 -p 7300 -t am_bw -n 20000 & client=$!
    sleep 2
    ip link set v0 down
    sleep 1
    ip link set v0 up
    ip route replace 10.97.0.1 via 10.98.0.2 dev v0 table 200
    wait $client
    wait $server
}

# The command line over `rc_verbs`: the devices, a message each way between two processes, and
# every operation.
command_line() {
    export BAREWIRE_KEY=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
    $BAREWIRE info | grep 'device rxe0:1: RDMA device, GID'
    $BAREWIRE hello -t rc_verbs -d rxe0:1 -p 7100 & server=$!
    for tenth in $(seq 100); do
        netstat -ltn | grep -q ':7100 ' && break
        sleep 0.1
    done
    $BAREWIRE hello -t rc_verbs -d rxe0:1 -p 7100 -n 127.0.0.1
    wait $server
    for operation in am_lat put_lat am_bw put_bw get add_mr fadd cswap; do
        $BAREWIRE perf -x rc_verbs -d rxe0:1 -t $operation -n 100 -w 10 | grep 'Final: *100 '
    done
}

# What the kernel refuses to a restricted process: the device file, and locked memory.
refused() {
    export BAREWIRE_DEVICE=rxe0
    chmod 0 /dev/infiniband/uverbs0
    setpriv --bounding-set -dac_override,-dac_read_search $TESTS --ignored --exact refused::a_device_without_permission --nocapture
    chmod 600 /dev/infiniband/uverbs0
    ulimit -l 64
    setpriv --bounding-set -ipc_lock $TESTS --ignored --exact refused::memory_beyond_the_limit --nocapture
}

# The command line in both namespaces, with the key in a file; `there` runs a command in the other
# one.
namespaces() {
    umask 077
    head -c 32 /dev/urandom > /run/job.key
    export BAREWIRE_KEY_FILE=/run/job.key
    there() { ip netns exec soft "$@"; }
}

# The transport `tcp` over a wire that loses, delays and reorders packets: `hello` compares the
# received data bytewise, `fadd` by words.
sockets() {
    tc qdisc add dev v0 root netem loss 2% delay 1ms reorder 25%
    tc -n soft qdisc add dev v1 root netem loss 2% delay 1ms reorder 25%
    for layout in '' --bcopy --zcopy; do
        size=8000
        if [ "$layout" = --zcopy ]; then size=1M; fi
        $BAREWIRE hello -t tcp --bind 10.98.0.1 -s $size $layout & server=$!
        sleep 1
        there $BAREWIRE hello -t tcp --server 10.98.0.1 -s $size $layout
        wait $server
    done
    for test in 'am_bw -s 8K' 'am_bw -s 1M' 'put_bw -s 100K' 'get -s 100K' 'am_lat -s 8' fadd; do
        $BAREWIRE perf --listen --bind 10.98.0.1 & server=$!
        sleep 1
        there $BAREWIRE perf 10.98.0.1 -x tcp -t $test -n 50 -w 5
        wait $server
    done
}

# The link is cut while messages stream: both ends report it, and the client ends.
cut_link() {
    $BAREWIRE perf --listen --bind 10.98.0.1 2> /run/server & server=$!
    sleep 1
    there $BAREWIRE perf 10.98.0.1 -x tcp -t am_bw -s 8K -n 1000M & client=$!
    sleep 3
    ip link set v0 down
    if wait $client; then exit 1; fi
    for tenth in $(seq 300); do
        grep -q 'waiting for the next client' /run/server && break
        sleep 0.1
    done
    cat /run/server
    grep -q 'waiting for the next client' /run/server
    kill $server
    ip link set v0 up
}
