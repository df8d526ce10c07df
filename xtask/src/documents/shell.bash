# Runs before the commands of a document: see script.rs.

# Returns when a process of this script listens on a socket, or the background process $1 has ended: a
# reader, too, starts the client when the server is there.
listening() {
    local processes sockets
    while kill -0 "$1"; do
        processes=$(sed -n "s/^\([0-9]*\) (.*) [A-Z] [0-9]* $$ .*/\1/p" /proc/[0-9]*/stat)
        sockets=$(awk '$4 == "0A" { print $10 } $4 == "00010000" { print $7 }' \
            "/proc/$1/net/tcp" "/proc/$1/net/tcp6" "/proc/$1/net/unix")
        for process in $processes; do
            readlink "/proc/$process/fd/"*
        done | sed -n 's/^socket:\[\(.*\)\]$/\1/p' | grep -qxF "$sockets" && return
        sleep 0.05
    done
} 2>/dev/null
