#!/usr/bin/env bash
# Makes stand-ins of the base images that Dockerfile and docker-compose.yml name, under the same names and
# tags, from Debian packages and this machine's own Rust toolchain. For tests where no registry answers.
#
#   tests/images/make.sh          those that are missing; an image that is there, ours or the real one, stays
#   tests/images/make.sh --tools  only Compose v2 and Buildx, into target/images/docker, for DOCKER_CONFIG
#
# What differs from the real ones: the servers share one root file system, and Grafana, which Debian doesn't
# carry, is not among them. Users, paths, entry points and default commands are those of the real images.
set -euo pipefail
cd "$(dirname "$0")/../.."

here=tests/images
work=$PWD/target/images
mkdir -p "$work"
# The servers are newer than any stable release; the runtime is of the suite that the Dockerfile names.
SERVERS_SUITE=forky
RUNTIME_SUITE=trixie

say() { echo "tests/images: $*" >&2; }

# Whatever mirror this machine uses already.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' |
        grep -v -m 1 security
}

need() {
    command -v "$1" >/dev/null && return
    [ "$(id -u)" -eq 0 ] || {
        say "$1 is missing; install it with: sudo apt-get install $1"
        exit 1
    }
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --no-install-recommends "$1" >&2 || {
        apt-get update >&2
        apt-get install --yes --no-install-recommends "$1" >&2
    }
}

# SUITE TAR PACKAGES: a root file system without documents. The mirror may be a copy of an earlier day, whose date of
# expiry has passed; its signature is checked all the same.
root_of() {
    local suite=$1 tar=$2 packages=$3
    [ -s "$tar" ] && return
    need mmdebstrap
    say "making $tar of $suite; this takes a few minutes"
    mmdebstrap --quiet --variant=minbase --include="$packages" \
        --aptopt='APT::Sandbox::User "root"' --aptopt='Acquire::Check-Valid-Until "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        "$suite" "${tar%.tar}.part.tar" "$(mirror)"
    mv "${tar%.tar}.part.tar" "$tar"
}

# SUITE FOLDER PACKAGE…: unpacks packages without installing anything.
unpack() {
    local suite=$1 folder=$2 apt="$work/apt-$1"
    shift 2
    mkdir -p "$apt"/{lists/partial,archives/partial,none,debs} "$folder"
    touch "$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $suite main" >"$apt/sources.list"
    local options=(-o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
        -o "Dir::Etc::sourcelist=$apt/sources.list" -o "Dir::Etc::sourceparts=$apt/none"
        -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none)
    apt-get "${options[@]}" update >&2
    (cd "$apt/debs" && apt-get "${options[@]}" download "$@" >&2)
    local package
    for package in "$@"; do
        dpkg-deb --extract "$apt/debs/$package"_*.deb "$folder"
    done
}

# Docker's plug-ins, for machines whose own Compose is the old one.
tools() {
    local to="$work/docker/cli-plugins"
    [ -x "$to/docker-compose" ] && [ -x "$to/docker-buildx" ] && return
    say "fetching Compose and Buildx"
    unpack "$SERVERS_SUITE" "$work/tools" docker-compose docker-buildx
    mkdir -p "$to"
    cp "$work"/tools/usr/libexec/docker/cli-plugins/docker-{compose,buildx} "$to/"
}

have() { docker image inspect "$1" >/dev/null 2>&1; }

# What the files name.
build_arg() { sed -n "s/^ARG $1=//p" Dockerfile; }
image_of() { sed -n "s|^ *image: \($1:[^ ]*\)\$|\1|p" docker-compose.yml | head -n 1; }

# IMAGE TARGET: one server on the shared root.
server() {
    local image=$1 base=tickbridge-test/servers
    have "$image" && return
    if ! have "$base"; then
        root_of "$SERVERS_SUITE" "$work/servers.tar" \
            ca-certificates,nginx,caddy,redis-server,redis-tools,prometheus,curl,wget,procps,netbase
        docker import "$work/servers.tar" "$base" >/dev/null
    fi
    say "making $image"
    DOCKER_BUILDKIT=0 docker build --quiet --tag "$image" --target "$2" --build-arg "BASE=$base" - \
        <"$here/Servers.Dockerfile" >/dev/null
}

# The same packages as in the real one: libraries, certificates, time zones; and a user.
runtime() {
    local image=$1 root="$work/runtime"
    have "$image" && return
    say "making $image"
    rm -rf "$root"
    unpack "$RUNTIME_SUITE" "$root" libc6 libgcc-s1 libstdc++6 ca-certificates tzdata netbase base-files
    ln -s usr/lib usr/lib64 usr/bin usr/sbin "$root/" 2>/dev/null || true
    rm -rf "$root"/usr/share/{doc,locale,lintian,man,bug} "$root"/usr/lib/x86_64-linux-gnu/{gconv,audit}
    mkdir -p "$root"/{tmp,home/nonroot} "$root/etc/ssl/certs"
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    printf '%s\n' 'root:x:0:0:root:/root:/sbin/nologin' \
        'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >"$root/etc/group"
    chmod 1777 "$root/tmp"
    tar -C "$root" --numeric-owner --owner=0 --group=0 -c . |
        docker import --change 'USER 65532' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
            --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' - "$image" >/dev/null
}

# This machine's toolchain on the runtime's suite, with this machine's way to the registry: its certificates, its
# configuration, and what it has fetched already.
rust() {
    local image=$1 base=tickbridge-test/build-essentials context="$work/rust"
    have "$image" && return
    if ! have "$base"; then
        root_of "$RUNTIME_SUITE" "$work/build-essentials.tar" ca-certificates,gcc,libc6-dev
        docker import "$work/build-essentials.tar" "$base" >/dev/null
    fi
    say "making $image"
    local sysroot cargo_home=${CARGO_HOME:-$HOME/.cargo}
    sysroot=$(rustc --print sysroot)
    rm -rf "$context"
    mkdir -p "$context"/usr/local/{rust/bin,cargo/registry} "$context/etc/ssl/certs"
    cp -L "$sysroot"/bin/{cargo,rustc} "$context/usr/local/rust/bin/"
    cp -rL "$sysroot/lib" "$context/usr/local/rust/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$context/etc/ssl/certs/"
    find "$cargo_home" -maxdepth 1 -name 'config*' -exec cp {} "$context/usr/local/cargo/" \;
    cp -r "$cargo_home"/registry/{index,cache} "$context/usr/local/cargo/registry/" || say "cargo has fetched nothing yet"
    DOCKER_BUILDKIT=0 docker build --quiet --tag "$image" --file - "$context" >/dev/null <<FILE
FROM $base
COPY . /
ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
FILE
    rm -rf "$context"
}

if [ "${1:-}" = --tools ]; then
    tools
    exit
fi
server "$(image_of redis)" redis
server "$(image_of nginx)" nginx
server "$(image_of caddy)" caddy
server "$(image_of prom/prometheus)" prometheus
runtime "$(build_arg RUNTIME)"
rust "$(build_arg RUST)"
