"""A collective with the GEMM next to it: torch's fused ops, and NCCL before or behind the GEMM.

    torchrun --nproc_per_node=2 overlap.py [--shapes 8192x28672x8192,2048x8192x28672] [--rounds 7]
    torchrun --nproc_per_node=2 overlap.py --turns FOLDER & hocket bench ag-gemm -m cuda -n 2 --turns FOLDER
    torchrun --nproc_per_node=2 overlap.py --hocket sequential,exchange,auto
    torchrun --nproc_per_node=2 overlap.py --ops ag-gemm,gemm-rs --dtype fp8-block

Prints a line of JSON for each figure: microseconds of the slowest rank, median of rounds in turns. A round is what one of
`hocket bench ag-gemm` is: rest, the GEMM alone six times, a barrier, a call and then six that are timed, a barrier, the GEMM alone six
times, without synchronisation between them; so all are timed on a GPU that is as warm, by links that are awake. "single_us" is a call
between two synchronisations, by the host's clock. gemm-ar is also timed in chunks on streams, as nvFuser #5751 has it. With --turns it times
what hocket asks for, when it asks, prints nothing, and ends where nothing has been asked for two minutes. With --hocket it also times
hocket's programs by these strategies, called from torch: the package must be there. Shapes are MxNxK over all ranks.
With --dtype fp8-row or fp8-block operands are of f8e4m3, with a scale for each row, or for 128 elements of a row of x and
128 by 128 of w; fp8-row-fast is fp8-row with use_fast_accum=True. They are quantized before the timed part; results are
bf16. Only ag-gemm and gemm-rs have these types.
"""
import argparse
import json
import os
import re
import statistics
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, here or below
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

SHAPES = "8192x28672x8192,8192x8192x28672,2048x28672x8192,2048x8192x28672,8192x10240x8192"
OPS = "ag-gemm", "gemm-rs", "gemm-ar", "gemm-ag"
PIECES = 4  # of a rank's rows, where pieces of a result are gathered beside the GEMM
CHAIN = 6
GRAPH = ", torch graph"  # ends the names of ways that are captured in torch's graphs
OFF = 1 / 8  # how far results may be apart, in root mean squares of a result
DTYPES = "bf16", "fp8-row", "fp8-row-fast", "fp8-block"
BLOCK = 128
LARGEST = 448  # of f8e4m3
INNER = 128  # operands are products of matrices of that rank, as hocket's
RESTING = 0.1  # seconds before each round, as hocket's
PATIENCE = 120  # seconds for a question


