"""A rank runs out of memory while the others wait for it.

    hocket launch -n 2 -- python3 memory.py cuda
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

gradient = torch.ones(1024, device=where)
for tokens in (1 << 10, 1 << 12, 1 << (46 if rank == 1 else 14)):    # a long sequence on rank 1
    activations = torch.empty(tokens, 64, device=where)
    hocket.all_reduce(gradient)
    hocket.synchronize()
print("all steps ran")
