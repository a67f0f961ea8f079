"""What an eager call of a program costs its caller, next to its replay in a CUDA graph of torch's.

    python3 tools/peers/eager.py [--rows 512] [--width 4096] [--ffn 14336]
    hocket launch -n 2 -- python3 tools/peers/eager.py

A row is a way to call: the median of single calls that are each waited for, of calls that are only made (host), and of a
chain of calls, in microseconds. Then where the time of making calls goes, by function. HOCKET_RANKS_PER_GPU=2 has both
processes share a GPU, which they use by turns: only host times mean something then.
"""

import argparse
import cProfile
import os
import pstats
import statistics
import time

import torch

import hocket

TEXT = """dim T
dim H
dim F
dim P = 1
mesh tp[P]
func mlp(%x: bf16[T, H], %w1: bf16[F/tp, H], %w2: bf16[H, F/tp]) -> bf16[T, H] {
  %h = linear %x, %w1
  %g = silu %h
  %y = linear %g, %w2
  return %y
}
"""


def main():
    p = argparse.ArgumentParser()
    for name, value in (("rows", 512), ("width", 4096), ("ffn", 14336), ("rounds", 25), ("chain", 20)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    rank, ranks = int(os.environ.get("HOCKET_RANK", 0)), int(os.environ.get("HOCKET_WORLD_SIZE", 1))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    hocket.init("cuda")
    new = lambda *shape: (torch.randn(*shape, device="cuda") / 64).bfloat16()
    torch.manual_seed(1)
    x = new(a.rows, a.width)
    w1, w2 = new(a.ffn // ranks, a.width), new(a.width, a.ffn // ranks)
    dims = {"T": a.rows, "H": a.width, "F": a.ffn, "P": ranks}
    ways, results = {}, {}
    for strategy in ("sequential", "exchange")[:ranks]:
        for way in ("one by one", "graph=True", "torch's graph"):
            m = hocket.load(TEXT, dims=dims, strategy=strategy, graph=way == "graph=True", weights={"w1": w1, "w2": w2})
            ways[f"{strategy}, {way}"] = lambda m=m: m(x)
            for _ in range(4):
                results[f"{strategy}, {way}"] = m(x)
            torch.cuda.synchronize()
            if way != "torch's graph":
                continue
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                kept = m(x)
            g.replay()
            results[f"{strategy}, {way}"] = kept
            ways[f"{strategy}, {way}"] = lambda g=g, kept=kept, m=m: g.replay()
    first = next(iter(results.values())).float()
    for name, y in results.items():
        error = ((y.float() - first).abs().max() / first.abs().max()).item()
        if rank == 0:
            print(f"{name}: error {error:.1e} of sequential, one by one", flush=True)
        if not error < 0.1:  # also NaN; rounding to bf16 is far below
            raise SystemExit(f"{name}: the results are wrong")
    all = {name: [] for name in ways}
    for _ in range(a.rounds):
        for name, call in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            made = time.perf_counter()
            torch.cuda.synchronize()
            single = time.perf_counter()
            for _ in range(a.chain):
                call()
            torch.cuda.synchronize()
            end = time.perf_counter()
            all[name].append([1e6 * t for t in (single - begin, made - begin, (end - single) / a.chain)])
    if rank == 0:
        for name, rows in all.items():
            single, host, chain = (statistics.median(c) for c in zip(*rows))
            print(f"{a.rows} rows\t{name}\tsingle {single:.0f} µs\thost {host:.0f}\tchain {chain:.0f}", flush=True)
    for way in ("one by one", "graph=True"):
        call, profile = ways[f"sequential, {way}"], cProfile.Profile()
        for _ in range(5):
            torch.cuda.synchronize()
            profile.enable()
            for _ in range(20):
                call()
            profile.disable()
        torch.cuda.synchronize()
        if rank == 0:
            print(f"sequential, {way}, 100 calls:", flush=True)
            pstats.Stats(profile).sort_stats("tottime").print_stats(8)
    hocket.synchronize()


if __name__ == "__main__":
    main()
