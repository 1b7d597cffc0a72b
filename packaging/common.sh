# What packages and archives share; sourced. Input: $binary. Sets: root, version, epoch.
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n '/^version = /{s/.*"\(.*\)".*/\1/p;q}' "$root/Cargo.toml")
# Files carry the time of the commit, so that equal sources give equal packages.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH=$epoch

pages() { # pages DIR: manual pages
    mkdir -p "$1"
    "$binary" man mainstay >"$1/mainstay.1"
    "$binary" man etcd >"$1/mainstay-etcd.1"
    "$binary" man etcdutl >"$1/mainstay-etcdutl.1"
}

completions() { # completions BASH_FILE ZSH_FILE FISH_FILE
    mkdir -p "$(dirname "$1")" "$(dirname "$2")" "$(dirname "$3")"
    "$binary" completion bash >"$1"
    "$binary" completion zsh >"$2"
    "$binary" completion fish >"$3"
}

notice() { # licences of all that is linked in; the program is built beside the binary
    "$(dirname "$binary")/mainstay-notice"
}
