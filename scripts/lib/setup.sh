# Shared by the commands in scripts/: packages, build, private network namespace. To be sourced.

say() { printf '%s\n' "$*" >&2; }
fail() { say "$(basename "$0"): $*"; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else fail "this needs root: $*"
    fi
}

# Installs the Debian packages that are missing, without starting the services they bring.
need_packages() {
    local missing=() package policy=/usr/sbin/policy-rc.d status=0
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing: ${missing[*]}"
    ( # with a trap of its own: an interrupted installation must not leave a rule that no service may start
        if [ ! -e $policy ]; then
            trap 'as_root rm -f $policy' EXIT
            printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
            as_root chmod 755 $policy
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
            --no-install-recommends install "${missing[@]}" >&2 ||
            { as_root apt-get -q update >&2 &&
              as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
                --no-install-recommends install "${missing[@]}" >&2; }
    ) || status=1
    [ $status = 0 ] || fail "could not install: ${missing[*]}"
}

# Configures the build directory when it is not there, then brings the named targets up to date.
need_build() {
    local root=$1 build=$2
    shift 2
    if [ ! -e "$build/build.ninja" ]; then
        "$root/scripts/deps" build >&2
        need_packages catch2 # asked for when the tests are configured, though they are not built here
        say "configuring $build"
        meson setup "$build" "$root" >&2 || fail "meson setup failed"
    fi
    say "building in $build: $*"
    ninja -C "$build" "$@" >&2 || fail "the build failed"
}

# Replaces the shell by a command in a network namespace of its own, so that no port is ever taken.
enter_namespace() {
    if [ "$(id -u)" = 0 ]; then exec unshare --net -- "$@"
    else exec unshare --map-root-user --net -- "$@"
    fi
}

# What scripts/test compiles its release build with, and the packages that it tests: the flags of Debian's
# packages, so that most of these is in the compiler's cache by then. A debugger finds lines and names: more
# takes a quarter of the compiler's time. Each target says itself whether it is fortified; tests are not.
tested_flags=(DEB_CXXFLAGS_APPEND='-Werror -g1' DEB_CPPFLAGS_STRIP=-D_FORTIFY_SOURCE=2)

# Compilers and model checkers touch some hundred megabytes once each; up to a third of their time is for page
# faults. Where /sys/kernel/mm/transparent_hugepage/enabled is madvise, as on Debian, large pages, of which a
# tenth as many are needed, are for who asks: the C library does for its heap, and a library that is
# preloaded for what g++ maps itself.
# make_large_pages DIR: makes that library in DIR, if it can, and sets large_pages, words for env(1).
make_large_pages() {
    large_pages=(GLIBC_TUNABLES=glibc.malloc.hugetlb=1)
    if [ -e "$1/large_pages.so" ] || cc -O2 -shared -fPIC -o "$1/large_pages.so" "$(dirname "${BASH_SOURCE[0]}")/large_pages.c" >&2; then
        large_pages+=("LD_PRELOAD=$1/large_pages.so")
    fi
}