def quantized(t, dtype, weight=False):
    """The f8e4m3 values of a matrix, and their scales."""
    rows, cols = t.shape
    high = BLOCK if weight and dtype == "fp8-block" else 1
    wide = BLOCK if dtype == "fp8-block" else cols
    v = t.view(rows // high, high, cols // wide, wide)
    s = (v.abs().amax((1, 3)).float() / LARGEST).clamp(min=1e-12)
    return (v / s[:, None, :, None]).to(torch.float8_e4m3fn).view(rows, cols), s


def by_columns(s):
    """Scales of x in the order in which torch reads them."""
    return s.t().contiguous().t()


def scaled(x, sx, w, sw, fast=False):
    """The product of x and w transposed, in bf16."""
    if sx.shape[1] == 1:
        return torch._scaled_mm(x, w.t(), scale_a=sx, scale_b=sw.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)
    from torch.nn.functional import ScalingType, scaled_mm

    return scaled_mm(x, w.t(), sx, ScalingType.BlockWise1x128, sw.t(), ScalingType.BlockWise128x128,
                     output_dtype=torch.bfloat16)


def eager(call):
    """A way: what makes one call, and what makes a chain of them."""

    def chain():
        for _ in range(CHAIN):
            call()

    return call, chain


class Bench:
    def __init__(self, strategies):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.dev = torch.device("cuda", self.rank)
        self.group = dist.group.WORLD.group_name
        self.flag = torch.zeros(1, device=self.dev)
        self.ready = None  # the layer that is set up
        self.strategies, self.models, self.pool = strategies, [], None

    def say(self, line):
        if self.rank == 0:
            print(line, flush=True)

    def random(self, rows, cols, make=torch.empty):
        def uniform(*shape):
            return torch.rand(*shape, device=self.dev).mul_(2).sub_(1).bfloat16()

        out = make(rows, cols, dtype=torch.bfloat16, device=self.dev)
        return torch.mm(uniform(rows, INNER), uniform(INNER, cols), out=out)

    def calls(self, op, shape, dtype):
        """The GEMM alone, what is timed beside it, by name, and the operands. The first returns the result."""
        m, n, k = (int(e) for e in shape.split("x"))
        if dtype != "bf16":
            make = {"ag-gemm": self.gathered_scaled, "gemm-rs": self.reduced_scaled}.get(op)
            if make is None or dtype not in DTYPES:
                raise SystemExit(f"overlap.py measures ag-gemm and gemm-rs in {', '.join(DTYPES)}, not {op} in {dtype}")
            return make(m, n, k, dtype)
        if op == "ag-gemm":
            return self.gathered(m, n, k)
        return self.spread(m, n, k) if op == "gemm-ag" else self.reduced(op, m, n, k)

    def gathered(self, m, n, k):
        """Rows of x are spread over ranks and gathered, columns of the result stay where they are."""
        x = self.random(m // self.ranks, k, make=symm.empty)
        symm.rendezvous(x, self.group)
        w, whole = self.random(k, n // self.ranks), self.random(m, k)
        y, all_x = torch.empty(m, n // self.ranks, dtype=torch.bfloat16, device=self.dev), torch.empty_like(whole)

        def sequential():
            dist.all_gather_into_tensor(all_x, x)
            return torch.mm(all_x, w, out=y)

        return lambda: torch.mm(whole, w, out=y), {
            "nccl, then GEMM": sequential,
            "torch fused": lambda: torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, self.group),
        }, (x, w)

    def reduced(self, op, m, n, k):
        """The contraction is spread over ranks; its partial results are reduced, to rows or on all."""
        x, w = self.random(m, k // self.ranks), self.random(k // self.ranks, n)
        y = torch.empty(m, n, dtype=torch.bfloat16, device=self.dev)
        rows = torch.empty(m // self.ranks, n, dtype=torch.bfloat16, device=self.dev)

        def scattered():
            torch.mm(x, w, out=y)
            dist.reduce_scatter_tensor(rows, y)
            return rows

        def everywhere():
            torch.mm(x, w, out=y)
            dist.all_reduce(y)
            return y

        alone = lambda: torch.mm(x, w, out=y)
        if op == "gemm-ar":
            shared, window = symm.empty(m, n, dtype=torch.bfloat16, device=self.dev), self.window(m, n)
            symm.rendezvous(shared, self.group)

            def two_shot():
                torch.mm(x, w, out=shared)
                return torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self.group)

            return alone, {
                "GEMM, then nccl": everywhere,
                "GEMM, then torch two-shot": two_shot,
                "nccl, 2 chunks on 2 streams": self.chunks(x, w, y, 2),
                "nccl, 8 chunks on 2 streams": self.chunks(x, w, y, 8),
                "nccl, 8 chunks on 2 streams, symmetric memory": self.chunks(x, w, window, 8),
            }, (x, w)
        return alone, {
            "GEMM, then nccl": scattered,
            "torch fused": lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w, "sum", 0, self.group),
        }, (x, w)

    def gathered_scaled(self, m, n, k, dtype):
        """gathered of 8-bit operands: values and scales are gathered."""
        fast = dtype.endswith("-fast")
        x, sx = quantized(self.random(m // self.ranks, k), dtype)
        w, sw = quantized(self.random(n // self.ranks, k), dtype, weight=True)
        whole, whole_s = quantized(self.random(m, k), dtype)
        all_x, all_s = torch.empty_like(whole), torch.empty_like(whole_s)
        whole_s = by_columns(whole_s)

        def sequential():
            dist.all_gather_into_tensor(all_x.view(torch.uint8), x.view(torch.uint8))
            dist.all_gather_into_tensor(all_s, sx)
            return scaled(all_x, by_columns(all_s), w, sw, fast)

        ways = {"nccl, then GEMM": sequential}
        if dtype != "fp8-block":  # torch has no fused op for blocks
            ways["torch fused"] = lambda: torch.ops.symm_mem.fused_all_gather_scaled_matmul(
                x, [w.t()], sx, [sw.t()], 0, self.group, [None], [None], [torch.bfloat16], [fast])
        return lambda: scaled(whole, whole_s, w, sw, fast), ways, (None, None)

    def reduced_scaled(self, m, n, k, dtype):
        """reduced of 8-bit operands, to rows; sums are bf16."""
        fast = dtype.endswith("-fast")
        x, sx = quantized(self.random(m, k // self.ranks), dtype)
        sx = by_columns(sx)
        w, sw = quantized(self.random(n, k // self.ranks), dtype, weight=True)
        rows = torch.empty(m // self.ranks, n, dtype=torch.bfloat16, device=self.dev)

        def sequential():
            dist.reduce_scatter_tensor(rows, scaled(x, sx, w, sw, fast))
            return rows

        ways = {"GEMM, then nccl": sequential}
        if dtype != "fp8-block":
            ways["torch fused"] = lambda: torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
                x, w.t(), sx, sw.t(), "sum", 0, 0, self.group, [m, n], None, None, torch.bfloat16, fast)
        return lambda: scaled(x, sx, w, sw, fast), ways, (None, None)

    def window(self, m, n):
        """A tensor in a window of NCCL's, which has kernels of its own for such; None where torch cannot register it."""
        backend = dist.group.WORLD._get_backend(self.dev)
        try:
            self.pool = torch.cuda.MemPool(backend.mem_allocator)  # which is to outlive the tensor
            with torch.cuda.use_mem_pool(self.pool):
                out = torch.empty(m, n, dtype=torch.bfloat16, device=self.dev)
            backend.register_mem_pool(self.pool, symm=True)
        except (AttributeError, RuntimeError, TypeError) as e:
            self.say(f"no window of NCCL's: {str(e).splitlines()[0][:150]}")
            return None
        return out

    def chunks(self, x, w, out, count):
        """GEMMs of so many chunks of the rows, each with its all-reduce, on two streams in turns."""
        streams = torch.cuda.Stream(), torch.cuda.Stream()

        def run():
            main = torch.cuda.current_stream()
            for s in streams:
                s.wait_stream(main)
            for i, (a, c) in enumerate(zip(x.chunk(count), out.chunk(count))):
                with torch.cuda.stream(streams[i % 2]):
                    torch.mm(a, w, out=c)
                    dist.all_reduce(c)
            for s in streams:
                main.wait_stream(s)

        return run

    def spread(self, m, n, k):
        """Each rank multiplies its rows by the whole weight, and all get the whole result. torch has no fused op for it."""
        x, w = self.random(m // self.ranks, k), self.random(k, n)
        y = torch.empty(m // self.ranks, n, dtype=torch.bfloat16, device=self.dev)
        whole = torch.empty(m, n, dtype=torch.bfloat16, device=self.dev)
        side = torch.cuda.Stream()
        parts = whole.view(self.ranks, PIECES, -1, n).unbind(1)  # of each, rows of every rank

        def sequential():
            torch.mm(x, w, out=y)
            dist.all_gather_into_tensor(whole, y)
            return whole

        def pieces():
            main = torch.cuda.current_stream()
            for a, c, part in zip(x.chunk(PIECES), y.chunk(PIECES), parts):
                torch.mm(a, w, out=c)
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    dist.all_gather(list(part), c)
            main.wait_stream(side)

        return lambda: torch.mm(x, w, out=y), {
            "GEMM, then nccl": sequential,
            f"nccl, {PIECES} pieces on two streams": pieces,
        }, (x, w)

    def program(self, op, shape, strategy, x, w, want):
        """Ways of hocket's program: eager, and in torch's graphs."""
        import hocket.bench

        hocket.init("cuda", timeout=PATIENCE)
        m, n, k = (int(e) for e in shape.split("x"))
        model = hocket.load(hocket.bench.program(op, m, n, k, self.ranks), strategy=strategy, lend=True)
        self.models.append(model)
        model.bind("w", w)
        for _ in range(3):
            got = model(x)
        model.synchronize()
        off = (got.float() - want).abs().max() / want.square().mean().sqrt()
        if not off < OFF:
            raise RuntimeError(f"the result is off by {off:.3g}")
        one, chain = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, count in (one, 1), (chain, CHAIN):
            with torch.cuda.graph(graph):
                for _ in range(count):
                    model(x)
        name = f"hocket from torch, {strategy}"
        return {name: eager(lambda: model(x)), name + GRAPH: (one.replay, chain.replay)}

    def set_up(self, op, shape, dtype):
        """Makes operands and warms up; what fails is left out."""
        if self.ready == (op, shape, dtype):
            return
        self.close()
        self.alone, calls, (x, w) = self.calls(op, shape, dtype)

        def warmed(name, call):
            for _ in range(3):
                self.alone()
                call()
            return {name: eager(call)}

        def add(name, ways, *args):
            try:
                self.others.update(ways(*args))
                torch.cuda.synchronize()
            except Exception as e:
                self.say(f"{op} by {name}, {shape}: {str(e).splitlines()[0][:150]}")

        for name, call in calls.items():
            add(name, warmed, name, call)
        strategies = self.strategies if dtype == "bf16" else []
        if strategies:
            want, weight = next(iter(calls.values()))().float(), w.t().contiguous()  # as a linear has it
        for strategy in strategies:
            add(f"hocket, {strategy}", self.program, op, shape, strategy, x, weight, want)
        self.ready = op, shape, dtype

    def close(self):
        """Lets go of the layer that is set up."""
        self.ready, self.alone, self.others, self.pool = None, None, {}, None
        torch.cuda.synchronize()
        for model in self.models:
            model.close()
        self.models = []
        torch.cuda.empty_cache()

    def once(self, way):
        """Microseconds of the GEMM alone, and of a call by a way in a chain and alone."""
        at = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        torch.cuda.synchronize()
        dist.barrier()
        time.sleep(RESTING)
        torch.cuda._sleep(2_000_000)  # the host gets ahead of the device
        alone = eager(self.alone)
        for part, (call, chain) in enumerate((alone, way, alone)):
            if part > 0:
                dist.all_reduce(self.flag)
            if part == 1:
                call()
            at[2 * part].record()
            chain()
            at[2 * part + 1].record()
        torch.cuda.synchronize()
        took = [at[2 * part].elapsed_time(at[2 * part + 1]) * 1e3 / CHAIN for part in range(3)]
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        way[0]()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - began) * 1e6)
        worst = torch.tensor(took, device=self.dev, dtype=torch.float64)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        before, layer, behind, single = worst.tolist()
        return (before + behind) / 2, (layer, single)

    def round(self, op, shape, dtype):
        """One sample of each, by name."""
        self.set_up(op, shape, dtype)
        out = {"GEMM alone": []}
        for name, way in self.others.items():
            alone, took = self.once(way)
            out["GEMM alone"].append((alone,))
            out[name] = [took]
        return out

    def lines(self, op, shape, dtype, times):
        figure = lambda name, us: dict(op=op, name=name, ranks=self.ranks, shape=shape, dtype=dtype,
                                       issued="graph" if name.endswith(GRAPH) else "eager",
                                       **{key: round(statistics.median(all), 2) for key, all in zip(("us", "single_us"), zip(*us))})
        return [json.dumps(figure(name, us)) for name, us in times.items() if us]

    def all(self, ops, shapes, dtype, rounds):
        for shape in shapes:
            for op in ops:
                times = {}
                for _ in range(rounds):
                    for name, us in self.round(op, shape, dtype).items():
                        times.setdefault(name, []).extend(us)
                for line in self.lines(op, shape, dtype, times):
                    self.say(line)

    def answer(self, folder):
        """Times what T.ask says; T.answer gets the lines."""
        for at in questions(folder):
            with open(at + ".ask") as f:
                asked = f.read().split()
            lines = self.lines(*asked, self.round(*asked))
            if self.rank == 0:
                with open(at + ".lines", "w") as f:
                    f.write("\n".join(lines) + "\n")
                os.rename(at + ".lines", at + ".answer")


def questions(folder):
    """Paths of questions, without the ending, in their order: each rank sees the same."""
    last, late = "", time.monotonic() + PATIENCE
    while time.monotonic() < late:
        new = sorted(name for name in os.listdir(folder) if name.endswith(".ask") and name > last)
        if not new:
            time.sleep(0.001)
            continue
        last = new[0]
        yield os.path.join(folder, last.removesuffix(".ask"))
        late = time.monotonic() + PATIENCE


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--shapes", default=SHAPES)
    args.add_argument("--ops", default=",".join(OPS))
    args.add_argument("--dtype", choices=DTYPES, default="bf16")
    args.add_argument("--rounds", type=int, default=7)
    args.add_argument("--turns", default="")
    args.add_argument("--hocket", metavar="STRATEGIES", default="",
                      help="times hocket's programs, too, by these strategies")
    args = args.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    bench = Bench(re.findall(r"[^,(]+(?:\([^)]*\))?", args.hocket))
    try:
        symm.enable_symm_mem_for_group(bench.group)  # older torch wants it, newer does it by itself
    except Exception:
        pass
    if args.turns:
        bench.answer(args.turns)
    else:
        bench.all(args.ops.split(","), args.shapes.split(","), args.dtype, args.rounds)
    bench.close()
    dist.destroy_process_group()


main()
