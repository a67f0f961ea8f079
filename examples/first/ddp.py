"""Trains with torch's DistributedDataParallel, whose buckets of gradients hocket averages while backward continues.

    hocket launch -n 2 -- python3 ddp.py
"""

import concurrent.futures

import hocket
import torch
import torch.distributed as dist

dist.init_process_group("gloo")                             # DDP broadcasts the weights by torch
hocket.init()
threads = concurrent.futures.ThreadPoolExecutor(1)          # one thread, so that ranks make the calls in one order


def average(_, bucket):
    """DDP calls this for each bucket, and waits for the futures at the end of backward."""
    future = torch.futures.Future()

    def run(gradient):
        try:
            future.set_result(hocket.all_reduce(gradient, "avg"))
        except Exception as e:
            future.set_exception(e)

    threads.submit(run, bucket.buffer())
    return future


torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
model.register_comm_hook(None, average)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(hocket.rank())         # each rank has its own rows
for step in range(20):
    x = torch.randn(32, 16, generator=data)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = model.module.weight.detach().clone()
print(f"rank {hocket.rank()}: weights differ by {(weights - hocket.all_reduce(weights.clone(), 'avg')).abs().max().item():.0f} "
      f"from the mean, by {(weights - 1).abs().max().item():.1f} from 1")
