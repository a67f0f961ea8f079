"""A step of a Llama's layers, tensor parallel, as one CUDA graph: by torch in several ways and by hocket, alternately.

    torchrun --nproc_per_node=2 tools/peers/step.py --rows 1,32,2048 [--ways one-shot/default,two-shot] [--strategies auto]
    torchrun --nproc_per_node=2 tools/peers/step.py --rows 512,2048 --layers 32 --past 0       # the prefill of an 8B
    torchrun --nproc_per_node=2 tools/peers/step.py --hidden 8192 --heads 64 --ffn 28672       # layers of 70B size

T new rows follow --past earlier rows. The program is tools/step/llama.hkt; torch computes the same, with rotary embedding,
and with the weights of q, k and v, and of gate and up, joined. A way of torch is an all-reduce (nccl, one-shot, two-shot),
or async-tp, and after a slash a mode of torch.compile (default, max-autotune-no-cudagraphs); without a mode torch's
operations are captured as they are. Attention is the fastest of torch's kernels. Each result is compared with that of the
same layers in f32. Prints a line of JSON for each number of rows and way, for --peers of `hocket bench`: microseconds of a
step of a batch of replays, and "single_us" of a step that its caller waits for, of the slowest rank, medians of the
rounds; "error", the norm of the difference from f32 divided by the norm of the f32 result; and "ratio", the median over
rounds of torch's fastest time of the round, divided by this one. Ways that fail have "cannot" instead.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import statistics
import sys
import time
import warnings

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, here or below
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import hocket
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

D = 128  # elements of a head
EPS = 1e-6
THETA = 500000.0
OFF = 5e-2  # the largest error of a result, in norms; a wrong position or mask exceeds it
WAYS = "nccl,one-shot,two-shot,one-shot/default,two-shot/default,nccl/default,async-tp/default"
BF16 = torch.bfloat16


class Layers:
    """The weights of the layers, this rank's part, and the keys and values of earlier rows."""

    def __init__(self, a, rank, ranks):
        self.rank, self.ranks, self.dev = rank, ranks, torch.device("cuda", rank)
        self.layers, self.hidden, self.past = a.layers, a.hidden, a.past
        self.q, self.kv, self.ffn = a.heads // ranks, a.kv // ranks, a.ffn // ranks
        h, ly = a.hidden, a.layers
        self.qkv = self.draw(rank, ly, (self.q + 2 * self.kv) * D, h, by=h**-0.5)
        self.gate_up = self.draw(rank, ly, 2 * self.ffn, h, by=h**-0.5)
        out = (2 * ly) ** -0.5  # keeps the residual's size
        self.wo = self.draw(rank, ly, h, self.q * D, by=out * a.heads**-0.5 * D**-0.5)
        self.down = self.draw(rank, ly, h, self.ffn, by=out * a.ffn**-0.5)
        self.before, self.inner, self.last = (1 + self.draw(-1, *shape, by=0.1) for shape in ((ly, h), (ly, h), (h,)))
        self.keys, self.values = (self.draw(rank, ly, a.past + max(a.rows), self.kv, D) for _ in range(2))

    def draw(self, seed, *shape, by=1.0):
        """Normally distributed numbers: with a seed of -1 the same ones on all ranks."""
        self.drawn = getattr(self, "drawn", 0) + 1
        g = torch.Generator(self.dev).manual_seed(1000 * self.drawn + 2 + seed)
        t = torch.empty(*shape, device=self.dev, dtype=BF16)
        for part in t if len(shape) > 2 else [t]:
            part.copy_(torch.randn(part.shape, device=self.dev, dtype=torch.float32, generator=g) * by)
        return t

    def bound(self):
        """The tensors of the program's parameters. Weights that torch keeps joined are separate, and so is the state."""
        q, k, v = self.qkv.split([self.q * D, self.kv * D, self.kv * D], 1)
        gate, up = self.gate_up.chunk(2, 1)
        return {"wq": q.contiguous(), "wk": k.contiguous(), "wv": v.contiguous(), "wo": self.wo, "gate": gate.contiguous(),
                "up": up.contiguous(), "down": self.down, "before": self.before, "inner": self.inner, "last": self.last,
                "keys": self.keys.clone(), "values": self.values.clone()}


def angles(m, rows, dtype):
    at = torch.arange(m.past, m.past + rows, device=m.dev, dtype=torch.float64)
    by = at[:, None] * THETA ** (-torch.arange(0, D, 2, device=m.dev, dtype=torch.float64) / D)
    return by.cos().to(dtype)[:, None], by.sin().to(dtype)[:, None]


