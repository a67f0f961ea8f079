#!/bin/bash
# Builds and runs the benchmark: run.sh OUT [designs]. Needs nvcc, cuBLASLt and, for torch's rows, PyTorch.
set -e
cd "$(dirname "$0")"
out=$1
shift
lt=$(find /usr/local /opt /usr/lib -name 'libcublasLt.so*' 2>/dev/null | head -1)
python3 gen.py "${SRC:-../../internal/kernels/src}" "$@"
nvcc -cubin -std=c++17 -gencode=arch=compute_90a,code=sm_90a kernels.cu -o kernels.cubin &
nvcc -O3 -std=c++17 -arch=sm_90 bench.cu -o bench -Xlinker "$lt" -Xlinker -rpath -Xlinker "$(dirname "$lt")"
wait
./bench kernels.cubin "$out/own.tsv" "$@"
python3 linear.py "$(cat rate)" "$out/torch.tsv"
