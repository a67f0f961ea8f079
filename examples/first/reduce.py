"""Sums a tensor over the ranks of a job. A number as argument is the size of the tensor on rank 1.

    hocket launch -n 2 -- python3 reduce.py
"""

import sys

import hocket
import torch

hocket.init()
size = int(sys.argv[1]) if len(sys.argv) > 1 and hocket.rank() == 1 else 1024
g = torch.full((size,), float(hocket.rank()))
hocket.all_reduce(g)
print(f"rank {hocket.rank()} of {hocket.world_size()}: {g[0].item()}")
