"""What the forum's program takes of a GPU in torch: linears, an all-reduce after each, by several uses of the allocator.

    torchrun --nproc_per_node=2 memory.py [--layers 8,32] [--batch 4096] [--dim 8192] [--limit 4] [--snapshots FOLDER]

Prints a line of JSON for each figure, of rank 0 and of the rank that takes the most. Ways to reduce:

    sync           all_reduce on the current stream
    record_stream  on a second stream; the tensor is recorded on it, so its memory comes back when an event has passed
    second stream  the same without recording: the current stream waits for the second before the tensor is dropped
    async_op       all_reduce(async_op=True).wait(): NCCL's stream, and torch keeps the tensor until wait
    reuse          record_stream with the allocator's setting graph_capture_record_stream_reuse, which only capture heeds

issued is "eager": five iterations as fast as the host goes; "graph": one iteration captured, replayed five times;
"graph of 5": the five captured. Peaks are of the first time. The largest batch is found by bisection: the allocator
may reserve --limit GiB, of which weights of the first of --layers take a part; it runs out first where memory that
waits cannot be had back. Weights are whole on each rank, as in the forum's program, or, "sharded", split over them.
"""
import argparse
import gzip
import json
import os
import pickle

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")  # ranks need not capture together

import torch
import torch.distributed as dist

WAYS = "sync", "record_stream", "second stream", "async_op", "reuse"
ITERATIONS = 5
UNIT = 128  # rows that batches are multiples of


