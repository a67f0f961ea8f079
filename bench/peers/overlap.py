"""A collective with the GEMM next to it: torch's fused ops, and NCCL before or behind the GEMM.

    torchrun --nproc_per_node=2 overlap.py [--shapes 8192x28672x8192,2048x8192x28672] [--rounds 7]

Prints a line of JSON for each figure: microseconds of the slowest rank, median of rounds, of a chain of six calls without
synchronisation between them, as `hocket bench ag-gemm` chains layers. Shapes are MxNxK over all ranks.
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

SHAPES = "8192x28672x8192,8192x8192x28672,2048x28672x8192,2048x8192x28672,8192x10240x8192"
CHAIN = 6


class Bench:
    def __init__(self, rounds):
        self.rank, self.ranks, self.rounds = dist.get_rank(), dist.get_world_size(), rounds
        self.dev = torch.device("cuda", self.rank)
        self.group = dist.group.WORLD.group_name

    def time(self, call):
        for _ in range(3):
            call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        samples = []
        for _ in range(self.rounds):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda._sleep(2_000_000)  # the host gets ahead of the device
            begin.record()
            for _ in range(CHAIN):
                call()
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e3 / CHAIN)
        worst = torch.tensor([statistics.median(samples)], device=self.dev)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return worst.item()

    def report(self, op, name, shape, call):
        try:
            us = self.time(call)
        except Exception as e:
            if self.rank == 0:
                print(f"{op} by {name}, {shape}: {str(e).splitlines()[0][:150]}", flush=True)
            return
        if self.rank == 0:
            print(json.dumps(dict(op=op, name=name, ranks=self.ranks, shape=shape, dtype="bf16", issued="eager", us=round(us, 2))), flush=True)

    def random(self, *shape, make=torch.empty):
        return make(*shape, dtype=torch.bfloat16, device=self.dev).normal_()

    def gathered(self, shape, m, n, k):
        """Rows of x are spread over ranks and gathered, columns of the result stay where they are."""
        x = self.random(m // self.ranks, k, make=symm.empty)
        symm.rendezvous(x, self.group)
        w, whole = self.random(k, n // self.ranks), self.random(m, k)
        y = torch.empty(m, n // self.ranks, dtype=torch.bfloat16, device=self.dev)

        def sequential():
            dist.all_gather_into_tensor(whole, x)
            torch.mm(whole, w, out=y)

        self.report("ag-gemm", "GEMM alone", shape, lambda: torch.mm(whole, w, out=y))
        self.report("ag-gemm", "nccl, then GEMM", shape, sequential)
        self.report("ag-gemm", "torch fused", shape, lambda: torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, self.group))

    def reduced(self, shape, m, n, k):
        """The contraction is spread over ranks; its partial results are reduced, to rows or on all."""
        x, w = self.random(m, k // self.ranks), self.random(k // self.ranks, n)
        y = torch.empty(m, n, dtype=torch.bfloat16, device=self.dev)
        rows = torch.empty(m // self.ranks, n, dtype=torch.bfloat16, device=self.dev)

        def scattered():
            torch.mm(x, w, out=y)
            dist.reduce_scatter_tensor(rows, y)

        def everywhere():
            torch.mm(x, w, out=y)
            dist.all_reduce(y)

        self.report("gemm-rs", "GEMM alone", shape, lambda: torch.mm(x, w, out=y))
        self.report("gemm-rs", "GEMM, then nccl", shape, scattered)
        self.report("gemm-rs", "torch fused", shape, lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w, "sum", 0, self.group))
        self.report("gemm-ar", "GEMM, then nccl", shape, everywhere)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--shapes", default=SHAPES)
    args.add_argument("--rounds", type=int, default=7)
    args = args.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    bench = Bench(args.rounds)
    try:
        symm.enable_symm_mem_for_group(bench.group)  # older torch wants it, newer does it by itself
    except Exception:
        pass
    for shape in args.shapes.split(","):
        m, n, k = (int(e) for e in shape.split("x"))
        bench.gathered(shape, m, n, k)
        bench.reduced(shape, m, n, k)
    dist.destroy_process_group()


main()
