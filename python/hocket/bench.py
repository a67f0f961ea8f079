"""Compares the times of hocket, NCCL and torch's symmetric memory, with one process for each GPU:

    torchrun --nproc-per-node 2 -m hocket.bench                          # all_reduce, 15 sizes
    torchrun --nproc-per-node 2 -m hocket.bench all_gather norm layers   # others; --tsv FILE adds rows to a file
    torchrun --nproc-per-node 2 -m hocket.bench --vllm ./vllm.so         # beside vLLM's too: see tools/peers/vllm.cu

A collective's time is that of a call in a torch CUDA graph of 50, and all_reduce's also of one of 50 eager calls. A
layer's is that of one of 10 eager calls, and of a call in a graph of 10; where results can be lent, with lent ones too.
Each round replays all of them one after another, each after a barrier; the reported time is the median of the rounds on
the slowest rank. Results are compared before anything is timed. NVLink multicast is off unless the environment says
otherwise.
"""

import argparse
import ctypes
import datetime
import itertools
import json
import operator
import os
import statistics
import subprocess
import sys
import time

from . import _lib

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

SIZES = [1 << k for k in range(10, 25)]  # bytes
NORM_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
MOVES = ("all_gather", "reduce_scatter", "all_to_all")
LAYERS = [("ag-gemm", 8192, 8192, 8192), ("gemm-rs", 8192, 8192, 8192), ("gemm-ar", 8192, 8192, 8192),
          ("gemm-ar", 2048, 8192, 28672)]
CALLED = [(16, 1024, 2048), (512, 4096, 4096)]  # M, N and K of programs whose eager calls are waited for
STRATEGIES = ("sequential", "exchange", "chunked", "auto")
PROGRAMS = {
    "ag-gemm": "func f(%x: bf16[M/tp, K], %w: bf16[N/tp, K]) -> bf16[M, N/tp]",
    "gemm-rs": "func f(%x: bf16[M, K/tp], %w: bf16[N, K/tp]) -> bf16[M/tp, N]",
    "gemm-ar": "func f(%x: bf16[M, K/tp], %w: bf16[N, K/tp]) -> bf16[M, N]",
    "gemm-ag": "func f(%x: bf16[M/tp, K], %w: bf16[N, K]) -> bf16[M, N]",
}


def program(kind, m, n, k, ranks):
    """The text of a layer: all_gather and linear, or linear and reduce_scatter, all_reduce or all_gather."""
    return f"dim M = {m}\ndim N = {n}\ndim K = {k}\ndim R = {ranks}\nmesh tp[R]\n{PROGRAMS[kind]} {{\n" \
           "  %y = linear %x, %w\n  return %y\n}\n"


class VLLM:
    """vLLM's custom all-reduce, in a library made from tools/peers/vllm.cu. All inputs are in one symmetric tensor."""

    RANKS = (2, 4, 6, 8)
    LIMIT = 8 << 20  # vLLM leaves inputs of this many bytes and more to others

    def __init__(self, file, bench, shared, peers):
        self.torch, self.lib, self.made = bench.torch, ctypes.CDLL(os.path.abspath(file)), ctypes.c_void_p()
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for name, args in {"make": [pointer, pointer, pointer, size, pointer, size, number, number],
                           "all_reduce": [pointer, pointer, pointer, pointer, number], "captured": [pointer]}.items():
            f = getattr(self.lib, f"vllm_{name}")
            f.argtypes, f.restype = args, ctypes.c_char_p
        self.lib.vllm_signal_bytes.argtypes, self.lib.vllm_signal_bytes.restype = [], size
        signals, at = bench.symmetric(self.lib.vllm_signal_bytes() + self.LIMIT, self.torch.uint8)
        ranks = self.torch.zeros(1 << 20, dtype=self.torch.uint8, device=bench.device)
        self.memory = signals, ranks, shared  # which the library does not own
        self.torch.cuda.synchronize()
        bench.dist.barrier()  # all signals are zero
        array = pointer * bench.size
        self.call("make", ctypes.byref(self.made), array(*at), ranks.data_ptr(), ranks.nbytes, array(*peers),
                  shared.nbytes, bench.rank, bench.size)

    def call(self, name, *args):
        if message := getattr(self.lib, f"vllm_{name}")(*args):
            raise RuntimeError(f"vLLM: {message.decode()}")

    def all_reduce(self, t, out):
        self.call("all_reduce", self.made, self.torch.cuda.current_stream().cuda_stream, t.data_ptr(), out.data_ptr(),
                  t.numel())

    def captured(self):
        """Registers the addresses of peers' inputs for the graphs that were captured since the last call."""
        self.call("captured", self.made)