class Bench:
    def __init__(self, options):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.dev = torch.device("cuda", self.rank)
        self.dim = options.dim
        self.main, self.side = torch.cuda.Stream(), torch.cuda.Stream()
        self.flag = torch.zeros(4, dtype=torch.int64, device=self.dev)
        self.weights, self.sharded, self.reduced = [], False, 0
        self.recording = self.reuse = False

    def say(self, **line):
        if self.rank == 0:
            print(json.dumps({"op": "memory", "ranks": self.ranks, "weights": "sharded" if self.sharded else "whole",
                              "layers": len(self.weights), "dim": self.dim, **line}), flush=True)

    def most(self, *values):
        """The largest of all ranks, of each value."""
        self.flag[:len(values)] = torch.tensor(values)
        dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
        return self.flag.tolist()[:len(values)]

    def load(self, layers, sharded):
        """Makes the weights, and has libraries take what they take once."""
        self.weights, self.sharded = [], sharded
        torch.cuda.empty_cache()
        rows = self.dim // self.ranks if sharded else self.dim
        with torch.no_grad(), torch.cuda.stream(self.main):  # of which cuBLAS has a workspace
            for _ in range(layers):
                w = torch.empty(rows, self.dim, dtype=torch.bfloat16, device=self.dev)
                self.weights.append(w.normal_(0, self.dim ** -0.5))
            for way in WAYS:
                self.iteration(way, torch.zeros(UNIT, self.dim, dtype=torch.bfloat16, device=self.dev))
        torch.cuda.synchronize()

    def iteration(self, way, y):
        """One iteration of the forum's program."""
        rows = self.weights[0].shape[0]
        for w in self.weights:
            y = y[:, self.rank * rows:(self.rank + 1) * rows] @ w if self.sharded else y @ w
            self.reduced += 1
            if way == "sync":
                dist.all_reduce(y)
            elif way == "async_op":
                dist.all_reduce(y, async_op=True).wait()
            else:
                self.side.wait_stream(self.main)
                with torch.cuda.stream(self.side):
                    dist.all_reduce(y)
                if way != "second stream":
                    y.record_stream(self.side)
                self.main.wait_stream(self.side)
        return y

    def run(self, way, issued, x):
        """Runs or captures the program and returns what runs it again."""
        if issued == "eager":
            def again():
                self.reduced = 0
                for _ in range(ITERATIONS):
                    self.iteration(way, x)
            again()
            return again
        graph, captured = torch.cuda.CUDAGraph(), 1 if issued == "graph" else ITERATIONS
        with torch.cuda.graph(graph, stream=self.main, capture_error_mode="thread_local"):
            for _ in range(captured):
                y = self.iteration(way, x)

        def again():
            for _ in range(ITERATIONS // captured):
                graph.replay()
            return y  # as long as the graph
        return again

    def attempt(self, way, issued, batch, timed=True):
        """Peaks and microseconds an iteration; None where a rank runs out of memory."""
        if self.reuse != (way == "reuse"):
            self.reuse = way == "reuse"
            setting(self.reuse)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        x = again = None
        us = short = 0

        def complete(do):
            """Does it, or where memory is short what the peers wait for."""
            nonlocal short
            try:
                return do()
            except torch.OutOfMemoryError:
                short = 1
            if x is not None and issued == "eager":
                for _ in range(ITERATIONS * len(self.weights) - self.reduced):
                    dist.all_reduce(x)

        def inputs():
            return torch.empty(batch, self.dim, dtype=torch.bfloat16, device=self.dev).normal_()

        with torch.no_grad(), torch.cuda.stream(self.main):
            x = complete(inputs)
            if x is not None:
                again = complete(lambda: self.run(way, issued, x))
            if issued != "eager" and not self.most(short)[0]:  # else a rank would wait in vain for its peer
                complete(again)
            torch.cuda.synchronize()
            stats = torch.cuda.memory_stats()
            if timed and not self.most(short)[0]:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                complete(again)
                end.record()
                end.synchronize()
                us = 1e3 * start.elapsed_time(end) / ITERATIONS
            snapshot = torch.cuda.memory._snapshot() if self.recording else None
            again = x = None
        free, total = torch.cuda.mem_get_info()
        allocated, reserved = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
        if self.most(short)[0]:
            return None
        return {"allocated": allocated, "reserved": reserved, "reserved_most": self.most(reserved)[0],
                "retries": stats["num_alloc_retries"], "us": round(us, 1), "device": total - free, "snapshot": snapshot}

    def record(self, way, issued, batch, folder):
        """Writes what the allocator did meanwhile."""
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(context=None)
        self.recording = True
        got = self.attempt(way, issued, batch, timed=False)
        self.recording = False
        torch.cuda.memory._record_memory_history(enabled=None)
        snapshot = got.pop("snapshot")
        name = f"forum-{way}-{issued}.rank{self.rank}.pickle.gz".replace(" ", "-")
        with gzip.open(os.path.join(folder, name), "wb") as f:
            pickle.dump(snapshot, f)
        return got

    def largest(self, way, issued, limit):
        """Bisects the largest batch."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = limit - torch.cuda.memory_reserved()
        fits, fails, found = 0, free // (2 * self.dim * 2) // UNIT + 1, None
        while fails - fits > 1:
            batch = (fits + fails) // 2
            got = self.attempt(way, issued, batch * UNIT, timed=False)
            if got:
                fits, found = batch, got
            else:
                fails = batch
        if found is None:
            return {"batch": 0}
        again = self.attempt(way, issued, fits * UNIT) or found
        return {"batch": fits * UNIT, **{k: again[k] for k in ("reserved", "retries", "us", "device")}}


def setting(reuse):
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    change(f"graph_capture_record_stream_reuse:{reuse}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--layers", default="8,32")
    p.add_argument("--batch", type=int, default=4096)
    p.add_argument("--dim", type=int, default=8192)
    p.add_argument("--limit", type=float, default=4, help="GiB that the allocator may reserve for the largest batch")
    p.add_argument("--snapshots", help="folder for snapshots of the first of --layers")
    options = p.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    b = Bench(options)
    layers = [int(n) for n in options.layers.split(",")]

    known = list(WAYS)
    try:
        setting(False)
    except (AttributeError, RuntimeError) as e:
        print(f"reuse: {e}", flush=True)
        known.remove("reuse")

    def each(what, *issues):
        for issued in issues:
            for way in known:
                if way == "reuse" and issued == "eager":
                    continue
                try:
                    b.say(way=way, issued=issued, **what(way, issued))
                except RuntimeError as e:
                    b.say(way=way, issued=issued, error=str(e).splitlines()[0][:200])
                    if not isinstance(e, torch.OutOfMemoryError):
                        raise

    def peaks(way, issued):
        got = b.attempt(way, issued, options.batch) or {"short": True}
        return {"batch": options.batch, **{k: v for k, v in got.items() if k != "snapshot"}}

    def recorded(way, issued):
        return {"recorded": True, "batch": options.batch, **b.record(way, issued, options.batch, options.snapshots)}

    for n, sharded in [(n, False) for n in layers] + [(layers[0], True)]:
        b.load(n, sharded)
        each(peaks, "eager", "graph", "graph of 5")
    if options.snapshots:
        os.makedirs(options.snapshots, exist_ok=True)
        b.load(layers[0], False)
        each(recorded, "eager", "graph", "graph of 5")
    limit = int(options.limit * 2**30)
    total = torch.cuda.get_device_properties(b.dev).total_memory
    for sharded in False, True:
        b.load(layers[0], sharded)
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(limit / total)
        each(lambda way, issued: {"limit": limit, "largest": True, **b.largest(way, issued, limit)}, "eager", "graph")
        torch.cuda.set_per_process_memory_fraction(1.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
