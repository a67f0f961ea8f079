"""Two streams use one communicator: which kernel comes first differs between ranks.

    hocket launch -n 2 -- python3 streams.py cuda
"""

import concurrent.futures
import sys
import time

import hocket
import torch

machine = sys.argv[1]
hocket.init(machine)
rank = hocket.rank()
if machine == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
    x, y = (torch.ones(1 << 18, device="cuda") for _ in range(2))
    hocket.all_reduce(x)
    hocket.synchronize()
    x.fill_(1)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first if rank == 0 else second):
        torch.cuda._sleep(100_000_000)                      # on one rank the first stream is late, on the other the second
    for stream, t in ((first, x), (second, y)):
        with torch.cuda.stream(stream):
            hocket.all_reduce(t)
    hocket.synchronize()
    torch.cuda.synchronize()
    print(x.unique().tolist(), y.unique().tolist())
else:                                                       # the CPU has threads in place of streams
    calls, threads = [], concurrent.futures.ThreadPoolExecutor(2)
    for n in (8, 16) if rank == 0 else (16, 8):
        calls.append(threads.submit(lambda n=n: hocket.all_reduce(torch.ones(n))))
        time.sleep(0.5)
    for call in calls:
        call.result()