class Bench:
    """The processes, and where rows go."""

    def __init__(self, rounds, tsv, vllm):
        import torch
        import torch.distributed as dist

        import hocket
        self.torch, self.dist, self.hocket = torch, dist, hocket
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        torch.cuda.set_device(local)
        self.device = torch.device("cuda", local)
        dist.init_process_group("nccl", device_id=self.device)
        hocket.init("cuda", timeout=120)
        self.rounds, self.tsv, self.vllm, self.group = rounds, tsv, vllm, dist.group.WORLD.group_name
        self.stream = torch.cuda.Stream()

    def say(self, *words):
        if self.rank == 0:
            print(*words, flush=True)

    def row(self, who, op, shape, issue, us):
        """Writes a row of docs/measured/torch.tsv's form."""
        if self.rank or not self.tsv:
            return
        name = self.torch.cuda.get_device_name().removeprefix("NVIDIA ").split(" ")[0]
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, check=False).stdout.split("\n")[0]
        commit = os.environ.get("HOCKET_COMMIT", self.hocket.__version__)
        with open(self.tsv, "a", encoding="utf-8") as f:
            print(f"{self.size}x{name}", driver, commit, datetime.date.today(), who, op, "bf16", self.size, shape,
                  issue, f"{us:.2f}", sep="\t", file=f)

    def tensor(self, *shape):
        return self.torch.zeros(shape, dtype=self.torch.bfloat16, device=self.device)

    def symmetric(self, count, dtype):
        """Returns a tensor of zeros in torch's symmetric memory, and the addresses at which this process can access
        each rank's tensor."""
        import torch.distributed._symmetric_memory as symm
        t = symm.empty(count, dtype=dtype, device=self.device).zero_()
        at = symm.rendezvous(t, self.group).buffer_ptrs
        return t, [p + t.data_ptr() - at[self.rank] for p in at]

    def ints(self, *shape, seed=0):
        g = self.torch.Generator(device="cuda")
        g.manual_seed(100 * seed + self.rank)
        return self.torch.randint(-4, 5, shape, generator=g, device=self.device).to(self.torch.bfloat16)

    def reals(self, *shape, seed=0):
        """Uniform in [-1, 1), as `hocket bench PROGRAM` has them: how much power a GPU takes depends on the values."""
        g = self.torch.Generator(device="cuda")
        g.manual_seed(100 * seed + self.rank)
        return self.torch.rand(*shape, generator=g, device=self.device).mul_(2).sub_(1).to(self.torch.bfloat16)

    def captured(self, call, count):
        """A graph of count calls, after a call by itself."""
        torch = self.torch
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=self.stream):
            for _ in range(count):
                call()
        return g

    def times(self, ways, count):
        """Returns the microseconds of a call for each of several implementations, by name: the graph or function that
        an implementation returns is replayed or called."""
        torch, dist = self.torch, self.dist
        samples = {name: [] for name in ways}
        for i in range(self.rounds + 1):
            for name, go in ways.items():
                torch.cuda.synchronize()
                dist.barrier()
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                with torch.cuda.stream(self.stream):
                    go()
                    begin.record()
                    go()
                    end.record()
                torch.cuda.synchronize()
                if i:
                    samples[name].append(begin.elapsed_time(end) * 1e3 / count)
        names = list(ways)
        worst = torch.tensor([statistics.median(samples[n]) for n in names], device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return dict(zip(names, worst.tolist()))

    def report(self, op, shape, took, issue):
        """Prints a line and writes rows."""
        best = min((us for n, us in took.items() if not n.startswith("hocket")), default=None)
        ours = min(us for n, us in took.items() if n.startswith("hocket"))
        ahead = f"{best / ours:.2f} × the best other" if best else ""
        figures = "  ".join(f"{n} {us:.2f}" for n, us in took.items())
        self.say(f"{op:15s} {shape!s:>20s} {issue:12s}", figures, "µs ", ahead)
        for n, us in took.items():
            self.row(n, op, shape, issue, us)

    def all_reduce(self):
        torch, dist = self.torch, self.dist
        shared, peers = self.symmetric(SIZES[-1] // 2, torch.bfloat16)
        vllm = None
        if self.vllm and self.size in VLLM.RANKS:
            vllm = VLLM(self.vllm, self, shared, peers)
            self.say(f"vLLM takes fewer than {VLLM.LIMIT} bytes: larger sizes are without it. "
                     "Eager calls are without its copy of the input into a registered buffer.")
        elif self.vllm:
            self.say(f"vLLM takes {', '.join(map(str, VLLM.RANKS))} ranks, not {self.size}: it is left out")
        for nbytes in SIZES:
            n = nbytes // 2
            x, y = self.ints(n), self.ints(n)
            want = x.clone()
            dist.all_reduce(want)
            assert torch.equal(self.hocket.all_reduce(x.clone()), want), f"all_reduce of {nbytes} bytes is wrong"
            z, part, other = self.tensor(n), shared[:n], self.tensor(n)
            ways = {
                "hocket": lambda: self.hocket.all_reduce(z),
                "NCCL": lambda: dist.all_reduce(y),
                "torch one-shot": lambda: torch.ops.symm_mem.one_shot_all_reduce_out(part, "sum", self.group, other),
                "torch two-shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", self.group),
            }
            if vllm and nbytes < VLLM.LIMIT:
                ways["vLLM custom"] = lambda: vllm.all_reduce(part, other)
            y.zero_()
            graphs = {k: self.captured(f, 50).replay for k, f in ways.items()}
            if "vLLM custom" in ways:
                vllm.captured()
                for go in ways["vLLM custom"], graphs["vLLM custom"]:
                    part.copy_(x)
                    other.zero_()
                    go()
                    assert torch.equal(other, want), f"vLLM's all_reduce of {nbytes} bytes is wrong"
                part.zero_()
            self.report("all_reduce", nbytes, self.times(graphs, 50), "torch graph")
            del graphs
            eager = {k: lambda f=f: [f() for _ in range(50)] for k, f in ways.items()}
            self.report("all_reduce", nbytes, self.times(eager, 50), "eager")

    def moves(self, op):
        torch, dist = self.torch, self.dist
        theirs = {"all_gather": dist.all_gather_into_tensor, "reduce_scatter": dist.reduce_scatter_tensor,
                  "all_to_all": dist.all_to_all_single}[op]
        ours = getattr(self.hocket, op)
        for nbytes in SIZES:
            n = nbytes // 2
            x = self.ints(n // self.size if op == "all_gather" else n)
            out = self.tensor(n // self.size if op == "reduce_scatter" else n)
            theirs(out, x)
            assert torch.equal(ours(x), out), f"{op} of {nbytes} bytes is wrong"
            ways = {"hocket": lambda: ours(x), "NCCL": lambda: theirs(out, x)}
            self.report(op, nbytes, self.times({k: self.captured(f, 50).replay for k, f in ways.items()}, 50),
                        "torch graph")

    def norm(self):
        """Compares hocket's single call with each all-reduce followed by an add and a norm that torch compiles for the
        shape."""
        torch, dist = self.torch, self.dist
        width, eps = 8192, 1e-5
        weight = self.ints(width, seed=3)
        shared, _ = self.symmetric(NORM_ROWS[-1] * width, torch.bfloat16)

        def plain(t, r):
            s = t + r
            f = s.float()
            return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)).to(s.dtype) * weight, s

        for rows in NORM_ROWS:
            torch.compiler.reset()  # torch compiles a function for a few shapes only
            add_norm = torch.compile(plain, dynamic=False)
            x, r = self.ints(rows, width), self.ints(rows, width, seed=7)
            y, part, other = x.clone(), shared[:rows * width].view(rows, width), torch.empty_like(x)
            part.copy_(x)

            def nccl():
                dist.all_reduce(y)
                return add_norm(y, r)

            def one_shot():
                torch.ops.symm_mem.one_shot_all_reduce_out(part, "sum", self.group, other)
                return add_norm(other, r)

            def two_shot():
                torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", self.group)
                return add_norm(part, r)

            def apart():
                self.hocket.all_reduce(x, out=other)
                return add_norm(other, r)

            ways = {"hocket": lambda: self.hocket.all_reduce_rms_norm(x, r, weight, eps),
                    "hocket all_reduce, compiled": apart, "NCCL, compiled": nccl,
                    "torch one-shot, compiled": one_shot, "torch two-shot, compiled": two_shot}
            self.check_norm(ways, x, r, weight, eps)
            y.zero_()
            part.zero_()  # summed in place again and again
            graphs = {k: self.captured(f, 50).replay for k, f in ways.items()}
            self.report("all_reduce+norm", f"{rows}x{width}", self.times(graphs, 50), "torch graph")
            del graphs

    def check_norm(self, ways, x, r, weight, eps):
        """Checks that the sums of each implementation are exact, and that its norms are within the precision of
        bf16."""
        torch = self.torch
        s = x.clone()
        self.dist.all_reduce(s)
        s += r
        want = s.double()
        want = want * (want.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
        for name in sorted(ways, key=lambda name: "two-shot" in name):  # which overwrites one-shot's operand
            out, added = ways[name]()
            off = ((out.double() - want).abs() - want.abs() * 2**-6).max().item()
            assert torch.equal(added, s) and off <= 0, f"{name}: {list(x.shape)} is wrong by {off}"

    def layers(self):
        torch, dist = self.torch, self.dist
        for kind, m, n, k in LAYERS:
            if kind == "ag-gemm":
                x, w = self.reals(m // self.size, k), self.reals(n // self.size, k, seed=5)
            else:
                x, w = self.reals(m, k // self.size), self.reals(n, k // self.size, seed=5)
            whole = self.tensor(m, k) if kind == "ag-gemm" else None
            shard = self.tensor(m // self.size, n) if kind == "gemm-rs" else None

            def nccl():
                if kind == "ag-gemm":
                    dist.all_gather_into_tensor(whole, x)
                    return whole @ w.t()
                y = x @ w.t()
                if kind == "gemm-rs":
                    dist.reduce_scatter_tensor(shard, y)
                    return shard
                dist.all_reduce(y)
                return y

            want, models, ways = nccl().float(), [], {"torch, NCCL": nccl}
            for strategy, lend in itertools.product(STRATEGIES, (False, True)):
                try:
                    model = self.hocket.load(program(kind, m, n, k, self.size), strategy=strategy, lend=lend)
                    model.bind("w", w)
                    got = model(x).float()
                except self.hocket.ProgramError as e:
                    self.say(f"{kind} by {strategy}: {str(e).splitlines()[0][:120]}")
                    continue
                if lend and not model.lends():
                    model.close()  # it is as without
                    continue
                off = ((got - want).abs() - 0.01 * want.abs()).max().item()
                assert off < 24, f"{kind} by {strategy} is wrong by {off}"
                models.append(model)
                ways[f"hocket {strategy}{', lent' if lend else ''}"] = lambda model=model: model(x)
            eager = {name: (lambda f=f: [f() for _ in range(10)]) for name, f in ways.items()}
            for f in eager.values():
                f()
            self.report(kind, f"{m}x{n}x{k}", self.times(eager, 10), "eager")
            graphs = {name: self.captured(f, 10) for name, f in ways.items()}
            self.report(kind, f"{m}x{n}x{k}", self.times({name: g.replay for name, g in graphs.items()}, 10),
                        "torch graph")
            for model in models:
                model.synchronize()
            del graphs
            for model in models:
                model.close()

    def host(self):
        """Measures the host time of a single call, of a collective and of a program."""
        x, y = self.tensor(4096), self.tensor(4096)
        took = {}
        for name, call in (("hocket", lambda: self.hocket.all_reduce(x)), ("NCCL", lambda: self.dist.all_reduce(y))):
            for _ in range(50):
                call()
            self.torch.cuda.synchronize()
            samples = []
            for _ in range(self.rounds):
                began = time.perf_counter()
                for _ in range(100):
                    call()
                samples.append((time.perf_counter() - began) * 1e4)
                self.torch.cuda.synchronize()
            took[name] = statistics.median(samples)
        self.report("host", 8192, took, "eager")
        self.model_calls()

    def model_calls(self):
        """Measures the time of a call of a program for a caller that waits for its end, compared with a replay of
        torch's graph, and the phases of the call on the host."""
        for m, n, k in CALLED:
            x, w = self.reals(m, k // self.size), self.reals(n, k // self.size, seed=5)
            shape, model = f"{m}x{n}x{k}", self.hocket.load(program("gemm-ar", m, n, k, self.size), strategy="sequential")
            model.bind("w", w)
            want = x @ w.t()
            self.dist.all_reduce(want)
            call = lambda model=model, x=x: model(x)
            took = {"hocket eager": self.waited("eager", shape, call)}
            graph = self.captured(call, 1)
            took["hocket after a capture"] = self.waited("after a capture", shape, call)
            took["hocket torch graph"] = self.waited(None, shape, graph.replay)

            def plain(x=x, w=w):
                y = x @ w.t()
                self.dist.all_reduce(y)
                return y

            took["torch, NCCL"] = self.waited(None, shape, plain)
            recorded = self.hocket.load(program("gemm-ar", m, n, k, self.size), strategy="sequential", graph=True)
            recorded.bind("w", w)
            took["hocket graph=True"] = self.waited("with graph=True", shape, lambda recorded=recorded, x=x: recorded(x))
            off = ((call().float() - want.float()).abs() - 0.01 * want.float().abs()).max().item()
            assert off < 24, f"gemm-ar of {shape} is wrong by {off}"
            self.report("waited for", shape, took, "eager")
            for used in (model, recorded):
                used.synchronize()
            del graph
            for used in (model, recorded):
                used.close()

    def waited(self, phases, shape, call):
        """The median time in µs of a call and of the wait for its end, on the slowest rank. It prints the phases of calls
        under the name phases, unless that is None."""
        torch, dist = self.torch, self.dist
        with torch.cuda.stream(self.stream):
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            if phases:
                _lib.call_text("hocket_laps", 1)
            returned, ended = [], []
            for _ in range(100 * self.rounds):
                began = time.perf_counter_ns()
                call()
                returned.append(time.perf_counter_ns() - began)
                torch.cuda.synchronize()
                ended.append(time.perf_counter_ns() - began)
        if phases:
            own = [(p["name"], p["median"], p["late"]) for p in json.loads(_lib.call_text("hocket_laps", 0))]
            inside = sum(median for _, median, _ in own)
            own.append(("Python and the way into the library", statistics.median(returned) / 1e3 - inside, None))
            own.append(("from the return to the end", statistics.median(map(operator.sub, ended, returned)) / 1e3, None))
            lists = [None] * self.size
            dist.all_gather_object(lists, own)
            for rank, phases_of in enumerate(lists):
                self.say(f"phases {phases}, {shape}, rank {rank}, median and 90th percentile in µs:")
                for name, median, late in phases_of:
                    self.say(f"  {name:40s} {median:8.1f}" + ("" if late is None else f" {late:8.1f}"))
        worst = torch.tensor([statistics.median(ended) / 1e3], device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return worst.item()


def main():
    args = argparse.ArgumentParser(prog="hocket.bench", description=__doc__.split("\n\n", maxsplit=1)[0])
    known = ("all_reduce", *MOVES, "norm", "layers", "host")
    args.add_argument("ops", nargs="*", default=["all_reduce"], help=", ".join(known))
    args.add_argument("--rounds", type=int, default=7)
    args.add_argument("--tsv", help="a file to add rows to, of the form of docs/measured/torch.tsv")
    args.add_argument("--vllm", metavar="FILE", help="times vLLM's all-reduce too, in a library made from vllm.cu")
    args = args.parse_args()
    unknown = [o for o in args.ops if o not in known]
    if unknown:
        sys.exit(f"hocket.bench: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    if "RANK" not in os.environ:
        sys.exit("hocket.bench: start it by torchrun: torchrun --nproc-per-node 2 -m hocket.bench")
    import torch
    if not torch.cuda.is_available():
        sys.exit("hocket.bench: it measures GPUs, and torch finds none")
    bench = Bench(args.rounds, args.tsv, args.vllm)
    for op in args.ops:
        if op in MOVES:
            bench.moves(op)
        else:
            getattr(bench, op)()
    bench.hocket.synchronize()
    bench.torch.cuda.synchronize()
    bench.dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # graphs that hold NCCL's calls do not always let the group end


if __name__ == "__main__":
    main()
