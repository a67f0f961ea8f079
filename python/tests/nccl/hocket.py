"""The calls of hocket that examples/hangs makes, by torch.distributed with NCCL: with this folder first in PYTHONPATH the
programs show what NCCL does. HOCKET_RANK and HOCKET_WORLD_SIZE number the processes. A process has one GPU."""

import datetime
import os

import torch
import torch.distributed as dist

_PATIENCE = float(os.environ.get("NCCL_TEST_PATIENCE", "15"))


def init(machine):
    torch.cuda.set_device(rank())
    dist.init_process_group("nccl", rank=rank(), world_size=int(os.environ["HOCKET_WORLD_SIZE"]),
                            timeout=datetime.timedelta(seconds=_PATIENCE), device_id=torch.device("cuda", rank()))


def rank():
    return int(os.environ["HOCKET_RANK"])


def new_group(ranks, name):
    return dist.new_group(ranks, timeout=datetime.timedelta(seconds=_PATIENCE))


def all_reduce(t, group=None):
    dist.all_reduce(t, group=group)
    return t


def all_gather(t):
    out = t.new_empty(dist.get_world_size() * t.shape[0], *t.shape[1:])
    dist.all_gather_into_tensor(out, t)
    return out


def synchronize():
    torch.cuda.synchronize()
