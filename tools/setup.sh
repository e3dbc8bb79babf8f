# Sourced by tools/test and tools/demo: makes .venv with everything pinned in constraints.txt.
#
# Leaves the interpreter to use in $PYTHON. Everything it says goes to stderr, so that a command's
# stdout stays its own. A second run is instant: a stamp in .venv names what was installed.
#
#   ROSE_PYTHON=path   use this interpreter as it is and install nothing
#   ROSE_VENV=path     where to make the environment (default: .venv in the checkout)

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${ROSE_VENV:-$root/.venv}"
cd "$root"

say() { printf '%s\n' "$*" >&2; }

python_is_supported() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
  local name
  for name in python3.11 python3.12 python3.13 python3 python; do
    if command -v "$name" >/dev/null && python_is_supported "$name"; then
      command -v "$name"
      return
    fi
  done
  say "python: expected version 3.11, 3.12 or 3.13 on PATH, found $(python3 --version 2>&1 || true)." \
    "Install one, or name one: ROSE_PYTHON=/path/to/python."
  return 3
}

make_venv() {
  local base
  base="$(find_python)" || return
  if [[ -e "$venv" && ! -f "$venv/pyvenv.cfg" ]]; then
    say "$venv: expected a virtual environment or nothing, found something else." \
      "Move it away, or name another place: ROSE_VENV=/path."
    return 3
  fi
  say "Making ${venv} with $("$base" --version) ..."
  if ! "$base" -m venv --clear "$venv" >&2; then
    say "venv: expected $base to make one, it failed (above)." \
      "Install its venv module (Debian and Ubuntu: apt-get install python3-venv)."
    return 3
  fi
}

stamp_now() {
  {
    cat pyproject.toml constraints.txt
    printf '%s\n' "$root"
    "$venv/bin/python" -VV
  } | "$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

install() {
  say "Installing rose-rl[demo,export,dev] and its dependencies (the first time takes minutes) ..."
  # constraints.txt names plain torch: where pip's own configuration offers a CPU build of that
  # version, pip takes it (a local version sorts above the plain one); elsewhere it takes the default.
  if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable '.[demo,export,dev]' >&2; then
    say "pip: expected every package of constraints.txt to install, one did not (above)." \
      "Check the network and pip's configuration, then run this again."
    return 3
  fi
}

setup() {
  if [[ -n "${ROSE_PYTHON:-}" ]]; then
    PYTHON="$ROSE_PYTHON"
    return
  fi
  if ! python_is_supported "$venv/bin/python"; then
    make_venv || return
  fi
  PYTHON="$venv/bin/python"
  local stamp
  stamp="$(stamp_now)"
  if [[ "$(cat "$venv/.rose-setup" 2>/dev/null)" != "$stamp" ]]; then
    install || return
    printf '%s\n' "$stamp" >"$venv/.rose-setup"
  fi
}

setup || exit
export PYTHON
export PATH="$(dirname "$PYTHON"):$PATH"
