#!/bin/bash
# Measures whole steps of a llama and prints rows of docs/measured/steps.tsv: run.sh OUT [machine, as 2xH100].
# With PEER=FILE, a torch program that prints figures as main.go takes them, in turns with it for each T:
# python3 -m torch.distributed.run --nproc_per_node=N FILE T. TS and SHAPES narrow what is measured; HOCKET is the command, built for
# this machine (default: built here). READ is GB/s at which a plain kernel reads memory (tools/skinny finds it) for bounds. Each is measured with the products of PRODUCTS: measured, library.
set -e
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
machine=${2:-2xH100}
n=${N:-2}
hocket=${HOCKET:-$out/hocket}
step=${STEP:-$out/step}
[ -x "$hocket" ] || (cd "$here/../.." && go build -o "$hocket" ./cmd/hocket)
[ -x "$step" ] || (cd "$here/.." && go build -o "$step" ./step)
commit=${COMMIT:-$(git -C "$here" rev-parse --short=7 HEAD)}
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1 | cut -d. -f1,2)
date=$(date +%F)
log=step-$commit
of() { # of FLAGS...: rows of what stands on standard input
	"$step" -machine "$machine" -driver "$driver" -commit "$commit" -date "$date" -log "$log" -n "$n" "$@"
}
: >"$out/$log.jsonl"
for shape in ${SHAPES:-8b 70b}; do
	dims=()
	rest="D=128 F=14336 H=4096 KV=8 L=4 M=16384 P=$n Q=32 S=1024"
	if [ "$shape" = 70b ]; then
		dims=(--dim H=8192 --dim Q=64 --dim F=28672)
		rest="D=128 F=28672 H=8192 KV=8 L=4 M=16384 P=$n Q=64 S=1024"
	fi
	for t in ${TS:-1 8 32 128 512 2048 8192}; do
		for products in ${PRODUCTS:-measured library}; do
		: >"$out/one.jsonl"
		if [ -n "$PEER" ] && [ "$shape" = 8b ]; then
			python3 -m torch.distributed.run --nproc_per_node="$n" "$PEER" "$t" >>"$out/one.jsonl" 2>>"$out/$log.txt" || true
		fi
		HOCKET_PRODUCTS=$products "$hocket" bench "$here/${PROGRAM:-llama}.hkt" -m cuda "${dims[@]}" --dim P="$n" --dim T="$t" --rounds "${ROUNDS:-9}" ${READ:+--memory-rate "$READ"} --measure --json >>"$out/one.jsonl"
		cat "$out/one.jsonl" >>"$out/$log.jsonl"
		suffix=
		[ "$products" = measured ] || suffix=$products
		of -products "$suffix" -dims "$rest" <"$out/one.jsonl" | tee -a "$out/steps.tsv"
		of -products "$suffix" -ops 8 <"$out/one.jsonl" >>"$out/ops.tsv"
		done
	done
done