def turned(t, cos, sin):
    a, b = t.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def in_f32(m, x):
    """The step's result in f32."""
    rows, (cos, sin) = x.shape[0], angles(m, x.shape[0], torch.float32)

    def summed(t):
        dist.all_reduce(t)
        return t

    h = x.float()
    for i in range(m.layers):
        a = F.rms_norm(h, h.shape[-1:], m.before[i].float(), EPS)
        q, k, v = (a @ m.qkv[i].float().t()).view(rows, -1, D).split([m.q, m.kv, m.kv], 1)
        ks = torch.cat((m.keys[i, :m.past].float(), turned(k, cos, sin)))
        vs = torch.cat((m.values[i, :m.past].float(), v))
        q, outs = turned(q, cos, sin), []
        for g in range(m.kv):  # a group of heads at a time, which bounds the memory of scores
            of = q[:, g * m.q // m.kv:(g + 1) * m.q // m.kv].transpose(0, 1)
            for first in range(0, rows, 1024):
                s = of[:, first:first + 1024] @ ks[:, g].t() / math.sqrt(D)
                hidden = torch.ones(s.shape[1:], device=m.dev, dtype=torch.bool).triu(m.past + first + 1)
                outs.append(s.masked_fill_(hidden, -math.inf).softmax(-1) @ vs[:, g])
        per = len(outs) // m.kv
        s = torch.cat([torch.cat(outs[g * per:(g + 1) * per], 1) for g in range(m.kv)]).transpose(0, 1).reshape(rows, -1)
        h = h + summed(s @ m.wo[i].float().t())
        gate, up = (F.rms_norm(h, h.shape[-1:], m.inner[i].float(), EPS) @ m.gate_up[i].float().t()).chunk(2, 1)
        h = h + summed((F.silu(gate) * up) @ m.down[i].float().t())
    return F.rms_norm(h, h.shape[-1:], m.last.float(), EPS)


def attentions(m, rows):
    """torch's ways to compute attention of q[1, Q, rows, D] to all rows of k and v[1, KV, past + rows, D], by name."""
    whole = m.past + rows
    lower = None if rows == 1 else causal_lower_right(rows, whole)
    mask = None if rows == 1 else torch.ones(rows, whole, device=m.dev, dtype=torch.bool).tril(m.past)
    each = m.q // m.kv
    out = {"default": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=lower, enable_gqa=True)}

    def add(name, backend, grouped, mask):
        def run(q, k, v):
            if not grouped:
                k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        out[name] = run

    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        for by, given in ("lower", lower), ("mask", mask):
            for grouped in (True, False):
                add(f"{backend.name.lower()}, {by}{', grouped' * grouped}", backend, grouped, given)
    if m.past and rows > 1:
        def parts(q, k, v):
            """Earlier keys without a mask and new ones with a causal mask, joined by their log-sum-exps."""
            cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
            (old, lse_old), (new, lse_new) = (
                cudnn(q, k[:, :, cut], v[:, :, cut], None, True, 0.0, causal, False)[:2]
                for cut, causal in ((slice(None, m.past), False), (slice(m.past, None), True)))
            weight = torch.sigmoid(lse_new - lse_old).reshape(*old.shape[:3], 1)
            return (old.float() + (new.float() - old.float()) * weight).to(q.dtype)
        out["cudnn in two parts"] = torch.compile(parts)
    return out


