"""Forward and backward passes, split over GPUs: torch with NCCL, torch with async-TP, and hocket, alternately in one call.

    torchrun --nproc_per_node=2 train.py [--cases mlp,layer] [--shapes 8192x8192x28672,2048x8192x28672] [--tokens 2048]
                                         [--strategies auto,exchange,delayed] [--rounds 9] [--compile]

Prints a line of JSON for each way: microseconds of the slowest rank for one forward and backward pass, the median of the
rounds. A round runs all ways in a new order: a rest, a barrier, one call, and then CHAIN calls that are timed. "ratio" is the
median over rounds of the way's time divided by that of the faster "alone" of the same round, which computes the same
products and activations without communication. Results are compared first; a way with wrong results prints WRONG.

mlp: a sequence-parallel MLP with gelu, x[T/n, H], w1[F/n, H], w2[H, F/n], for shapes TxHxF. The gradient of y is y, so the
backward pass starts after the forward pass. All compute y, dx, dw1, dw2.
layer: a layer of a Llama of 8B with the same split, and all its gradients. torch runs it eagerly; with --compile also by
torch.compile, with and without async-TP, which takes minutes to compile.

It needs the package hocket and its command, which computes the gradients' programs (HOCKET_COMMAND, or a wheel).
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, here or below
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import hocket
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed._symmetric_memory as symm
import torch.nn.functional as F
from hocket import _commands

CHAIN = 4
RESTING = 0.05  # seconds before each measurement
OFF = 2e-2  # the largest error of a result, in norms

MLP = """dim T = 256
dim H = 256
dim F = 1024
dim N = 2
mesh tp[N]
func mlp(%x: bf16[T/tp, H], %w1: bf16[F/tp, H], %w2: bf16[H, F/tp]) -> bf16[T/tp, H] {
  %h = linear %x, %w1
  %g = gelu %h
  %y: bf16[T/tp, H] = linear %g, %w2
  return %y
}
"""
# The products and activations of MLP's gradient program, on each rank's own tensors.
ALONE = """dim T = 256
dim H = 256
dim F = 1024
dim N = 2
mesh tp[N]
func alone(
  %xs: bf16[N * T/tp, H], %dys: bf16[N * T/tp, H], %w1s: bf16[F/tp, H], %w2s: bf16[H, F/tp]
) -> (bf16[N * T/tp, H], bf16[N * T/tp, H], bf16[F/tp, H], bf16[H, F/tp]) {
  %x = local %xs
  %dy = local %dys
  %w1 = local %w1s
  %w2 = local %w2s
  %h = linear %x, %w1
  %g = gelu %h
  %y = linear %g, %w2
GRADIENTS  return %y, %dx, %dw1, %dw2
}
"""
LAYER = """dim T = 2048
dim H = 4096
dim D = 128
dim Q = 32
dim KV = 8
dim F = 14336
dim N = 2
mesh tp[N]
func layer(
  %x: bf16[T/tp, H], %norm1: bf16[H], %wq: bf16[Q * D/tp, H], %wk: bf16[KV * D/tp, H], %wv: bf16[KV * D/tp, H],
  %wo: bf16[H, Q * D/tp], %norm2: bf16[H], %gate: bf16[F/tp, H], %up: bf16[F/tp, H], %down: bf16[H, F/tp]
) -> bf16[T/tp, H] {
  %a = rms_norm %x, %norm1
  %q = linear %a, %wq
  %k = linear %a, %wk
  %v = linear %a, %wv
  %qh = reshape %q, shape=(T, Q, D)
  %kh = reshape %k, shape=(T, KV, D)
  %vh = reshape %v, shape=(T, KV, D)
  %s = attention %qh, %kh, %vh, causal=true
  %sr = reshape %s, shape=(T, Q * D)
  %o: bf16[T/tp, H] = linear %sr, %wo
  %r = add %x, %o
  %b = rms_norm %r, %norm2
  %g = linear %b, %gate
  %u = linear %b, %up
  %m = mul (silu %g), %u
  %d: bf16[T/tp, H] = linear %m, %down
  %y = add %r, %d
  return %y
}
"""


def gradient(text):
    """The program that `hocket grad` prints."""
    return subprocess.run([_commands._command(), "grad", "-"], input=text, capture_output=True, text=True, check=True).stdout


def own_gradient(text):
    """The gradient program without its parameter %dy: the gradient of y is y."""
    text, params = re.subn(r"(?m)^ *%dy: .*\n", "", gradient(text))
    text, uses = re.subn(r"%dy(?![\w.])", "%y", text)
    assert params == 1 and uses, text
    return text


def alone_gradient():
    """ALONE with the statements of MLP's gradient program, without its types and changes of layout."""
    lines = gradient(MLP).partition("// Gradients.\n")[2].split("  return")[0].splitlines(True)
    kept, names = [], {}
    for line in lines:
        if moved := re.match(r" *(%\S+): .* = reshard (%\S+)", line):
            names[moved[1]] = moved[2]
        elif " fill " in line:
            kept.append(line)
        else:
            kept.append(re.sub(r"^( *%\w+): [^=]*=", r"\1 =", line))
    body = "".join(kept).replace("%x.g", "%x")
    for name, was in names.items():
        body = body.replace(name, was)
    return ALONE.replace("GRADIENTS", body)


