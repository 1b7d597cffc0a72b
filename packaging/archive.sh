#!/usr/bin/env bash
# Makes an archive of the static binary $1 in the directory $2, with its checksum, and a directory
# `rootfs` with what a container of it holds. Prints the path of the archive.
set -euo pipefail
binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
. "$(dirname "$0")/common.sh"

# In a pipe to `grep -q` readelf could end by SIGPIPE, and pipefail would call the binary static.
linking=$(readelf -d -l "$binary")
if [[ $linking =~ NEEDED|INTERP ]]; then
    echo "$binary is linked dynamically; make archive builds a static one" >&2
    exit 1
fi
case "$(uname -m)" in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac
name=mainstay-$version-linux-$machine

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name
install -D -m 0755 "$binary" "$stage/bin/mainstay"
strip --strip-unneeded "$stage/bin/mainstay"
ln -s mainstay "$stage/bin/etcd"
ln -s mainstay "$stage/bin/etcdutl"
install -m 0644 "$root"/{README.md,CHANGELOG.md,LICENSE} "$stage"
{
    notice
    cat <<'END'

--------------------------------------------------------------------------------
This binary is also linked statically with parts of
  the GNU C library (LGPL-2.1-or-later), and
  GCC's libstdc++ and libgcc (GPL-3.0-or-later with the GCC Runtime Library Exception).
Their sources are those of the Debian packages glibc and gcc. To link the program with another
version of them, run `make archive` in its sources on a system that has that version.
END
} >"$stage/NOTICE"
install -D -m 0644 -t "$stage/docs" "$root"/docs/*.md
install -D -m 0644 -t "$stage/systemd" "$root/packaging/systemd/mainstay.service"
install -m 0644 "$root/packaging/systemd/default" "$stage/systemd/mainstay.default"
install -D -m 0644 -t "$stage/kubeadm" "$root/packaging/kubeadm/etcd.yaml"
completions "$stage/completions/mainstay.bash" "$stage/completions/_mainstay" \
    "$stage/completions/mainstay.fish"
pages "$stage/man/man1"

tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" |
    gzip -9n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >SHA256SUMS)

rm -rf "$out/rootfs"
mkdir -p "$out/rootfs/usr/local/bin" "$out/rootfs/var/lib/etcd" "$out/rootfs/usr/share/doc/mainstay"
cp -a "$stage/bin/." "$out/rootfs/usr/local/bin"
cp -a "$stage/LICENSE" "$stage/NOTICE" "$out/rootfs/usr/share/doc/mainstay"
chmod 0700 "$out/rootfs/var/lib/etcd"
# A temporary directory, as every program may expect one.
install -d -m 1777 "$out/rootfs/tmp"
echo "$out/$name.tar.gz"
