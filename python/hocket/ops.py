"""hocket's collectives as custom operators of torch, for torch.compile and torch.export: torch.ops.hocket.*

    import hocket.ops

    y = torch.ops.hocket.all_reduce(x, "sum")

They return new tensors, and have the gradients of hocket's functions with their defaults. torch 2.4 or newer has what
they need.
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
    """Like hocket.all_reduce, but returns a new tensor."""
    with torch.no_grad():  # autograd has the gradients below
        return _collectives.all_reduce(t, op, out=torch.empty_like(t))


@all_reduce.register_fake
def _(t, op="sum"):
    return torch.empty_like(t)


@_op("hocket::all_gather", mutates_args=())
def all_gather(t: torch.Tensor) -> torch.Tensor:
    """As hocket.all_gather."""
    with torch.no_grad():
        return _collectives.all_gather(t)


@all_gather.register_fake
def _(t):
    return t.new_empty((_world.world_size() * t.shape[0], *t.shape[1:]))


@_op("hocket::reduce_scatter", mutates_args=())
def reduce_scatter(t: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """As hocket.reduce_scatter."""
    with torch.no_grad():
        return _collectives.reduce_scatter(t, op)


@reduce_scatter.register_fake
def _(t, op="sum"):
    return t.new_empty((t.shape[0] // _world.world_size(), *t.shape[1:]))


@_op("hocket::all_to_all", mutates_args=())
def all_to_all(t: torch.Tensor) -> torch.Tensor:
    """As hocket.all_to_all."""
    with torch.no_grad():
        return _collectives.all_to_all(t)


@all_to_all.register_fake
def _(t):
    return torch.empty_like(t)


@_op("hocket::all_reduce_rms_norm", mutates_args=())
def all_reduce_rms_norm(t: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> Tuple[torch.Tensor, torch.Tensor]:
    """As hocket.all_reduce_rms_norm."""
    with torch.no_grad():
        return _collectives.all_reduce_rms_norm(t, residual, weight, eps)


@all_reduce_rms_norm.register_fake
def _(t, residual, weight, eps=1e-6):
    return torch.empty_like(t), torch.empty_like(t)


def _op_of(ctx, inputs, output):
    ctx.op = inputs[1] if len(inputs) > 1 else "sum"


def _share(ctx, g):
    """Returns the gradient of one rank's part of a reduction, from the gradient of the sum."""
    if ctx.op not in ("sum", "avg"):
        raise UnsupportedError(f"a reduction by {ctx.op} has no gradient")
    return g / _world.world_size() if ctx.op == "avg" else g


all_reduce.register_autograd(lambda ctx, g: (_share(ctx, g), None), setup_context=_op_of)
all_gather.register_autograd(lambda ctx, g: reduce_scatter(g.contiguous()), setup_context=_op_of)
reduce_scatter.register_autograd(lambda ctx, g: (_share(ctx, all_gather(g.contiguous())), None), setup_context=_op_of)
all_to_all.register_autograd(lambda ctx, g: all_to_all(g.contiguous()), setup_context=_op_of)