def captured(call):
    """A CUDA graph of a call, and the call's result in it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    dist.barrier()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        out = call()
    return g, out


def fastest_attention(m, rows):
    """The fastest of attentions whose result is right, the same on all ranks, and its microseconds."""
    q = m.draw(m.rank, 1, rows, m.q, D).transpose(1, 2)
    k, v = (t[:1, :m.past + rows].transpose(1, 2) for t in (m.keys, m.values))
    best, want = (math.inf, "default"), None
    ways = attentions(m, rows)
    for name, way in ways.items():
        try:
            for _ in range(3):
                got = way(q, k, v)
            got = got.float()
            want = got if want is None else want
            if not (got - want).norm() < 2e-2 * want.norm():
                continue
            torch.cuda.synchronize()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                for _ in range(10):
                    way(q, k, v)
            g.replay()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(5):
                g.replay()
            torch.cuda.synchronize()
            best = min(best, ((time.perf_counter() - began) / 50 * 1e6, name))
        except Exception as e:  # a kernel that does not support this
            if "No available kernel" not in str(e):
                print(f"attention, {name}: {(str(e).splitlines() or [repr(e)])[0][:200]}", file=sys.stderr)
    both = [best]
    dist.broadcast_object_list(both, 0)
    return ways[both[0][1]], both[0][1]


def torch_step(m, x, attention, reduction, mode):
    """A function that computes the step by torch. Its keys and values are written into m's."""
    rows, name = x.shape[0], dist.group.WORLD.group_name
    cos, sin = angles(m, rows, BF16)
    shared = symm.empty(rows, m.hidden, dtype=BF16, device=m.dev)
    symm.rendezvous(shared, name)

    def product_and_sum(t, w):
        if reduction == "nccl":
            y = t @ w.t()
            dist.all_reduce(y)
            return y
        if reduction == "one-shot":
            return torch.ops.symm_mem.one_shot_all_reduce_copy(shared, t @ w.t(), "sum", name)
        if mode:
            shared.copy_(t @ w.t())
        else:
            torch.mm(t, w.t(), out=shared)
        return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", name)

    def attended(qkv, keys, values):
        q, k, v = qkv.view(rows, -1, D).split([m.q, m.kv, m.kv], 1)
        keys[m.past:m.past + rows] = turned(k, cos, sin)
        values[m.past:m.past + rows] = v
        k, v = (t[:m.past + rows].transpose(0, 1)[None] for t in (keys, values))
        s = attention(turned(q, cos, sin).transpose(0, 1)[None], k, v)
        return s[0].transpose(0, 1).reshape(rows, -1)

    def whole(h, a, keys, values, qkv, wo, gate_up, down, inner, after):
        h = h + product_and_sum(attended(a @ qkv.t(), keys, values), wo)
        gate, up = (F.rms_norm(h, h.shape[-1:], inner, EPS) @ gate_up.t()).chunk(2, 1)
        h = h + product_and_sum(F.silu(gate) * up, down)
        return h, F.rms_norm(h, h.shape[-1:], after, EPS)

    def gathered_product(t, w):
        return torch.ops.symm_mem.fused_all_gather_matmul(t, [w.t()], 0, name, return_A=False)[1][0]

    def scattered_product(t, w):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(t, w.t(), "sum", 0, name)

    def split(h, a, keys, values, qkv, wo, gate_up, down, inner, after):
        """The same with residuals of which a rank has its rows only."""
        h = h + scattered_product(attended(gathered_product(a, qkv), keys, values), wo)
        gate, up = gathered_product(F.rms_norm(h, h.shape[-1:], inner, EPS), gate_up).chunk(2, 1)
        h = h + scattered_product(F.silu(gate) * up, down)
        return h, F.rms_norm(h, h.shape[-1:], after, EPS)

    layer = split if reduction == "async-tp" else whole
    if mode:
        layer = torch.compile(layer, dynamic=False, mode=None if mode == "default" else mode)

    def step():
        h = x.chunk(m.ranks)[m.rank] if reduction == "async-tp" else x
        a = F.rms_norm(h, h.shape[-1:], m.before[0], EPS)
        for i in range(m.layers):
            after = m.before[i + 1] if i + 1 < m.layers else m.last
            h, a = layer(h, a, m.keys[i], m.values[i], m.qkv[i], m.wo[i], m.gate_up[i], m.down[i], m.inner[i], after)
        if reduction == "async-tp":
            out = torch.empty(rows, m.hidden, dtype=BF16, device=m.dev)
            dist.all_gather_into_tensor(out, a.contiguous())
            return out
        return a

    return step


def hocket_step(m, bound, program, x, strategy):
    dims = dict(T=x.shape[0], S=m.past, M=bound["keys"].shape[1], H=m.hidden, L=m.layers, Q=m.q * m.ranks,
                KV=m.kv * m.ranks, D=D, F=m.ffn * m.ranks, P=m.ranks)
    model = hocket.load(program, dims=dims, strategy=strategy, lend=True)
    for name, t in bound.items():
        model.bind(name, t)
    at = torch.arange(m.past, m.past + x.shape[0], device=m.dev, dtype=torch.int32)
    model.bind("at", at)

    def result():
        out = model(x=x)
        return out[0] if isinstance(out, tuple) else out
    return result, model


