"""What an eager all_reduce costs its caller, and which part of the call takes how long.

    torchrun --nproc_per_node=2 tools/peers/eager_call.py [--bytes 1024,65536,524288] [--calls 50]

Prints a row for each size and way: µs of a call until the last of --calls calls has returned (host), and until the GPU has
finished (total), of the slower rank, medians of the rounds. All ways are measured on torch's default stream and on a side
stream, before and after the process has captured a CUDA graph. The ways are hocket's call in place and into another
tensor, its Python part with a library that does nothing, the call into the library alone, torch's symmetric memory, and a
kernel of torch. No JSON.
"""
import argparse
import functools
import os
import statistics
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast, here or below
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

import hocket
from hocket import _lib, _world

SUM, BF16, ALL_REDUCE = 0, 3, 0  # numbers of hocket.h


def measure(call, calls, rounds):
    """The microseconds of a call: until the last one has returned, and until the GPU has finished."""
    for _ in range(20):
        call()
    samples = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        samples.append(((returned - began) / calls * 1e6, (time.perf_counter() - began) / calls * 1e6))
    slowest = torch.tensor([statistics.median(column) for column in zip(*samples)], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.tolist()


def ways(size, group):
    """The calls by name."""
    n = size // 2
    x = torch.zeros(n, dtype=torch.bfloat16, device="cuda")
    y = torch.empty_like(x)
    shared = symm.empty(n, dtype=torch.bfloat16, device="cuda").zero_()
    name = dist.group.WORLD.group_name
    symm.rendezvous(shared, name)
    stream, at, library = group.stream(), x.data_ptr(), _lib.lib().do

    def python_alone():
        group.call = "".format  # it takes any arguments, and returns an empty string, which is no error
        hocket.all_reduce(x)

    return {
        "hocket, in place": functools.partial(hocket.all_reduce, x),
        "hocket, into another tensor": functools.partial(hocket.all_reduce, x, out=y),
        "hocket, the library alone": functools.partial(library, group.handle.value, ALL_REDUCE, SUM, BF16, 0, n, stream, at, at),
        "hocket, Python alone": python_alone,
        "torch one-shot": functools.partial(torch.ops.symm_mem.one_shot_all_reduce_out, shared, "sum", name, y),
        "torch two-shot": functools.partial(torch.ops.symm_mem.two_shot_all_reduce_, shared, "sum", name),
        "a kernel of torch": x.neg_,
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bytes", type=lambda s: [int(n) for n in s.split(",")], default=[1 << 10, 64 << 10, 512 << 10])
    p.add_argument("--calls", type=int, default=50)
    p.add_argument("--rounds", type=int, default=21)
    a = p.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    hocket.init("cuda")
    say = functools.partial(print, flush=True) if dist.get_rank() == 0 else lambda *_: None
    say(f"torch {torch.__version__}, hocket {_lib.build()}, {torch.cuda.get_device_name()}, {a.calls} calls in a row")
    say(f"{'':28} {'bytes':>8} {'stream':>8} {'captured':>9} {'host':>7} {'total':>7}")
    first = torch.zeros(1, device="cuda")
    hocket.all_reduce(first)
    group, side = _world._state.group, torch.cuda.Stream()
    real = group.call
    for captured in (False, True):
        if captured:
            side.wait_stream(torch.cuda.current_stream())
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                hocket.all_reduce(first)
            graph.replay()
            torch.cuda.synchronize()
        for size in a.bytes:
            for where, stream in ("default", torch.cuda.default_stream()), ("side", side):
                with torch.cuda.stream(stream):
                    for name, call in ways(size, group).items():
                        try:
                            host, total = measure(call, a.calls, a.rounds)
                        finally:
                            group.call = real
                        say(f"{name:28} {size:8} {where:>8} {'yes' if captured else 'no':>9} {host:7.2f} {total:7.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
