#!/bin/bash
# Layers of 8-bit operands on two GPUs: hocket and torch, alternately in each round.
#
#   bash tools/peers/fp8.sh HOCKET FOLDER
#
# HOCKET is the command, FOLDER gets the reports. The last lines of the output are a table of the medians of three
# rounds in microseconds, also in FOLDER/fp8.tsv: how=alone is the GEMM alone, and ratio is the time divided by that of
# the faster GEMM alone of hocket and torch. It takes about two minutes. DTYPES lists other types, such as
# fp8-row, whose products torch adds without use_fast_accum=True. MACHINE=cpu, PEERS=no and SHAPES=... test the
# script without GPUs. NVLink multicast stays off.
set -u
hocket=$1 out=$2
machine=${MACHINE:-cuda} rounds=${ROUNDS:-3} limit=${LIMIT:-150}
shapes=${SHAPES:-"8192x28672x8192 2048x28672x8192 2048x8192x28672"}
dtypes=${DTYPES:-fp8-block fp8-row-fast}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out/turns"
began=$SECONDS
turns=() peer=
if [ "${PEERS:-yes}" = yes ]; then
    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
    python3 -m torch.distributed.run --nproc_per_node=2 "$here/overlap.py" --turns "$out/turns" \
        >"$out/peers.log" 2>&1 &
    peer=$!
    trap 'kill $peer 2>/dev/null' EXIT
    turns=(--turns "$out/turns")
fi
flags=()
for s in $shapes; do flags+=(--shape "$s"); done
for dtype in $dtypes; do
    for op in ag-gemm gemm-rs; do
        left=$((limit - (SECONDS - began)))
        if [ "$left" -lt 5 ]; then
            echo "$op $dtype: no time left"
            continue
        fi
        timeout "$left" "$hocket" bench "$op" -m "$machine" -n 2 --dtype "$dtype" --strategy exchange \
            --rounds "$rounds" --json "${flags[@]}" "${turns[@]}" >"$out/$op.$dtype.json" 2>"$out/$op.$dtype.log" ||
            { echo "$op $dtype failed:"; tail -5 "$out/$op.$dtype.log" "$out/$op.$dtype.json"; }
        echo "$op $dtype: $((SECONDS - began)) s since the start"
    done
done
python3 - "$out" <<'TABLE' | tee "$out/fp8.tsv"
import json
import pathlib
import sys

print("op", "dtype", "shape", "who", "how", "us", "spread", "ratio", sep="\t")
for op in "ag-gemm", "gemm-rs":
    for dtype in "fp8-block", "fp8-row-fast", "fp8-row", "fp8-tensor-fast", "fp8-tensor":
        try:
            bench = json.loads((pathlib.Path(sys.argv[1]) / f"{op}.{dtype}.json").read_text())["bench"]
        except (OSError, ValueError, KeyError):
            continue
        for layer in bench["layers"]:
            shape = "{m}x{n}x{k}".format(**layer)
            rows = [("hocket", "alone", layer["gemm_us"]["median"], layer["gemm_us"]["spread"])]
            for s in layer["strategies"]:
                for how, key in ("", "us"), (", graph", "graph_us"):
                    if s.get(key) and not s.get("refused"):
                        rows.append(("hocket", s["strategy"] + how, s[key]["median"], s[key]["spread"]))
            for p in bench.get("peers") or []:
                if p["shape"] == shape:
                    how = "alone" if p["name"] == "GEMM alone" else p["name"]
                    rows.append(("torch", how, p["us"], p.get("spread_us", 0)))
            alone = min(us for _, how, us, _ in rows if how == "alone")
            for who, how, us, spread in rows:
                print(op, dtype, shape, who, how, f"{us:.1f}", f"{spread:.1f}", f"{us / alone:.3f}", sep="\t")
TABLE
