"""Training steps of a Llama's layers by torch's FSDP2, with the communication of NCCL and of hocket alternately.

    torchrun --nproc-per-node 2 tools/peers/fsdp.py [--layers 4] [--tokens 2048] [--steps 20] [--algorithm NAME] [--tsv FILE]

The layers have the sizes of an 8B Llama, bf16 weights and gradients; each rank trains on other rows, of which --tokens is the
number. A step is forward, backward and AdamW. Both models begin with the same weights and see the same rows, so their losses
must be equal to rounding; the order within a pair of steps alternates. The figures are medians over the steps of the slowest
rank, and the median of the ratios of pairs. They are printed as a header and a row, separated by tabs; --tsv adds the row to a
file. --device cpu tries the script without GPUs, in f32 and by gloo; its times mean nothing.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import hocket
import hocket.fsdp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

WARM = 5  # steps before the timed ones
OFF = 1e-2  # the largest difference of two losses, relative


class Layer(torch.nn.Module):
    def __init__(self, h, d, heads, kv, f):
        super().__init__()
        self.d = d
        sizes = {"q": (h, heads * d), "k": (h, kv * d), "v": (h, kv * d), "o": (heads * d, h), "gate": (h, f), "up": (h, f),
                 "down": (f, h)}
        for name, (i, o) in sizes.items():
            self.add_module(name, torch.nn.Linear(i, o, bias=False))
        self.norm1, self.norm2 = torch.nn.RMSNorm(h), torch.nn.RMSNorm(h)

    def forward(self, x):
        a = self.norm1(x)
        q, k, v = (w(a).view(1, x.shape[0], -1, self.d).transpose(1, 2) for w in (self.q, self.k, self.v))
        s = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(s.transpose(1, 2).reshape(x.shape[0], -1))
        b = self.norm2(x)
        return x + self.down(F.silu(self.gate(b)) * self.up(b))


class Trained:
    """A model with its optimizer and losses."""

    def __init__(self, args, device, ours):
        torch.manual_seed(1)
        with torch.device(device):
            self.model = torch.nn.Sequential(*[Layer(args.hidden, args.head, args.heads, args.kv, args.ffn)
                                               for _ in range(args.layers)]).to(typed(device))
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        if ours:
            hocket.fsdp.use(self.model)
        self.optimizer, self.losses, self.us = torch.optim.AdamW(self.model.parameters(), lr=1e-4), [], []

    def step(self, x, target):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x).float(), target)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())


def timed(call, device):
    """Microseconds of a call that begins on all ranks at the same time."""
    settled(device)
    dist.barrier()
    if device.type == "cpu":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    settled(device)
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    call()
    ended.record()
    settled(device)
    return began.elapsed_time(ended) * 1e3


def typed(device):
    return torch.bfloat16 if device.type == "cuda" else torch.float32  # gloo does not gather bf16


def settled(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def main():
    p = argparse.ArgumentParser()
    for name, default in (("layers", 4), ("tokens", 2048), ("steps", 20), ("hidden", 4096), ("head", 128), ("heads", 32), ("kv", 8),
                          ("ffn", 14336)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--device", default="cuda")
    p.add_argument("--algorithm", default="", help="the algorithm that hocket tries first, such as move-few")
    p.add_argument("--tsv")
    args = p.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    hocket.init(device.type, algorithm=args.algorithm)
    size = dist.get_world_size()

    both = [Trained(args, device, ours) for ours in (False, True)]
    draw = torch.Generator(device).manual_seed(100 + rank)
    for i in range(WARM + args.steps):
        x = torch.randn(args.tokens, args.hidden, generator=draw, device=device).to(typed(device))
        target = torch.randn(args.tokens, args.hidden, generator=draw, device=device)
        for t in both if i % 2 else reversed(both):
            us = timed(lambda t=t: t.step(x, target), device)
            if i >= WARM:
                t.us.append(us)

    losses = [torch.stack(t.losses).double().cpu() for t in both]
    off = ((losses[0] - losses[1]).abs() / losses[0].abs()).max()
    weights = max((a.to_local().float() - b.to_local().float()).abs().max().item()
                  for a, b in zip(both[0].model.parameters(), both[1].model.parameters()))
    most = torch.tensor([*both[0].us, *both[1].us, off, weights], dtype=torch.float64, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    *us, off, weights = most.tolist()
    nccl, ours = us[: args.steps], us[args.steps :]
    if rank == 0:
        report(args, device, size, nccl, ours, off, weights)
    if device.type == "cuda":
        hocket.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    if not off <= OFF:
        raise SystemExit(f"the losses differ by {off:.3g}")


def report(args, device, size, nccl, ours, off, weights):
    ratios = sorted(a / b for a, b in zip(nccl, ours))
    machine, driver = "CPU", "-"
    if device.type == "cuda":
        machine = torch.cuda.get_device_name().removeprefix("NVIDIA ").split()[0]
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                                check=True).stdout.split()[0]
    row = {
        "machine": f"{size}x{machine}", "driver": driver, "commit": os.environ.get("HOCKET_COMMIT", hocket.__version__),
        "date": datetime.date.today(), "torch": torch.__version__, "layers": args.layers, "tokens": args.tokens,
        "steps": args.steps, "algorithm": args.algorithm or "auto", "nccl_us": f"{statistics.median(nccl):.0f}", "hocket_us": f"{statistics.median(ours):.0f}",
        "ratio": f"{statistics.median(ratios):.4f}", "ratio_iqr": f"{ratios[3 * len(ratios) // 4] - ratios[len(ratios) // 4]:.4f}",
        "loss_off": f"{off:.2g}", "weights_off": f"{weights:.2g}"}
    print(*row, sep="\t")
    print(*row.values(), sep="\t", flush=True)
    if args.tsv:
        with open(args.tsv, "a", encoding="utf-8") as f:
            print(*row.values(), sep="\t", file=f)


if __name__ == "__main__":
    main()