class Turns:
    """Times ways alternately."""

    def __init__(self, rounds):
        self.rank, self.ranks, self.rounds = dist.get_rank(), dist.get_world_size(), rounds
        self.dev = torch.device("cuda", self.rank)
        self.group = dist.group.WORLD.group_name
        self.flag = torch.zeros(1, device=self.dev)

    def say(self, line):
        if self.rank == 0:
            print(line, flush=True)

    def random(self, *shape, by=0.05):
        return torch.randn(*shape, device=self.dev, dtype=torch.bfloat16) * by

    def checked(self, ways, want):
        """The ways that work, after two calls each. want maps names of ways to the results to compare with."""
        out = {}
        for name, (call, expected) in ways.items():
            try:
                call()
                got = call()
                torch.cuda.synchronize()
            except Exception as e:  # another library's way
                self.say(json.dumps({"who": name, "cannot": str(e).splitlines()[0][:200]}))
                continue
            errors = [((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(got, want[expected], strict=True)]
            worst = torch.tensor([max(errors)], device=self.dev)
            dist.all_reduce(worst, op=dist.ReduceOp.MAX)
            if not worst.item() < OFF:
                self.say(f"WRONG {name}: {worst.item():.3g} of the norm ({', '.join(f'{e:.2g}' for e in errors)})")
            out[name] = call
        return out

    def once(self, call):
        torch.cuda.synchronize()
        dist.barrier()
        time.sleep(RESTING)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        began.record()
        for _ in range(CHAIN):
            call()
        ended.record()
        torch.cuda.synchronize()
        us = torch.tensor([began.elapsed_time(ended) * 1e3 / CHAIN], device=self.dev)
        dist.all_reduce(us, op=dist.ReduceOp.MAX)
        return us.item()

    def measure(self, shape, ways):
        times = {name: [] for name in ways}
        for i in range(self.rounds):
            order = list(ways.items())
            random.Random(i).shuffle(order)
            for name, call in order:
                times[name].append(self.once(call))
        bound = [min(round) for round in zip(*(us for name, us in times.items() if name.endswith("alone")))]
        for name, us in times.items():
            row = {"shape": shape, "who": name, "ranks": self.ranks, "us": round(statistics.median(us), 1)}
            if bound:
                row["ratio"] = round(statistics.median(a / b for a, b in zip(us, bound)), 4)
            self.say(json.dumps(row))


def programs(turns, text, dims, strategies, bound):
    """For each strategy that applies, its name and a model with these tensors bound."""
    for strategy in strategies:
        try:
            model = hocket.load(text, dims={**dims, "N": turns.ranks}, strategy=strategy, lend=True)
        except hocket.Error as e:
            turns.say(json.dumps({"who": f"hocket, {strategy}", "cannot": str(e).splitlines()[0][:200]}))
            continue
        for name, t in bound.items():
            model.bind(name, t)
        yield strategy, model


def mlp(turns, shape, strategies):
    T, H, FF = map(int, shape.split("x"))
    n = turns.ranks
    x, w1, w2 = turns.random(T // n, H), turns.random(FF // n, H), turns.random(H, FF // n)

    def gathered(t, later=False):
        out = torch.empty(T, t.shape[1], device=t.device, dtype=t.dtype)
        done = dist.all_gather_into_tensor(out, t, async_op=later)
        return (out, done) if later else out

    def scattered(t, later=False):
        out = torch.empty(T // n, t.shape[1], device=t.device, dtype=t.dtype)
        done = dist.reduce_scatter_tensor(out, t, async_op=later)
        return (out, done) if later else out

    dgelu = torch.compile(lambda u, dh: torch.ops.aten.gelu_backward(dh, u))

    def fused_gather(t, b):
        whole, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(t, [b], 0, turns.group)
        return whole, product

    def fused_scatter(t, b):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(t, b, "sum", 0, turns.group)

    def plain():
        u = gathered(x) @ w1.t()
        h = F.gelu(u)
        y = scattered(h @ w2.t())
        df = gathered(y)
        dh, dw2 = df @ w2, df.t() @ h
        du = dgelu(u, dh)
        dx = du @ w1
        return y, scattered(dx), du.t() @ gathered(x), dw2

    def bulk():
        """Gathers and scatters overlap products that do not need them."""
        u = gathered(x) @ w1.t()
        h = F.gelu(u)
        y = scattered(h @ w2.t())
        df = gathered(y)
        dh = df @ w2
        again, come = gathered(x, True)
        dw2 = df.t() @ h
        du = dgelu(u, dh)
        dx, done = scattered(du @ w1, True)
        come.wait()
        dw1 = du.t() @ again
        done.wait()
        return y, dx, dw1, dw2

    def fused(keep, scatter):
        whole, u = fused_gather(x, w1.t())
        h = F.gelu(u)
        y = fused_scatter(h, w2.t())
        df, dh = fused_gather(y, w2)
        if not keep:
            whole, come = gathered(x, True)
        dw2 = df.t() @ h
        du = dgelu(u, dh)
        if scatter:
            dx = fused_scatter(du, w1)
            return y, dx, du.t() @ whole, dw2
        dx, done = scattered(du @ w1, True)
        if not keep:
            come.wait()
        dw1 = du.t() @ whole
        done.wait()
        return y, dx, dw1, dw2

    every, dys = gathered(x), gathered(turns.random(T // n, H))

    def alone():
        u = every @ w1.t()
        h = F.gelu(u)
        y = h @ w2.t()
        dh, dw2 = dys @ w2, dys.t() @ h
        du = dgelu(u, dh)
        return y, du @ w1, du.t() @ every, dw2

    want = {"step": plain(), "alone": alone()}
    ways = {
        "torch, alone": (alone, "alone"),
        "torch, NCCL": (plain, "step"),
        "torch, NCCL, bulk overlap": (bulk, "step"),
        "torch, async-TP, bulk overlap": (lambda: fused(False, False), "step"),
        "torch, async-TP, x kept": (lambda: fused(True, True), "step"),
        "torch, async-TP, x kept, bulk scatter": (lambda: fused(True, False), "step"),
    }
    weights, dims = {"w1": w1, "w2": w2}, {"T": T, "H": H, "F": FF}
    models = []
    for _, m in programs(turns, alone_gradient(), dims, ["sequential"], {"w1s": w1, "w2s": w2}):
        models.append(m)
        ways["hocket, alone"] = (lambda m=m: m(xs=every, dys=dys), "alone")
    for strategy, m in programs(turns, own_gradient(MLP), dims, strategies, weights):
        models.append(m)
        ways[f"hocket, {strategy}"] = (lambda m=m: m(x=x), "step")
    turns.measure(f"mlp {shape}", turns.checked(ways, want))
    for m in models:
        m.close()


class Layer(torch.nn.Module):
    """LAYER by torch: rows are gathered before and scattered after attention and the MLP."""

    def __init__(self, turns, h=4096, d=128, heads=32, kv=8, f=14336):
        super().__init__()
        self.d, self.group, n = d, dist.group.WORLD, turns.ranks
        shapes = {"norm1": (h,), "wq": (heads * d // n, h), "wk": (kv * d // n, h), "wv": (kv * d // n, h), "wo": (h, heads * d // n),
                  "norm2": (h,), "gate": (f // n, h), "up": (f // n, h), "down": (h, f // n)}
        for name, shape in shapes.items():
            value = turns.random(*shape, by=shape[-1] ** -0.5) if len(shape) > 1 else torch.ones(shape, device=turns.dev, dtype=torch.bfloat16)
            self.register_parameter(name, torch.nn.Parameter(value))

    def forward(self, x):
        a = fc.all_gather_tensor_autograd(F.rms_norm(x, x.shape[-1:], self.norm1, 1e-6), 0, self.group)
        t = a.shape[0]
        q, k, v = (F.linear(a, w).view(1, t, -1, self.d).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        s = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        o = F.linear(s.transpose(1, 2).reshape(t, -1), self.wo)
        r = x + fc.reduce_scatter_tensor_autograd(o, "sum", 0, self.group)
        b = fc.all_gather_tensor_autograd(F.rms_norm(r, r.shape[-1:], self.norm2, 1e-6), 0, self.group)
        m = F.silu(F.linear(b, self.gate)) * F.linear(b, self.up)
        return r + fc.reduce_scatter_tensor_autograd(F.linear(m, self.down), "sum", 0, self.group)


def layer(turns, tokens, strategies, compiled):
    module = Layer(turns)
    x, dy = turns.random(tokens // turns.ranks, 4096, by=1).requires_grad_(), turns.random(tokens // turns.ranks, 4096, by=1)
    inputs = [x, *module.parameters()]
    names = [name for name, _ in module.named_parameters()]
    norms = [1 + i for i, name in enumerate(names) if name.startswith("norm")]

    def step(module):
        y = module(x)
        grads = list(torch.autograd.grad(y, inputs, dy))
        both = torch.cat([grads[i] for i in norms])  # each rank has those of its rows
        dist.all_reduce(both)
        for i, g in zip(norms, both.chunk(len(norms))):
            grads[i] = g
        return [y.detach(), *grads]

    want = {"step": step(module)}
    ways = {"torch, NCCL": (lambda: step(module), "step")}
    if compiled:
        from torch._inductor import config
        for name, pipelined in ("torch.compile, NCCL", False), ("torch.compile, async-TP", True):
            torch._dynamo.reset()
            config._micro_pipeline_tp = pipelined
            made = torch.compile(module)
            try:
                step(made)
                ways[name] = (lambda made=made: step(made), "step")
            except Exception as e:  # of another library
                turns.say(json.dumps({"who": name, "cannot": str(e).splitlines()[0][:200]}))
    models = []
    bound = {name: t.detach() for name, t in module.named_parameters()}
    given = x.detach()
    for strategy, m in programs(turns, gradient(LAYER), {"T": tokens}, strategies, bound):
        models.append(m)
        ways[f"hocket, {strategy}"] = (lambda m=m: m(x=given, dy=dy), "step")
    turns.measure(f"layer 8B T={tokens}", turns.checked(ways, want))
    for m in models:
        m.close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cases", default="mlp,layer")
    p.add_argument("--shapes", default="8192x8192x28672,2048x8192x28672")
    p.add_argument("--tokens", default="2048")
    p.add_argument("--strategies", default="auto,exchange,delayed")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--compile", action="store_true")
    args = p.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        symm.enable_symm_mem_for_group(dist.group.WORLD.group_name)  # newer torch does it by itself
    except Exception:
        pass
    hocket.init("cuda", timeout=120)
    turns, strategies = Turns(args.rounds), re.findall(r"[^,(]+(?:\([^)]*\))?", args.strategies)
    torch.manual_seed(rank)
    for shape in args.shapes.split(",") if "mlp" in args.cases else ():
        mlp(turns, shape, strategies)
    for tokens in args.tokens.split(",") if "layer" in args.cases else ():
        layer(turns, int(tokens), strategies, args.compile)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
