"""A rank captures while its peer replays: it recompiles for a new shape, and the peer does not.

    hocket launch -n 2 -- python3 capture.py cuda
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


def captured(x):
    """A replay of an all-reduce of x: of a graph, or on the CPU of the call."""
    if machine == "cpu":
        return lambda: hocket.all_reduce(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hocket.all_reduce(x)
    return graph.replay


x = torch.ones(16, 64, device=where)
hocket.all_reduce(x)
replay = captured(x)
for step in range(3):
    if step + rank == 3:                                    # rank 1 meets a new shape in the last step
        replay = captured(torch.ones(17, 64, device=where))
    replay()
    hocket.synchronize()
print("all steps ran")
