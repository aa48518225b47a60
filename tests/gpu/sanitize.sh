#!/usr/bin/env bash
# Runs a very small server under NVIDIA's compute-sanitizer, which makes it many times slower.
#
#   tests/gpu/sanitize.sh [memcheck|racecheck|initcheck|synccheck] [sanitize-graphs|sanitize-eager]
#
# memcheck finds reads and writes outside of allocations; racecheck finds hazards in the shared
# memory of a kernel. Neither sees a missing wait between two streams: test_disturbed_steps.py does.
# With sanitize-eager every tensor is an allocation of its own, so that memcheck also finds what
# PyTorch's caching allocator would hide; graphs cannot be captured that way.
set -euo pipefail
tool=${1:-memcheck}
server=${2:-sanitize-graphs}
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
[[ -x $sanitizer ]] || { echo "compute-sanitizer not found: set CUDA_HOME" >&2; exit 1; }

export TORCHINDUCTOR_COMPILE_THREADS=1 CUDA_DEVICE_MAX_CONNECTIONS=8
export PYTHONPATH="$tests/gpu:$tests/engine${PYTHONPATH:+:$PYTHONPATH}"
if [[ $server == sanitize-eager ]]; then
    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
fi
# Only this process: the compilers that it starts have no GPU code to check.
"$sanitizer" --tool "$tool" --target-processes application-only --error-exitcode 99 \
    --print-limit 20 \
    "$(command -v python3)" -m scenarios.serve "$server" --port "${PORT:-29571}" \
    --out "$out/report.json"
python3 - "$out/report.json" <<'PYTHON'
import json, sys
run = json.load(open(sys.argv[1]))["runs"]["flip-1"]
print("steps", [(step["mode"], step["requests"], step["graph"]) for step in run["steps"]])
PYTHON
