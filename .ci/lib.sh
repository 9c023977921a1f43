# Shared by the scripts in this directory; sourced, never run. With --help a script prints its head.
if [ "${1:-}" = --help ]; then
    awk 'NR > 1 && !sub(/^# ?/, "") { exit } NR > 1' "$0"
    exit
fi

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
# The newest release with a wheel: not every release of PyArrow has one for each CPython.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 PIP_PREFER_BINARY=1

step() { printf '\n== %s (at %d s)\n' "$1" "$SECONDS"; }

# copy_tree DIRECTORY: what git has or would take of the checkout, as a clone of one commit.
copy_tree() {
    mkdir -p "$1"
    git -C "$top" ls-files -z --cached --others --exclude-standard |
        tar -C "$top" --null --ignore-failed-read --files-from=- -cf - | tar -C "$1" -xf -
    git -C "$1" init -q
    git -C "$1" add -A
    git -C "$1" -c user.name=ci -c user.email=ci@localhost commit -q -m tree
}

# install_packages PACKAGE...: Debian's packages, unless they are there.
install_packages() {
    local package missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${missing[@]}" >/dev/null
    fi
}

# readme_command NAME [PAGE]: the commands or program in the code block that follows the marker "<!-- NAME -->" in a page, README.md by default.
readme_command() {
    awk -v marker="<!-- $1 -->" '
        $0 == marker { found = 1; next }
        found && /^```/ { if (inside) exit; inside = 1; next }
        inside' "$top/${2:-README.md}"
}

# provide_spin: Spin on PATH, from Debian's package unless it is installed. Needs no root.
provide_spin() {
    command -v spin >/dev/null && return
    local lists=$work/apt options
    mkdir -p "$lists/partial" "$work/spin"
    options="-qq -oDir::State::Lists=$lists -oAPT::Sandbox::User= -oDebug::NoLocking=1"
    (cd "$work/spin" && apt-get $options update && apt-get $options download spin && dpkg -x spin_*.deb .) || return
    export PATH=$PATH:$work/spin/usr/bin
    command -v spin >/dev/null
}

# Every CPython that fastiter is for (PYTHONS="3.12 3.14" takes a part), and the oldest NumPy that each has a wheel of.
versions=${PYTHONS:-3.10 3.11 3.12 3.13 3.13t 3.14 3.14t 3.15 3.15t}
declare -A oldest_numpy=(
    [3.10]=1.23.5 [3.11]=1.23.5 [3.12]=1.26.0 [3.13]=2.1.0 [3.13t]=2.1.0 [3.14]=2.3.2 [3.14t]=2.3.2
)
built_pythons=${BUILT_PYTHONS:-$HOME/.cache/fastiter/pythons}

# find_python VERSION: that CPython, on PATH, of .ci/build_python or, where PYENV_ROOT is set, among pyenv's; fails if there is none.
find_python() {
    local candidate
    for candidate in "python$1" "$built_pythons/$1/bin/python$1" ${PYENV_ROOT:+"$PYENV_ROOT/versions/$1".*/bin/"python$1"}; do
        "$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null && return
    done
    return 1
}
