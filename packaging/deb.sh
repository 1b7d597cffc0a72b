#!/usr/bin/env bash
# Makes a Debian package of the binary $1 in the directory $2 and prints its path.
# $3 is the Debian revision (1). DEBFULLNAME and DEBEMAIL name the maintainer, DEB_COMPRESSION the
# compression (xz). Needs dpkg-dev and binutils; neither root nor debhelper.
set -euo pipefail
binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
revision=${3:-1}
. "$(dirname "$0")/common.sh"

# In Debian's order, 1.0~rc.1 comes before 1.0.
full=${version/-/\~}-$revision
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-Mainstay maintainers} <${DEBEMAIL:-maintainers@mainstay.invalid}>"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/debian/mainstay
share=$stage/usr/share
doc=$share/doc/mainstay

install -D -m 0755 "$binary" "$stage/usr/bin/mainstay"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$stage/usr/bin/mainstay"
# Debian's etcd-server owns /usr/bin/etcd; both can be installed.
mkdir -p "$stage/usr/lib/mainstay/bin"
ln -s ../../../bin/mainstay "$stage/usr/lib/mainstay/bin/etcd"
ln -s ../../../bin/mainstay "$stage/usr/lib/mainstay/bin/etcdutl"

install -D -m 0644 "$root/packaging/systemd/mainstay.service" \
    "$stage/lib/systemd/system/mainstay.service"
install -D -m 0644 "$root/packaging/systemd/default" "$stage/etc/default/mainstay"
completions "$share/bash-completion/completions/mainstay" \
    "$share/zsh/vendor-completions/_mainstay" "$share/fish/vendor_completions.d/mainstay.fish"
pages "$share/man/man1"
gzip -9n "$share"/man/man1/*.1

install -D -m 0644 "$root/packaging/deb/copyright" "$doc/copyright"
install -m 0644 "$root/README.md" "$doc/README.md"
install -m 0644 "$root"/docs/{install,kubeadm,differences,monitoring}.md "$doc"
install -D -m 0644 "$root/packaging/kubeadm/etcd.yaml" "$doc/examples/etcd.yaml"
notice | gzip -9n >"$doc/NOTICE.gz"
gzip -9n <"$root/CHANGELOG.md" >"$doc/changelog.gz"
gzip -9n >"$doc/changelog.Debian.gz" <<END
mainstay ($full) unstable; urgency=medium

  * Mainstay $version; what changed is in changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$epoch")
END

mkdir -p "$share/lintian/overrides"
cat >"$share/lintian/overrides/mainstay" <<'END'
# The package is not uploaded to Debian, where a first upload answers a request for it.
mainstay: initial-upload-closes-no-bugs *
END

# As dpkg-gencontrol counts: files in whole KiB, all else as one.
size=$(find "$stage" -type f -printf '%s\n' -o -printf '0\n' |
    awk '{ kib += $1 ? int(($1 + 1023) / 1024) : 1 } END { print kib }')

mkdir "$stage/DEBIAN"
# The versions of the shared libraries that this binary really needs.
printf 'Source: mainstay\n\nPackage: mainstay\nArchitecture: any\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O -edebian/mainstay/usr/bin/mainstay | sed -n 's/^shlibs:Depends=//p')

cat >"$stage/DEBIAN/control" <<END
Package: mainstay
Version: $full
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: adduser${libraries:+, $libraries}
Recommends: etcd-client
Section: database
Priority: optional
Description: etcd-compatible consensus store
 Mainstay keeps keys and values on several machines in agreement. It speaks
 etcd's client protocol, peer protocol and log format, so that etcdctl and
 other clients of etcd 3 work with it unchanged, and keeps its data in RocksDB.
 .
 The service is neither enabled nor started when the package is installed: a
 member founds or joins its cluster at the first start, with the settings in
 /etc/default/mainstay.
END
echo /etc/default/mainstay >"$stage/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 0755 "$root/packaging/deb/$script" "$stage/DEBIAN/$script"
done
(cd "$stage" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) \
    >"$work/md5sums"
install -m 0644 "$work/md5sums" "$stage/DEBIAN/md5sums"
chmod 0755 "$stage"

package=$out/mainstay_${full}_$architecture.deb
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$stage" "$package" >&2
echo "$package"
