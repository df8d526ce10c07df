# Runs before the commands of a document: see script.rs.

# The process $1 and those that it started.
family() {
    local child
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do family "$child"; done
}

# Returns when the background process $1, or one that it started, listens on a socket: a reader, too,
# starts the client when the server is there.
listening() {
    local sockets process
    while kill -0 "$1"; do
        sockets=$(awk '$4 == "0A" { print $10 } $4 == "00010000" { print $7 }' \
            "/proc/$1/net/tcp" "/proc/$1/net/tcp6" "/proc/$1/net/unix")
        for process in $(family "$1"); do readlink "/proc/$process/fd/"*; done | sed -n 's/^socket:\[\(.*\)\]$/\1/p' | grep -qxF "$sockets" && return
        sleep 0.05
    done
}
