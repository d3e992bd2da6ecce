#!/usr/bin/env bash
# Everything that needs a CUDA device, in one command; a table last, gpu.json and gpu.txt in OUT (build/gpu).
#
#   tests/gpu/run.sh [--dry-run] [OUT]
#
# Planned for less than 8 minutes on one H200-class device, which has not been measured: each phase is killed at a limit, and the limits
# add up to 470 s (tests/gpu/phases.py). What a phase leaves of its own the later ones may take: how long a process needs to load torch and
# all of CUDA's code differs more from machine to machine than what it then does.
# Exit code 0: all phases passed, or there is no device, torch or triton and nothing was run. 1: something failed.
# --dry-run: the same programs on a fake device with interpreted kernels; it says nothing about a device, and measures nothing.
# PYTHON: the interpreter, python3 if not set.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/tests/ns${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32
unset CUDA_LAUNCH_BLOCKING TRITON_INTERPRET TORCH_ALLOW_TF32_CUBLAS_OVERRIDE

dry=
if [ "${1:-}" = --dry-run ]; then
    dry=--dry-run
    shift
fi
out=${1:-build/gpu}

reason=$(timeout -k 5 180 "$python" tests/gpu/run_phase.py --missing ${dry:+"$dry"})
case $? in
    0) ;;
    3)
        echo "tests/gpu: nothing was run, all phases are skipped: $reason"
        exit 0
        ;;
    *)
        echo "tests/gpu: $python could not say what is missing" >&2
        exit 1
        ;;
esac
mkdir -p "$out" || exit 1
parts=$(mktemp -d) || exit 1
trap 'rm -rf "$parts"' EXIT

left=0
while read -r phase limit; do
    began=$SECONDS limit=$((limit + left))
    timeout -k 10 "$limit" "$python" tests/gpu/run_phase.py "$phase" --out "$parts/$phase.json" ${dry:+"$dry"} </dev/null
    echo "$? $limit" >"$parts/$phase.code"
    left=$((limit - (SECONDS - began)))
    left=$((left > 0 ? left : 0))
done < <("$python" tests/gpu/phases.py ${dry:+"$dry"})
"$python" tests/gpu/summary.py "$parts" "$out"
