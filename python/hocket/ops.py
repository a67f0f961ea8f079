"""hocket's collectives as custom operators of torch, for torch.compile and torch.export: torch.ops.hocket.*

    import hocket.ops

    y = torch.ops.hocket.all_reduce(x, "sum")

They return new tensors. torch 2.4 or newer has what they need.
"""

from typing import Tuple

import torch

from . import _collectives, _world
from ._errors import UnsupportedError

_op = getattr(torch.library, "custom_op", None)
if _op is None:
    raise UnsupportedError(f"torch.ops.hocket needs torch 2.4 or newer, and this is torch {torch.__version__}: call the "
                           "collectives of hocket itself")


@_op("hocket::all_reduce", mutates_args=())
def all_reduce(t: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """As hocket.all_reduce, into a new tensor."""
    return _collectives.all_reduce(t, op, out=torch.empty_like(t))


@all_reduce.register_fake
def _(t, op="sum"):
    return torch.empty_like(t)


@_op("hocket::all_gather", mutates_args=())
def all_gather(t: torch.Tensor) -> torch.Tensor:
    """As hocket.all_gather."""
    return _collectives.all_gather(t)


@all_gather.register_fake
def _(t):
    return t.new_empty((_world.world_size() * t.shape[0], *t.shape[1:]))


@_op("hocket::reduce_scatter", mutates_args=())
def reduce_scatter(t: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """As hocket.reduce_scatter."""
    return _collectives.reduce_scatter(t, op)


@reduce_scatter.register_fake
def _(t, op="sum"):
    return t.new_empty((t.shape[0] // _world.world_size(), *t.shape[1:]))


@_op("hocket::all_to_all", mutates_args=())
def all_to_all(t: torch.Tensor) -> torch.Tensor:
    """As hocket.all_to_all."""
    return _collectives.all_to_all(t)


@all_to_all.register_fake
def _(t):
    return torch.empty_like(t)


@_op("hocket::all_reduce_rms_norm", mutates_args=())
def all_reduce_rms_norm(t: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> Tuple[torch.Tensor, torch.Tensor]:
    """As hocket.all_reduce_rms_norm."""
    return _collectives.all_reduce_rms_norm(t, residual, weight, eps)


@all_reduce_rms_norm.register_fake
def _(t, residual, weight, eps=1e-6):
    return torch.empty_like(t), torch.empty_like(t)
