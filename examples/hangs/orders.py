"""Two communicators in different orders: each rank waits in the one that the other comes to next.

    hocket launch -n 2 -- python3 orders.py cuda
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

shards, experts = hocket.new_group([0, 1], "shards"), hocket.new_group([0, 1], "experts")
x = torch.ones(1024, device=where)
for group in (shards, experts):
    hocket.all_reduce(x, group=group)
hocket.synchronize()
for group in (shards, experts) if rank == 0 else (experts, shards):
    hocket.all_reduce(x, group=group)
hocket.synchronize()
print("both groups ran")
