"""Attention of bf16 as torch computes it, timed as hocket's BenchmarkAttention times its own.

    python3 attention.py [--rounds 5]

Prints for each shape a line for each of torch's backends: the mean of 10 calls in a graph, the median of the rounds, in microseconds.
"""
import argparse
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.attention.bias import causal_lower_right

# batch, queries, keys, heads of queries and of keys, Dh, causal: those of attention_bench_test.go
SHAPES = [
    (1, 4096, 4096, 32, 8, 128, True), (1, 16384, 16384, 32, 8, 128, True), (1, 4096, 4096, 32, 32, 64, True), (4, 2048, 2048, 16, 16, 128, False),
    (1, 512, 8192, 32, 8, 128, True), (1, 64, 8192, 8, 1, 128, True), (1, 1, 8192, 32, 8, 128, True), (64, 1, 4096, 32, 8, 128, True), (8, 1, 32768, 8, 1, 128, True),
    (1, 512, 1536, 16, 4, 128, True), (1, 256, 1280, 16, 4, 128, True), (1, 128, 1152, 16, 4, 128, True), (1, 64, 1088, 16, 4, 128, True),
]
CALLS = 10


def timed(call, rounds, calls=CALLS):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    side.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(calls):
            call()
    g.replay()
    took = []
    for _ in range(rounds):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        g.replay()
        ended.record()
        ended.synchronize()
        took.append(began.elapsed_time(ended) * 1e3 / calls)
    return statistics.median(took)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=5)
    rounds = p.parse_args().rounds
    print(torch.__version__, torch.cuda.get_device_name())
    for shape in SHAPES:
        b, tq, tk, hq, hkv, dh, causal = shape
        q, k, v = (torch.randn(b, t, h, dh, dtype=torch.bfloat16, device="cuda").transpose(1, 2) for t, h in ((tq, hq), (tk, hkv), (tk, hkv)))
        how = {}
        if causal and tq == tk:
            how["is_causal"] = True
        elif causal and tq > 1:
            how["attn_mask"] = causal_lower_right(tq, tk)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            try:
                with torch.inference_mode(), sdpa_kernel(backend):
                    us = timed(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=hq != hkv, **how), rounds)
                print(shape, backend.name, f"{us:.1f} us", flush=True)
            except Exception as e:
                print(shape, backend.name, "cannot:", str(e).splitlines()[0][:150], flush=True)


if __name__ == "__main__":
    main()
