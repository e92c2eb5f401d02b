# shellcheck shell=bash
# One environment in .venv, made by the first call and reused by every later one. Sourced by install.sh, local.sh,
# test.sh and lint.sh, which call `prepare`, and by the SLURM scripts.
#
#   PYTHON=/path/to/python3.12    the Python to build on, where the first one found is not the right one
#   DDPBENCH_VENV=/path           another place for the environment
#   DDPBENCH_DRIVER=550           the NVIDIA driver of the GPU nodes, if this machine has none or another
#   launch/site.sh                sourced first where it exists: `module load ...`, export NCCL_SOCKET_IFNAME=...

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P) # as sbatch names it: the environment is of one clone, by its path

# shellcheck source=/dev/null
[ ! -f "$root/launch/site.sh" ] || . "$root/launch/site.sh"
venv=${DDPBENCH_VENV:-$root/.venv}

say() { printf 'setup: %s\n' "$*" >&2; }

refuse() {
  printf 'ddpbench: error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 2
}

# The first Python of at least 3.11. An active environment, a conda or a loaded module comes first: it may hold torch.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  refuse "no Python of at least 3.11 was found" "as root: apt-get install -y python3 python3-venv; or name one with PYTHON=/path/to/python3"
}

# GPUs that this job may use.
count_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -cE '^ *([0-9]|GPU-|MIG-)' || true
  elif command -v nvidia-smi >/dev/null; then
    nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true
  else
    echo 0
  fi
}

# Two ranks on the processor share its cores; torchrun would give each of them a single thread.
share_cores() {
  local cores
  cores=$(nproc)
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))}
}

# The major version of the NVIDIA driver, or 0 without one. DDPBENCH_DRIVER overrides it.
driver_major() {
  local version=${DDPBENCH_DRIVER:-}
  if [ -z "$version" ] && command -v nvidia-smi >/dev/null; then
    version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
  fi
  version=${version%%.*}
  case $version in '' | *[!0-9]*) echo 0 ;; *) echo "$version" ;; esac
}

# choose_dali CUDA DRIVER MACHINE: the extra whose DALI fits, or nothing. CUDA is what torch was built for, empty where torch
# is still to come or is a CPU build: then the driver decides (CUDA 13 needs 580), and DALI's CPU decoder needs neither.
choose_dali() {
  [ "$3" = "Linux x86_64" ] || return 0
  case $1 in
    13*) echo dali-cuda13 ;;
    12*) echo dali-cuda12 ;;
    '') if [ "$2" -eq 0 ] || [ "$2" -ge 580 ]; then echo dali-cuda13; else echo dali-cuda12; fi ;;
  esac
}

# constrain PYTHON FILE DRIVER: facts about the torch that is there, as shell assignments, and in FILE what pip may not change.
# Where there is none and the driver is too old for CUDA 13, FILE holds torch below 2.11, the first release built for it.
constrain() {
  "$1" "$root/launch/present.py" "$2"
  if [ ! -s "$2" ] && [ "$3" -gt 0 ] && [ "$3" -lt 580 ]; then
    echo 'torch<2.11' >"$2"
  fi
}

# make_venv PYTHON [FLAG...]: an environment with pip in it, also where Debian has split ensurepip off into python3-venv.
make_venv() {
  local python=$1
  shift
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$@" "$venv"
  elif "$python" -m virtualenv --version >/dev/null 2>&1; then
    "$python" -m virtualenv --quiet "$@" "$venv"
  elif "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --without-pip "$@" "$venv"
    "$python" -m pip --python "$venv/bin/python" install --quiet --ignore-installed pip
  else
    refuse "this Python cannot make an environment: python3-venv is missing" "as root: apt-get install -y python3-venv"
  fi
}

# Lets the environment see the torch of another one that is active: --system-site-packages shows only the Python's own.
show_present_torch() {
  if [ -n "$1" ] && ! "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    echo "$1" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/present-torch.pth"
  fi
}

# Progress on a terminal, silence in a log; stdout stays free for what the run prints.
pip_install() {
  local flags=(--disable-pip-version-check --constraint "$venv/constraints.txt")
  [ -t 2 ] || flags+=(--quiet)
  "$venv/bin/python" -m pip install "${flags[@]}" "$@" >&2
}

# install_into_venv EXTRA: everything but DALI must install; without DALI two loaders are missing, which the run can say itself.
install_into_venv() {
  local python driver dali facts present_torch='' present_cuda='' present_site=''
  python=$(find_python)
  driver=$(driver_major)
  facts=$(constrain "$python" "$venv/constraints.txt" "$driver")
  eval "$facts"
  dali=$(choose_dali "$present_cuda" "$driver" "$(uname -sm)")
  if [ -n "$present_torch" ]; then
    say "torch $present_torch is here already and stays as it is"
  else
    say "installing into $venv; torch and its CUDA libraries are several GB, so this first call takes minutes"
    if [ "$driver" -eq 0 ] && command -v sbatch >/dev/null; then
      say "no NVIDIA driver here, so torch will need driver 580 or newer on the GPU nodes; for an older one set DDPBENCH_DRIVER=550"
    fi
  fi
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv "$python" ${present_torch:+--system-site-packages}
  fi
  show_present_torch "$present_site"
  pip_install --editable "$root${1:+[$1]}"
  if [ -n "$dali" ] && ! pip_install --editable "${root}[$dali]"; then
    say "NVIDIA DALI did not install; everything but the dali loaders works without it"
  fi
  if [ -z "${DDPBENCH_DRIVER:-}" ] && [ "$driver" -gt 0 ] && ! "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    say "warning: there is an NVIDIA driver, but this torch cannot use it; install a torch that fits the driver, then remove $venv"
  fi
}

# The content of the stamp of a current environment.
current_stamp() {
  echo "$root $(sha256sum <"$root/pyproject.toml")"
}

# venv_state [EXTRA]: prints missing, stale (of another pyproject.toml or clone) or current.
venv_state() {
  local stamp=$venv/installed${1:+-$1}
  if [ ! -f "$stamp" ]; then
    echo missing
  elif [ "$(<"$stamp")" != "$(current_stamp)" ]; then
    echo stale
  else
    echo current
  fi
}

# prepare [EXTRA]: makes the environment unless it is current.
prepare() {
  [ "$(venv_state "${1:-}")" != current ] || return 0
  mkdir -p "$venv"
  (
    flock 9 # another job may be at it
    [ "$(venv_state "${1:-}")" != current ] || exit 0
    install_into_venv "${1:-}"
    current_stamp | tee "$venv/installed${1:+-$1}" >"$venv/installed"
  ) 9>"$venv/lock"
}
