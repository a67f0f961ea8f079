"""Attention of bf16 and its gradients as torch computes them, timed as hocket's BenchmarkAttentionGrad times its own, and a
layer of a llama of 8B, forward and backward, by torch.compile.

    python3 attention_grad.py [--rounds 5] [--layer]

Prints for each shape a line for each of torch's backends: the mean of 10 backward passes in a graph, the median of the
rounds, in microseconds. With --layer, forward and backward passes of a layer, with all gradients, eager and compiled.
"""
import argparse

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention import timed

# batch, queries, keys, heads of queries and of keys, Dh, causal: those of attention_grad_bench_test.go
SHAPES = [(1, 2048, 2048, 32, 8, 128, True), (1, 8192, 8192, 32, 8, 128, True), (1, 4096, 4096, 32, 32, 64, True), (4, 2048, 2048, 16, 16, 128, False)]


def attentions(rounds):
    for shape in SHAPES:
        b, tq, tk, hq, hkv, dh, causal = shape
        q, k, v = (torch.randn(b, t, h, dh, dtype=torch.bfloat16, device="cuda").transpose(1, 2).requires_grad_() for t, h in ((tq, hq), (tk, hkv), (tk, hkv)))
        dy = torch.randn(b, tq, hq, dh, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            try:
                with sdpa_kernel(backend):
                    def forward():
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=hq != hkv)
                    both = timed(lambda: torch.autograd.grad(forward(), (q, k, v), dy), rounds)
                    alone = timed(forward, rounds)
                print(shape, backend.name, f"forward {alone:.1f} us, backward {both - alone:.1f} us", flush=True)
            except Exception as e:
                print(shape, backend.name, "cannot:", str(e).splitlines()[0][:150], flush=True)


class Layer(torch.nn.Module):
    """A layer of examples/llama_layer.hkt, in the shapes of a llama of 8B."""

    def __init__(self, h=4096, d=128, heads=32, kv=8, f=14336):
        super().__init__()
        self.d, self.heads, self.kv = d, heads, kv
        shapes = {"norm1": (h,), "wq": (heads * d, h), "wk": (kv * d, h), "wv": (kv * d, h), "wo": (h, heads * d), "norm2": (h,), "gate": (f, h), "up": (f, h), "down": (h, f)}
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape) * shape[-1] ** -0.5 if len(shape) > 1 else torch.ones(shape)))

    def forward(self, x):
        t = x.shape[0]
        a = F.rms_norm(x, x.shape[-1:], self.norm1, 1e-6)
        q, k, v = (F.linear(a, w).view(1, t, -1, self.d).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        s = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        r = x + F.linear(s.transpose(1, 2).reshape(t, -1), self.wo)
        b = F.rms_norm(r, r.shape[-1:], self.norm2, 1e-6)
        return r + F.linear(F.silu(F.linear(b, self.gate)) * F.linear(b, self.up), self.down)


def layers(rounds):
    layer = Layer().to("cuda", torch.bfloat16)
    compiled = torch.compile(layer)
    for t in (2048, 8192):
        x, dy = (torch.randn(t, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        x.requires_grad_()
        wanted = [x, *layer.parameters()]
        for name, module in (("eager", layer), ("torch.compile", compiled)):
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                try:
                    with sdpa_kernel(backend):
                        us = timed(lambda: torch.autograd.grad(module(x), wanted, dy), rounds, 3)
                    print(f"layer T={t} {name} {backend.name}: {us:.1f} us", flush=True)
                except Exception as e:
                    print(f"layer T={t} {name} {backend.name}: cannot:", str(e).splitlines()[0][:150], flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--layer", action="store_true")
    args = p.parse_args()
    print(torch.__version__, torch.cuda.get_device_name())
    if args.layer:
        layers(args.rounds)
    else:
        attentions(args.rounds)


if __name__ == "__main__":
    main()
