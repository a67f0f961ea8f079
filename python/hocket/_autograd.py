"""Gradients of collectives for torch's autograd. A collective of a tensor that requires a gradient is called as a
torch.autograd.Function. If the collective has no gradient, the call is refused."""

import sys

from ._errors import InputError, UnsupportedError

_functions = None


def wanted(*tensors):
    """Returns whether autograd needs a gradient of a call with these tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_grad_enabled() and any(
        isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def none(what, *tensors, how=""):
    """Raises an error for a collective without a gradient, if autograd needs one."""
    if wanted(*tensors):
        raise UnsupportedError(f"{what} has no gradient, and a tensor of the call requires one: {how}call it under "
                               "torch.no_grad(), or give t.detach()")


def overwritten(t, what):
    """Raises an error if a call would overwrite a leaf tensor that requires a gradient."""
    if wanted(t) and t.is_leaf:
        raise InputError(f"{what} overwrites a leaf that requires a gradient: give t.clone(), or call it under "
                         "torch.no_grad()")


def written(t):
    """Notifies autograd that a torch tensor was overwritten, so that saved copies of it are not used for gradients."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(t, torch.Tensor) or t.is_inference():
        return
    bump = getattr(torch.autograd.graph, "increment_version", None)
    if bump is not None:
        bump(t)
    else:
        t.detach().view(-1)[:0].zero_()  # of no elements: detached views share the version


def apply(name, *args):
    """Calls a collective as a torch.autograd.Function. These functions are created after torch has been imported."""
    global _functions
    if _functions is None:
        _functions = _made(sys.modules["torch"])
    return _functions[name].apply(*args)


def _made(torch):
    from . import _collectives as c

    class AllReduce(torch.autograd.Function):
        """Works in place. The gradient is the rank's own gradient of the result, or the sum over all ranks."""

        @staticmethod
        def forward(ctx, t, op, s, grad):
            ctx.mark_dirty(t)
            ctx.op, ctx.s, ctx.grad = op, s, grad
            return c.all_reduce(t, op, group=s)

        @staticmethod
        def backward(ctx, g):
            if ctx.grad == "all_reduce":
                g = c.all_reduce(g.clone(memory_format=torch.contiguous_format), group=ctx.s)
            return g / ctx.s.size if ctx.op == "avg" else g, None, None, None

    class Replicate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, s):
            ctx.s = s
            return t.view_as(t)

        @staticmethod
        def backward(ctx, g):
            return c.all_reduce(g.clone(memory_format=torch.contiguous_format), group=ctx.s), None

    class AllGather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, s, grad, counts):
            ctx.s, ctx.grad, ctx.counts, ctx.shape = s, grad, counts, t.shape
            return c.all_gather(t, group=s) if counts is None else c.all_gather_v(t, counts, group=s)

        @staticmethod
        def backward(ctx, g):
            counts, s = ctx.counts, ctx.s
            if ctx.grad != "slice" and counts is None:
                return c.reduce_scatter(g.contiguous(), group=s).reshape(ctx.shape), None, None, None
            if ctx.grad != "slice":
                return c.reduce_scatter_v(g.contiguous(), counts, group=s).reshape(ctx.shape), None, None, None
            counts = counts or [g.shape[0] // s.size] * s.size
            g = g[sum(counts[: s.rank]) : sum(counts[: s.rank + 1])]
            return g.reshape(ctx.shape), None, None, None

    class ReduceScatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, op, s):
            ctx.op, ctx.s = op, s
            return c.reduce_scatter(t, op, group=s)

        @staticmethod
        def backward(ctx, g):
            g = c.all_gather(g.contiguous(), group=ctx.s)
            return g / ctx.s.size if ctx.op == "avg" else g, None, None

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, s):
            ctx.s = s
            return c.all_to_all(t, group=s)

        @staticmethod
        def backward(ctx, g):
            return c.all_to_all(g.contiguous(), group=ctx.s), None

    return {"all_reduce": AllReduce, "replicate": Replicate, "all_gather": AllGather, "reduce_scatter": ReduceScatter,
            "all_to_all": AllToAll}
