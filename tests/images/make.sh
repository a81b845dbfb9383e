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

# SUITE FOLDER HOW PACKAGE…: unpacks packages without running any of their scripts; HOW is alone, or whole, with all that
# they depend on. The mirror may be a copy of an earlier day, whose date of expiry has passed; its signature is checked
# all the same.
unpack() {
    local suite=$1 root=$2 how=$3 apt="$work/apt-$1" debs="$2.debs" deb
    shift 3
    rm -rf "$root" "$debs"
    mkdir -p "$apt"/{lists/partial,none} "$debs/partial" "$root"
    touch "$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $suite main" >"$apt/sources.list"
    local options=(-q -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
        -o "Dir::Cache::archives=$debs" -o "Dir::Etc::sourcelist=$apt/sources.list" -o "Dir::Etc::sourceparts=$apt/none"
        -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none -o Acquire::Retries=3)
    # Once for all that this suite gives.
    [ -n "$(find "$apt" -name updated -mmin -60)" ] || apt-get "${options[@]}" update >&2
    touch "$apt/updated"
    if [ "$how" = whole ]; then
        apt-get "${options[@]}" install --yes --download-only --no-install-recommends base-files "$@" >&2
    else
        (cd "$debs" && apt-get "${options[@]}" download "$@" >&2)
    fi
    # The links from /bin and /lib to /usr, without which a file could come to lie beside one.
    ln -s usr/bin usr/lib usr/lib64 usr/sbin "$root/"
    for deb in "$debs"/*.deb; do
        dpkg-deb --extract "$deb" "$root"
    done
    rm -rf "$debs" "$root"/usr/share/{doc,info,lintian,locale,man}
}

# ROOT IMAGE OPTION…: a folder as an image. It goes straight to the engine: writing it once is slow enough.
import() {
    local root=$1 image=$2
    shift 2
    tar -C "$root" --numeric-owner --owner=0 --group=0 -c . | docker import "$@" - "$image" >/dev/null
    rm -rf "$root"
}

# Docker's plug-ins, for machines whose own Compose is the old one.
tools() {
    local to="$work/docker/cli-plugins"
    [ -x "$to/docker-compose" ] && [ -x "$to/docker-buildx" ] && return
    say "fetching Compose and Buildx"
    unpack "$SERVERS_SUITE" "$work/tools" alone docker-compose docker-buildx
    mkdir -p "$to"
    mv "$work"/tools/usr/libexec/docker/cli-plugins/docker-{compose,buildx} "$to/"
    rm -r "$work/tools"
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
        say "making $base"
        unpack "$SERVERS_SUITE" "$work/servers" whole base-passwd bash caddy coreutils curl dash grep libc-bin \
            mawk netbase nginx procps prometheus redis-server redis-tools sed wget
        # What packages' scripts would have made.
        cp "$work/servers/usr/share/base-passwd/passwd.master" "$work/servers/etc/passwd"
        cp "$work/servers/usr/share/base-passwd/group.master" "$work/servers/etc/group"
        ln -s mawk "$work/servers/usr/bin/awk"
        import "$work/servers" "$base"
    fi
    say "making $image"
    docker build --quiet --tag "$image" --target "$2" --build-arg "BASE=$base" - \
        <"$here/Servers.Dockerfile" >/dev/null
}

# The same packages as in the real one: libraries, certificates, time zones; and a user.
runtime() {
    local image=$1 root="$work/runtime"
    have "$image" && return
    say "making $image"
    unpack "$RUNTIME_SUITE" "$root" alone libc6 libgcc-s1 libstdc++6 ca-certificates tzdata netbase base-files
    rm -rf "$root"/usr/lib/x86_64-linux-gnu/{gconv,audit}
    mkdir -p "$root"/{home/nonroot,etc/ssl/certs}
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    printf '%s\n' 'root:x:0:0:root:/root:/sbin/nologin' \
        'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >"$root/etc/group"
    import "$root" "$image" --change 'USER 65532' \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt'
}

# This machine's toolchain on the runtime's suite, with this machine's way to the registry: its certificates, its
# configuration, and what it has fetched already.
rust() {
    local image=$1 root="$work/rust" sysroot cargo_home=${CARGO_HOME:-$HOME/.cargo}
    have "$image" && return
    say "making $image"
    unpack "$RUNTIME_SUITE" "$root" whole coreutils dash gcc libc6-dev
    ln -s gcc "$root/usr/bin/cc"
    mkdir -p "$root"/{usr/local/rust/bin,usr/local/cargo/registry,etc/ssl/certs}
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    sysroot=$(rustc --print sysroot)
    cp -L "$sysroot"/bin/{cargo,rustc} "$root/usr/local/rust/bin/"
    cp -rL "$sysroot/lib" "$root/usr/local/rust/"
    find "$cargo_home" -maxdepth 1 -name 'config*' -exec cp {} "$root/usr/local/cargo/" \;
    cp -r "$cargo_home"/registry/{index,cache} "$root/usr/local/cargo/registry/" || say "cargo has fetched nothing yet"
    import "$root" "$image" --change 'ENV CARGO_HOME=/usr/local/cargo' \
        --change 'ENV PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
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
