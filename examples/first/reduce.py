"""Command reduce sums a tensor over the ranks of a job; of an argument, rank 1 takes that many elements."""

import sys

import hocket
import torch

hocket.init()
sizes = [1024, int(sys.argv[1]) if len(sys.argv) > 1 else 1024]
g = torch.full((sizes[hocket.rank() % 2],), float(hocket.rank()))
hocket.all_reduce(g)
print(f"rank {hocket.rank()} of {hocket.world_size()}: {g[0].item()}")
