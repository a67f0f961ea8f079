"""Collectives by NCCL and by torch's symmetric memory, timed as `hocket bench` times its own.

    torchrun --nproc_per_node=2 collectives.py [--ops all_reduce,all_gather] [--sizes 1024,65536] [--rounds 5]

Prints a line of JSON for each figure. A chain of calls is captured in a graph, and a longer one; the time of a call is
the difference of a replay of each over their difference in calls, so that what a replay costs falls out. A replay before
hides the host. Each round synchronises all ranks; a rank's figure is its median, and the slowest rank's is printed.
Operands are the same in every call. Bytes are those of the largest operand of a rank.
"""
import argparse
import json
import os
import statistics

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, here or below
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

ROW = 8192 * 2
ROWS = [1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 3062, 4096]
POWERS = [4096 << k for k in (0, 4, 8, 12, 14, 16)]


def chains(nbytes):
    """Lengths of the two chains, as internal/bench has them."""
    return (10, 40) if nbytes >= 4 << 20 else (10, 50)


class Bench:
    def __init__(self, rounds):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.dev = torch.device("cuda", self.rank)
        self.stream = torch.cuda.Stream()
        self.rounds = rounds
        self.group = dist.group.WORLD.group_name

    def graph(self, call, count):
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=self.stream):
            for _ in range(count):
                call()
        return g

    def time(self, call, nbytes):
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        dist.barrier()
        few, many = chains(nbytes)
        short, long = self.graph(call, few), self.graph(call, many)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        samples = []
        for _ in range(self.rounds + 1):
            torch.cuda.synchronize()
            dist.barrier()
            with torch.cuda.stream(self.stream):
                long.replay()
                marks[0].record()
                short.replay()
                marks[1].record()
                long.replay()
                marks[2].record()
            torch.cuda.synchronize()
            samples.append((marks[1].elapsed_time(marks[2]) - marks[0].elapsed_time(marks[1])) * 1e3 / (many - few))
        worst = torch.tensor([statistics.median(samples[1:])], device=self.dev)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return worst.item()

    def report(self, op, name, nbytes, call):
        """Times a call; one that this torch or NCCL does not have is left out, and said to be."""
        try:
            us = self.time(call, nbytes)
        except Exception as e:  # the figures of the others are still wanted
            if self.rank == 0:
                print(f"{op} by {name}, {nbytes} bytes: {str(e).splitlines()[0][:150]}", flush=True)
            return
        if self.rank == 0:
            line = dict(op=op, name=name, ranks=self.ranks, bytes=nbytes, dtype="bf16", issued="graph", us=round(us, 3))
            print(json.dumps(line), flush=True)


def windows(dev, count):
    """Two tensors in memory that NCCL has as symmetric windows; None where it does not do that."""
    backend = dist.group.WORLD._get_backend(dev)
    try:
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            pair = [torch.empty(count, dtype=torch.bfloat16, device=dev) for _ in range(2)]
        backend.register_mem_pool(pool, symm=True)
        return pool, pair
    except Exception as e:
        if dist.get_rank() == 0:
            print(f"no symmetric windows: {str(e).splitlines()[0][:150]}", flush=True)
        return None, None


def calls(op, ranks, a, b, n):
    """The call of an op on n elements, from a into b, in NCCL's names."""
    if op == "all_reduce":
        return lambda: dist.all_reduce(a[:n])
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(b[:n], a[: n // ranks])
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(b[: n // ranks], a[:n])
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(b[:n], a[:n])
    return lambda: dist.broadcast(a[:n], src=0)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--ops", default="all_reduce,all_gather,reduce_scatter,all_to_all,broadcast")
    args.add_argument("--sizes", default="")
    args.add_argument("--rounds", type=int, default=5)
    args = args.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    bench = Bench(args.rounds)
    sizes = [int(s) for s in args.sizes.split(",") if s]
    most = max(sizes or POWERS) // 2
    a, b = (torch.zeros(most, dtype=torch.bfloat16, device=bench.dev) for _ in range(2))
    pool, pair = windows(bench.dev, most)
    shared = symm.empty(most, dtype=torch.bfloat16, device=bench.dev).zero_()
    symm.rendezvous(shared, bench.group)
    for op in args.ops.split(","):
        usual = [r * ROW for r in ROWS] if op == "all_reduce" else POWERS
        for nbytes in sizes or usual:
            n = nbytes // 2
            bench.report(op, "nccl", nbytes, calls(op, bench.ranks, a, b, n))
            if pair is not None:
                bench.report(op, "nccl windows", nbytes, calls(op, bench.ranks, *pair, n))
            if op != "all_reduce":
                continue
            x, y = shared[:n], b[:n]
            if nbytes <= 16 << 20:
                bench.report(op, "torch one-shot", nbytes, lambda: torch.ops.symm_mem.one_shot_all_reduce_out(x, "sum", bench.group, y))
            bench.report(op, "torch two-shot", nbytes, lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", bench.group))
    dist.barrier()
    torch.cuda.synchronize()
    os._exit(0)  # graphs that hold NCCL's calls do not always let the group end


main()
