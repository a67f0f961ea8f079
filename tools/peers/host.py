"""What one more tiny kernel costs in torch, timed as `hocket bench host` times its own.

    python3 host.py [--rounds 9]

Prints a line of JSON for each figure: microseconds until all is done, for each of 1000 elementwise sums of 64 numbers on one GPU, issued one by
one and replayed as a graph; and the part of that for which the host is busy. A run of the sums and a run of none take turns; the
figure is the median of their differences.
"""
import argparse
import json
import statistics
import time

import torch

OPS = 1000  # as internal/bench has them
WARM = 2


def sums(x, y, count):
    for _ in range(count):
        torch.add(x, x, out=y)


def captured(x, y, count):
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        sums(x, y, count)
    return g.replay


def timed(run):
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    issued = time.perf_counter()
    torch.cuda.synchronize()
    return issued - began, time.perf_counter() - began


def cost(none, all_, rounds):
    issue, total = [], []
    for i in range(WARM + rounds):
        short, long = timed(none), timed(all_)
        if i >= WARM:
            issue.append((long[0] - short[0]) * 1e6 / OPS)
            total.append((long[1] - short[1]) * 1e6 / OPS)
    return statistics.median(issue), statistics.median(total)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=9)
    a = p.parse_args()
    x = torch.ones(64, device="cuda")
    y = torch.empty_like(x)
    with torch.inference_mode():
        sums(x, y, 10)
        ways = {
            "eager": (lambda: sums(x, y, 1), lambda: sums(x, y, OPS + 1)),
            "graph": (captured(x, y, 1), captured(x, y, OPS + 1)),
        }
        for issued, (none, all_) in ways.items():
            host, total = cost(none, all_, a.rounds)
            print(json.dumps({"op": "kernel", "name": "torch", "ranks": 1, "issued": issued, "us": round(total, 4), "host_us": round(host, 4)}))


main()
