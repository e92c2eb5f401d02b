# shellcheck shell=bash
# One environment in .venv, created by the first call and reused by later ones. Sourced by install.sh, local.sh,
# test.sh and lint.sh, which call `prepare`, and by the SLURM scripts.
#
#   PYTHON=/path/to/python3.12    the Python to use instead of the first one found
#   DDPBENCH_VENV=/path           another location of the environment
#   DDPBENCH_DRIVER=550           the NVIDIA driver of the GPU nodes, if this machine has none or another
#   launch/site.sh                sourced first if it exists: `module load ...`, export NCCL_SOCKET_IFNAME=...

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P) # resolved, since the environment belongs to one clone

# shellcheck source=/dev/null
[ ! -f "$root/launch/site.sh" ] || . "$root/launch/site.sh"
venv=${DDPBENCH_VENV:-$root/.venv}

say() { printf 'setup: %s\n' "$*" >&2; }

refuse() {
  printf 'ddpbench: error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 2
}

# masked WORD...: a command for a log, each word after a space, with *** for secrets as in records (ddpbench/record/text.py).
masked() {
  local word name quoted after_secret_flag=
  local secret='(^|[-_.])((secret|password|passwd|passphrase|credentials?)([-_.0-9]|$)|(token|key|auth|pass|apikey|authtoken|accesstoken)[-_.0-9]*$)'
  local token='(^|[^[:alnum:]_-])((hf|gh[opsur]|github_pat|glpat|sk|sk_live|pk_live|xox[abprs]|npm|pypi|dckr_pat|dop_v1|lsv2_pt)[_-]'
  token+='[[:alnum:]_-]{16,255}|(AKIA|ASIA)[0-9A-Z]{16}|AIza[[:alnum:]_-]{35}|eyJ[[:alnum:]_-]{8,}[.][[:alnum:]_-]{8,}[.][[:alnum:]_-]*)'
  for word in "$@"; do
    while [[ $word =~ $token ]]; do word=${word/"${BASH_REMATCH[2]}"/***}; done
    name=${word%%=*}
    if [ -n "$after_secret_flag" ] && [[ $word != --* ]]; then
      word='***'
    elif [[ $word == *=* && ${name,,} =~ $secret ]]; then
      word="$name=***"
    elif [[ $word =~ ^(.*://)[^/[:space:]]+@(.*)$ ]]; then
      word="${BASH_REMATCH[1]}***@${BASH_REMATCH[2]}"
    fi
    if [[ $word == -* && $word != *=* && ${name,,} =~ $secret ]]; then after_secret_flag=1; else after_secret_flag=; fi
    printf -v quoted '%q' "$word"
    printf ' %s' "${quoted//'\*\*\*'/***}"
  done
}

# The first Python of at least 3.10. An active environment, conda or loaded module comes first: it may contain torch.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  refuse "no Python 3.10 or newer found" "as root: apt-get install -y python3 python3-venv; or set PYTHON=/path/to/python3"
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

# The major version of the NVIDIA driver, or 0 without one. DDPBENCH_DRIVER overrides it.
driver_major() {
  local version=${DDPBENCH_DRIVER:-}
  if [ -z "$version" ] && command -v nvidia-smi >/dev/null; then
    version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
  fi
  version=${version%%.*}
  case $version in '' | *[!0-9]*) echo 0 ;; *) echo "$version" ;; esac
}

# choose_dali CUDA DRIVER MACHINE: the extra with the matching DALI, or nothing. CUDA is the version that torch was built for,
# empty if torch is not installed yet or is a CPU build: then the driver decides (CUDA 13 needs 580). DALI's CPU decoder needs neither.
choose_dali() {
  [ "$3" = "Linux x86_64" ] || return 0
  case $1 in
    13*) echo dali-cuda13 ;;
    12*) echo dali-cuda12 ;;
    '') if [ "$2" -eq 0 ] || [ "$2" -ge 580 ]; then echo dali-cuda13; else echo dali-cuda12; fi ;;
  esac
}

# constrain PYTHON FILE DRIVER: prints the installed torch as shell assignments, and writes pip constraints to FILE. Without torch,
# and with a driver too old for CUDA 13, FILE requires torch below 2.11, the first release built for CUDA 13.
constrain() {
  "$1" "$root/launch/present.py" "$2"
  if [ ! -s "$2" ] && [ "$3" -gt 0 ] && [ "$3" -lt 580 ]; then
    echo 'torch<2.11' >"$2"
  fi
}

# make_venv PYTHON [FLAG...]: creates an environment with pip, even if Debian's python3-venv (ensurepip) is missing.
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
    refuse "this Python cannot create an environment: python3-venv is missing" "as root: apt-get install -y python3-venv"
  fi
}

# Makes the torch of another active environment visible: --system-site-packages only shows the packages of the base Python.
show_present_torch() {
  if [ -n "$1" ] && ! "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    echo "$1" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/present-torch.pth"
  fi
}

# Shows progress on a terminal only. Writes to stderr, since stdout belongs to the run.
pip_install() {
  local flags=(--disable-pip-version-check --constraint "$venv/constraints.txt")
  [ -t 2 ] || flags+=(--quiet)
  "$venv/bin/python" -m pip install "${flags[@]}" "$@" >&2
}

# install_into_venv [EXTRA]: installs the extras train, plot and EXTRA. Fails unless everything but DALI installs. Without DALI, the run
# itself reports its two missing loaders.
install_into_venv() {
  local python driver dali facts present_torch='' present_cuda='' present_site=''
  python=$(find_python)
  driver=$(driver_major)
  facts=$(constrain "$python" "$venv/constraints.txt" "$driver")
  eval "$facts"
  dali=$(choose_dali "$present_cuda" "$driver" "$(uname -sm)")
  if [ -n "$present_torch" ]; then
    say "keeping the installed torch $present_torch"
  else
    say "installing into $venv; this takes minutes, since torch and its CUDA libraries are several GB"
    if [ "$driver" -eq 0 ] && command -v sbatch >/dev/null; then
      say "no NVIDIA driver found: torch will need driver 580 or newer on the GPU nodes; for an older driver, set DDPBENCH_DRIVER=550"
    fi
  fi
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv "$python" ${present_torch:+--system-site-packages}
  fi
  show_present_torch "$present_site"
  pip_install --editable "${root}[train,plot${1:+,$1}]"
  if [ -n "$dali" ] && ! pip_install --editable "${root}[$dali]"; then
    say "cannot install NVIDIA DALI; only the dali loaders need it"
  fi
  if [ -z "${DDPBENCH_DRIVER:-}" ] && [ "$driver" -gt 0 ] && ! "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    say "warning: torch cannot use the installed NVIDIA driver; install a torch that supports it, then remove $venv"
  fi
}

# prepare_frameworks: adds the extra frameworks to a current environment, and keeps the torch that is in it.
prepare_frameworks() {
  [ "$(venv_state frameworks)" != current ] || return 0
  (
    flock 9 # another job may be installing
    "$venv/bin/python" "$root/launch/present.py" "$venv/present-torch.txt" >/dev/null
    pip_install --constraint "$venv/present-torch.txt" --editable "${root}[frameworks]"
    current_stamp >"$venv/installed-frameworks"
  ) 9>"$venv/lock"
}

# Refuses the environment of another clone, which installing would redirect to this one. That of a clone that was moved is not refused.
require_own_environment() {
  local owner=''
  [ ! -f "$venv/installed" ] || owner=$(<"$venv/installed")
  owner=${owner%  -} # the stamp is 'CLONE DIGEST  -'
  owner=${owner% *}
  if [ -f "$owner/launch/setup.sh" ] && ! [ "$owner" -ef "$root" ]; then
    refuse "the environment in $venv belongs to the clone in $owner" "set DDPBENCH_VENV to another folder; to share its torch: PYTHON=$venv/bin/python DDPBENCH_VENV=~/venv bash launch/install.sh"
  fi
}

# Prints the stamp of an up-to-date environment: the clone and the digest of its pyproject.toml.
current_stamp() {
  echo "$root $(sha256sum <"$root/pyproject.toml")"
}

# venv_state [EXTRA]: prints missing, stale (created from another pyproject.toml, or before the clone was moved) or current.
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

# prepare [EXTRA]: creates or updates the environment unless it is current.
prepare() {
  require_own_environment
  [ "$(venv_state "${1:-}")" != current ] || return 0
  mkdir -p "$venv"
  (
    flock 9 # another job may be installing
    require_own_environment
    [ "$(venv_state "${1:-}")" != current ] || exit 0
    install_into_venv "${1:-}"
    current_stamp | tee "$venv/installed${1:+-$1}" >"$venv/installed"
  ) 9>"$venv/lock"
}
