# What the quick tier runs in place of two programs. The deep tier runs the programs themselves.

# Everything is built, with all features, and another build would take minutes. cargo checks the names
# of packages and features, and says which program it would run; the one that is built is run. Without
# the registry, it adds no dependencies of dependencies.
cargo() {
    local command=$1 example= names=()
    case $command in
    build | run) shift ;;
    add) command cargo "$@" --dry-run; return ;;
    *) command cargo "$@"; return ;;
    esac
    while [ $# -gt 0 ]; do
        case $1 in
        -p | --features) names+=("$1" "$2"); shift ;;
        --example) example=$2; shift ;;
        --) shift; break ;;
        esac
        shift
    done
    command cargo tree --offline --quiet --depth 0 "${names[@]}" >/dev/null || return
    if [ "$command" = build ]; then
        return
    elif [ -n "$example" ]; then
        "target/debug/examples/$example" "$@"
    # Without a compiler, cargo goes as far as to choose the program.
    elif RUSTC=false command cargo run 2>&1 | grep 'could not determine'; then
        return 1
    else
        command barewire "$@"
    fi
}

# Fewer messages. Clients tell servers how many.
barewire() {
    case " $* " in
    *" --listen "* | *" -n "* | *" --help "*) command barewire "$@" ;;
    " perf "*) command barewire "$@" -n 20 -w 2 ;;
    *) command barewire "$@" ;;
    esac
}
