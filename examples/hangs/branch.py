"""A rank takes another branch: what it decides by differs between ranks.

    hocket launch -n 2 -- python3 branch.py cuda
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

tokens = torch.zeros(8, 64, device=where)
for step in range(3):
    finished = step + rank == 2                             # by a clock, a queue, a NaN: here rank 1 is a step ahead
    if finished:
        hocket.all_gather(tokens)
    else:
        hocket.all_reduce(tokens)
    hocket.synchronize()
print("all steps ran")
