# F.linear of torch on the same shapes, in a graph over rotating weights.
import sys, torch
import torch.nn.functional as F
rate = float(sys.argv[1])  # of a plain read kernel, GB/s
out = open(sys.argv[2], "w")
print("torch", torch.__version__)
for n, k in [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)]:
    count = max(4, (240 << 20) // (n * k * 2) + 1); nodes = count * max(1, 24 // count)
    ws = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(count)]
    for m in [1, 2, 4, 8, 9, 12, 16]:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for w in ws[:3]: F.linear(x, w)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for i in range(nodes): y = F.linear(x, ws[i % count])
        t = []
        for r in range(18):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(); g.replay(); b.record(); b.synchronize()
            if r >= 3: t.append(a.elapsed_time(b) * 1e3 / nodes)
        us = sorted(t)[len(t) // 2]; gb = n * k * 2 / us / 1e3
        print(f"torch m={m} {n}x{k}: {us:.2f} us ({gb / rate:.3f})", flush=True)
        out.write(f"{m}\t{n}\t{k}\ttorch\t{us:.2f}\t{gb:.0f}\t{gb / rate:.3f}\n"); out.flush()
        del g
    del ws