class Turns:
    """Times graphs alternately."""

    def __init__(self, m, rounds):
        self.m, self.rounds = m, rounds

    def slowest(self, us):
        t = torch.tensor(us, device=self.m.dev)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return t.tolist()

    def once(self, graph, n):
        """The microseconds of a step of a batch of n, and of one that its caller waits for: the median of n."""
        torch.cuda.synchronize()
        dist.barrier()
        time.sleep(0.02)
        graph.replay()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            graph.replay()
        torch.cuda.synchronize()
        batch, single = (time.perf_counter() - began) / n * 1e6, []
        for _ in range(n):
            began = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            single.append((time.perf_counter() - began) * 1e6)
        return self.slowest([batch, statistics.median(single)])

    def measure(self, graphs, n):
        times = {name: [] for name in graphs}
        for i in range(self.rounds):
            order = list(graphs)
            random.Random(i).shuffle(order)
            for name in order:
                times[name].append(self.once(graphs[name][0], n))
        return times


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", type=lambda s: [int(t) for t in s.split(",")], default=[1, 8, 32, 128, 512, 2048])
    p.add_argument("--ways", default=WAYS, help="torch's ways; an empty text for none")
    p.add_argument("--strategies", default="sequential,auto", help="hocket's strategies; an empty text for none")
    for name, default in ("layers", 4), ("hidden", 4096), ("heads", 32), ("kv", 8), ("ffn", 14336), ("past", 1024):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--program", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "step" / "llama.hkt")
    a = p.parse_args()
    warnings.filterwarnings("ignore", module="torch|__main__")  # reasons against kernels of attention that are tried
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        symm.enable_symm_mem_for_group(dist.group.WORLD.group_name)  # newer torch does it by itself
    except Exception:
        pass
    hocket.init("cuda", timeout=120)
    m = Layers(a, rank, dist.get_world_size())
    bound, program = m.bound(), a.program.read_text()
    split = re.compile(r"[^,(]+(?:\([^)]*\))?").findall
    say = print if rank == 0 else lambda *_, **__: None
    for rows in a.rows:
        x = m.draw(-1, rows, m.hidden)
        want = in_f32(m, x)
        ways, models = {}, []
        attention, by = fastest_attention(m, rows) if a.ways else (None, "")
        say(f"attention of {rows} rows by torch: {by}", flush=True)
        for way in split(a.ways):
            reduction, _, mode = way.partition("/")
            if reduction == "one-shot" and rows * m.hidden > 1 << 21 or reduction == "async-tp" and rows < 256:
                continue  # torch's one-shot is slower for large tensors; async-TP needs rows to split
            name = f"torch {reduction}{', compiled ' * bool(mode)}{mode}"
            ways[name] = lambda r=reduction, c=mode: torch_step(m, x, attention, r, c)
        for strategy in split(a.strategies):
            def load(strategy=strategy):
                step, model = hocket_step(m, bound, program, x, strategy)
                models.append(model)
                return step
            ways[f"hocket, {strategy}"] = load
        graphs, errors = {}, {}
        shape = f"D={D} F={a.ffn} H={a.hidden} KV={a.kv} L={a.layers} Q={a.heads} S={a.past} T={rows}"
        for name, make in ways.items():
            row = {"op": "step", "name": name, "ranks": m.ranks, "shape": shape, "issued": "graph"}
            try:
                torch._dynamo.reset()
                step = make()
                graph, out = captured(step)
                graph.replay()
                torch.cuda.synchronize()
                error, = Turns(m, 1).slowest([((out.float() - want).norm() / want.norm()).item()])
                errors[name] = error
                if not error < OFF:
                    say(json.dumps(row | {"cannot": f"wrong: its error is {error:.3g}"}), flush=True)
                    continue
                graphs[name] = graph, out, step  # which hold the tensors that the graph uses
            except Exception as e:
                say(json.dumps(row | {"cannot": (str(e).splitlines() or [repr(e)])[0][:200]}), flush=True)
        n = 32 if m.layers * rows < 16384 else 8
        times = Turns(m, a.rounds).measure(graphs, n)
        peers = [us for name, us in times.items() if name.startswith("torch")]
        for name, us in times.items():
            row = {"op": "step", "name": name, "ranks": m.ranks, "shape": shape, "issued": "graph",
                   "us": round(statistics.median(b for b, _ in us), 1), "single_us": round(statistics.median(s for _, s in us), 1),
                   "error": round(errors[name], 5)}
            if peers:
                least = [min(of[i][0] for of in peers) for i in range(a.rounds)]
                row["ratio"] = round(statistics.median(p / b for p, (b, _) in zip(least, us)), 3)
            say(json.dumps(row), flush=True)
        graphs.clear()
        for model in models:
            model.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
