"""Ranks enter a captured all-reduce unaligned: one has padded its batch to 16 rows, the other to 32, so they replay
graphs of different sizes.

    hocket launch -n 2 -- python3 unaligned.py cuda
"""

import sys

import hocket
import torch

machine = sys.argv[1]
hocket.init(machine)
rank = hocket.rank()
where = f"cuda:{rank % torch.cuda.device_count()}" if machine == "cuda" else "cpu"
if machine == "cuda":
    torch.cuda.set_device(where)


def captured(rows):
    """A replay of an all-reduce of so many rows: of a graph, or on the CPU of the call."""
    x = torch.ones(rows, 64, device=where)
    hocket.all_reduce(x)
    if machine == "cpu":
        return lambda: hocket.all_reduce(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hocket.all_reduce(x)
    return graph.replay


replays = {rows: captured(rows) for rows in (16, 32)}
for requests in (9, 12, 15 + 2 * rank):                     # the third batch has 15 rows on rank 0, 17 on rank 1
    replays[16 if requests <= 16 else 32]()
    hocket.synchronize()
print("all batches ran")
