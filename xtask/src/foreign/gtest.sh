# UCX's own tests of UCT: gtest.sh 1.13|head prepare|units|run. A unit is a class of tests. What tests the
# internals of UCX's transports is not built. UCX_GIT is the repository that the head comes from.
. "$(dirname "$0")/common.sh"

head=9466d104a317c8ffddd9734e72055d8bbda021b3
binary=source/test/gtest/gtest

# The transports of a run, as names before tests. UCX names its shared memory `posix`.
prefixes() {
    case ${UCX_TLS:-}:$BY in
    self,shm:?*) echo self shm ;;
    self,shm:) echo self posix ;;
    self,tcp:*) echo tcp ;;
    self,rc_mlx5:?*) echo rc_mlx5 ;;
    all:?*) echo cma dc_mlx5 ud_mlx5 ;;
    all:) echo cma ;;
    esac
}

case $2 in
prepare)
    case $1 in
    1.13)
        debian_source bookworm ucx
        # Debian's files are where the build system expects those of UCX.
        [ -e source/debian ] || ln -s debian.upstream source/debian
        ;;
    head)
        git init --quiet source
        git -C source fetch --quiet --depth 1 "${UCX_GIT:-https://github.com/openucx/ucx}" "$head"
        git -C source checkout --quiet FETCH_HEAD
        ;;
    esac
    cd source
    # Transports and memory domains that tests run over: some instead of those for absent devices.
    sed -i 's/^    knem$/    shm/' test/gtest/uct/uct_test.h
    sed -i -E 's/^( +)knem, /\1shm, /; s/^( +)xpmem, /\1rc_mlx5, /; s/^( +)ugni, /\1dc_mlx5, /
        s/^( +)rocm_cpy, /\1tcp, /; s/^( +)rocm_ipc, /\1self, /' test/gtest/uct/test_md.cc
    ./autogen.sh > autogen.txt 2>&1
    # Without logs of data, which these transports do not have: tests of messages expect them otherwise.
    ./configure --quiet --enable-gtest --disable-logging --disable-static --without-verbs \
        --without-rdmacm --without-cuda --without-rocm --without-java --without-go \
        --without-fuse3 --disable-doxygen-doc CFLAGS=-O0 CXXFLAGS=-O0 > configure.txt 2>&1
    for folder in src/ucm src/ucs src/uct src/ucp src/tools/perf test/gtest/common/googletest; do
        make --silent -j "$(nproc)" -C $folder
    done > make.txt 2>&1
    objects=$(sed -nE 's,^\s((common|uct)/.*)\.cc.*,\1,p' test/gtest/Makefile.am |
        grep -v -e /ib/ -e /tcp/ -e /sm/ -e cuda -e /ze/ -e device -e test_mm | sort -u |
        sed -E 's,([^/]*)$,gtest-\1.o,' | tr '\n' ' ')
    make --silent -j "$(nproc)" -C test/gtest gtest gtest_OBJECTS="$objects" >> make.txt 2>&1
    ;;
units)
    "$binary" --gtest_list_tests | sed -nE 's,^[a-z_0-9]+/([a-z_0-9]+)(<.*>)?\..*,\1,p' | sort -u |
        grep -v -e perf -e loopback
    ;;
run)
    filter=
    for prefix in $(prefixes); do filter="$filter$prefix/$3.*:"; done
    # The default transports run one by one.
    [ -n "$filter" ] || exit 0
    # It fills 128 sockets 10 000 times, which takes longer than the 900 s that a test has.
    filter="$filter-tcp/test_uct_pending.pending_fairness/*"
    unset UCX_TLS
    BAREWIRE_KEY=$(printf '5a%.0s' $(seq 32))
    export BAREWIRE_KEY UCX_HANDLE_ERRORS=none UCX_LOG_LEVEL=error
    $BY "$binary" --gtest_filter="$filter" > "$3.txt" 2>&1 || echo "exit status: $?" >> "$3.txt"
    cat "$3.txt"
    # Without the names of transports, which differ from those of UCX.
    awk '
        function name() { sub(/,$/, "", $4); sub(/^[^\/]*\//, "", $4); return $4 }
        /^\[ RUN / { running = name() }
        /^\[       OK \]/ && running { passed++; running = "" }
        /^\[     SKIP \]/ { running = "" }
        /^\[  FAILED  \]/ && running { print "failed " running; running = "" }
        END {
            if (running) print "failed " running
            print "passed " passed + 0
        }' "$3.txt"
    ;;
esac
