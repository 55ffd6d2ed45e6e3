#!/bin/sh
# Runs jetson/bench_gpu.py from a source tree, on a machine without network where nothing of edgellm is installed.
#
#   WHEELS=build/wheels CUBINS=build/cubins jetson/run_gpu_bench.sh --out results --minutes 8
#
# WHEELS: a folder of wheels, for packages that PYTHON lacks (what they are: see bench_gpu.py); they are unpacked, not
# installed. CUBINS: binaries made by `bench_gpu --compile`; without it kernels are compiled by the NVRTC that is there.
# Everything else goes to bench_gpu. Nothing is written into the source tree.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/path/edgellm"
# The folders beside edgellm/ are installed into it; see package-dir in pyproject.toml.
for entry in "$here"/edgellm/* "$here"/server "$here"/kernels "$here"/engines "$here"/mlperf "$here"/jetson; do
  ln -s "$entry" "$scratch/path/edgellm/"
done
if [ -n "${WHEELS:-}" ]; then
  for wheel in "$WHEELS"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$scratch/path"
  done
fi
export PYTHONPATH="$scratch/path${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONSAFEPATH=1  # or the edgellm of the current folder comes first, which lacks what is beside it
export XDG_CACHE_HOME="${XDG_CACHE_HOME:-$scratch/cache}"
if [ -n "${CUBINS:-}" ]; then
  cubins=$(cd "$CUBINS" && pwd)
  set -- --cubins "$cubins" "$@"
fi
"$python" -m edgellm.jetson.bench_gpu "$@"
