"""Collectives on tensors: programs of one statement, kept by dtype and size.

Every rank calls them alike, in one order. They are planned and proved when they are first called for a size.
"""

import sys

from . import _cuda, _lib, _model, _tensors, _world
from ._errors import InputError

_MOST = 256  # loaded programs, least recently used out. All ranks keep the same ones, since they call alike
_OPS = ("sum", "avg", "max", "min", "prod")


def _program(key, text):
    models = _world.state().models
    model = models.get(key) or _model.load(text)
    models[key] = model
    models.move_to_end(key)
    while len(models) > _MOST:  # one that another thread runs stays until it has ended
        models.popitem(last=False)
    return model


def _flat(t, what, written=False):
    v = _tensors.written(t, what) if written else _tensors.view(t, what)
    n = v.nbytes // _tensors.SIZES[v.dtype]
    return v, n


def _run(model, v, n, out, m):
    """Runs a collective of n elements of the view v, of which m come to the view out."""
    s = _world.state()
    r = s.rank if s.size > 1 else -1
    a, b = _tensors.View(v.keep, v.dtype, (n,), v.address, v.kind), _tensors.View(out.keep, v.dtype, (m,), out.address, out.kind)
    _lib.run(model._handle, [a.struct("x", r)], [b.struct("y", r)], b"{}")


def _statement(name, dt, n, m, statement):
    """A function that has each of the ranks give n elements and get m."""
    w = _world.state().size
    return (f"mesh r[{w}]\nfunc {name}(%x: {dt}[{n * w}/r]) -> {dt}[{m * w}/r] {{\n"
            f"  %y = alloc {dt}[{m * w}/r]\n  {statement}\n  return %y\n}}\n")


def _collective(name, t, out, shape, m, statement, variant=""):
    v, n = _flat(t, "the tensor", out is t)
    option = f", {variant}" if variant != "" else ""
    if out is None:
        out, o = _tensors.empty(v, v.dtype, shape)
    else:
        o, got = (v, n) if out is t else _flat(out, "out", True)
        if o.dtype != v.dtype or got != m:
            raise InputError(f"out has {got} elements of {o.dtype}, and {m} of {v.dtype} come")
    if n > 0 and m > 0:
        _world.calling(f"{name}({v.dtype}{list(v.shape)}{option})")
        text = _statement(name, v.dtype, n, m, statement)
        _run(_program((name, v.dtype, n, m, variant), text), v, n, o, m)
    return out


def _per_rank(v, what):
    w = _world.world_size()
    if not v.shape or v.shape[0] % w:
        raise InputError(f"{what} of shape {list(v.shape)}: its first dimension does not divide by {w} processes")
    return (v.shape[0] // w, *v.shape[1:])


def all_reduce(t, op="sum", out=None):
    """Adds (or op: avg, max, min, prod) the ranks' tensors. In place, or into ``out``; returns where the result is."""
    if op not in _OPS:
        raise InputError(f"op is {op!r}; there are {', '.join(_OPS)}")
    if _cuda.is_cuda(t):
        return _cuda.collective("all_reduce", t, t if out is None else out, t.shape, op)
    _, n = _flat(t, "the tensor")
    return _collective("all_reduce", t, t if out is None else out, None, n, f"all_reduce %x into %y, over=r, op={op}", op)


def all_gather(t, out=None):
    """Joins the ranks' tensors along the first dimension, in the order of ranks."""
    if _cuda.is_cuda(t):
        w = _world.state("cuda").size
        return _cuda.collective("all_gather", t, out, (w * t.shape[0], *t.shape[1:]) if t.dim() else (w,))
    v, n = _flat(t, "the tensor")
    w = _world.world_size()
    shape = (w * v.shape[0], *v.shape[1:]) if v.shape else (w,)
    return _collective("all_gather", t, out, shape, n * w, "all_gather %x into %y, over=r, axis=0")


def all_gather_v(t, counts, out=None):
    """Joins ``counts[i]`` rows of each rank i's tensor along the first dimension. Counts are the same on all ranks."""
    gpu = _cuda.is_cuda(t)
    v, n = (t, t.numel()) if gpu else _flat(t, "the tensor")
    w = _world.world_size()
    counts = [int(c) for c in counts]
    if len(counts) != w or min(counts) < 0:
        raise InputError(f"counts are {counts}; {w} of them, none negative, are wanted")
    if not v.shape or v.shape[0] != counts[_world.rank()]:
        raise InputError(f"the tensor of shape {list(v.shape)} has not counts[{_world.rank()}] = {counts[_world.rank()]} rows")
    row, most = 1, max(counts)
    for e in v.shape[1:]:
        row *= e
    shape = (sum(counts), *v.shape[1:])
    if gpu:
        whole = _cuda.all_gather_v(t, counts)
        return whole if out is None else out.copy_(whole)
    padded, p = _tensors.empty(v, v.dtype, (most * row,))  # all ranks give as much, and the first of it counts
    _tensors.copy(p, v)
    elements = ", ".join(str(c * row) for c in counts)
    return _collective("all_gather_v", padded, out, shape, sum(counts) * row,
                       f"all_gatherv %x into %y, over=r, axis=0, counts=({elements})", elements)


def reduce_scatter(t, op="sum", out=None):
    """Adds (or op) the ranks' tensors; rank i gets the i-th block of the first dimension."""
    if op not in _OPS:
        raise InputError(f"op is {op!r}; there are {', '.join(_OPS)}")
    if _cuda.is_cuda(t):
        return _cuda.collective("reduce_scatter", t, out, _per_rank(t, "a tensor to scatter"), op)
    v, n = _flat(t, "the tensor")
    shape = _per_rank(v, "a tensor to scatter")
    return _collective("reduce_scatter", t, out, shape, n // _world.world_size(),
                       f"reduce_scatter %x into %y, over=r, op={op}, axis=0", op)


def all_to_all(t, out=None):
    """The i-th block of the first dimension goes to rank i; what comes is joined in the order of ranks."""
    if _cuda.is_cuda(t):
        _per_rank(t, "a tensor to exchange")
        return _cuda.collective("all_to_all", t, out, t.shape)
    v, n = _flat(t, "the tensor")
    _per_rank(v, "a tensor to exchange")
    return _collective("all_to_all", t, out, v.shape, n, "all_to_all %x into %y, over=r, split=0, concat=0")


def broadcast(t, root=0):
    """Gives all ranks the tensor of rank ``root``, in place."""
    if not 0 <= root < _world.world_size():
        raise InputError(f"root is {root}; there are {_world.world_size()} processes")
    if _cuda.is_cuda(t):
        return _cuda.collective("broadcast", t, t, t.shape, root=root)
    _, n = _flat(t, "the tensor")
    return _collective("broadcast", t, t, None, n, f"broadcast %x into %y, over=r, root={root}", root)


def all_reduce_rms_norm(t, residual, weight, eps=1e-6):
    """Adds the ranks' tensors ``t`` and ``residual`` and normalises the rows: returns ``rms_norm(s) * weight`` and ``s``,
    for ``s = all_reduce(t) + residual``. On GPUs it is one kernel, or an all-reduce and one where that is faster. Tensors are torch's."""
    if not _cuda.is_cuda(t):
        return _normalised(all_reduce(t) + residual, weight, eps)
    both = _cuda.all_reduce_rms_norm(t, residual, weight, eps)
    if both is not None:
        return both
    return _normalised(all_reduce(t, out=t.new_empty(t.shape)) + residual, weight, eps)


def _normalised(s, weight, eps):
    """rms_norm(s) * weight, and s."""
    import torch
    if hasattr(torch.nn.functional, "rms_norm"):  # torch 2.4
        return torch.nn.functional.rms_norm(s, s.shape[-1:], weight, eps), s
    f = s.float()
    return (f * (f.pow(2).mean(-1, keepdim=True) + eps).rsqrt()).to(s.dtype) * weight, s


def empty(*shape, dtype):
    """A tensor of torch's in memory of hocket's on the GPU, which collectives need not copy from or to. All ranks call
    it alike. It stays until the machine is shut down."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    return _cuda.empty(shape, dtype)


def adopt(t, group=None):
    """Has collectives use a tensor that torch's symmetric memory made (torch.distributed._symmetric_memory.empty) where it
    is, without a copy, and parts of it; returns it. It is shared by ``group``, the name of one, by default by all ranks.
    All ranks call it alike. The tensor is kept until the machine is shut down."""
    if not _cuda.is_cuda(t):
        raise InputError("the tensor is not torch's on a GPU")
    return _cuda.adopt(t, group)


def synchronize():
    """Waits for torch's current stream, and raises what collectives on GPUs have met: a process that has ended, or
    that did not come."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    _cuda.check()


def barrier():
    """Returns when all ranks have come."""
    all_reduce(memoryview(bytearray(4)).cast("i"))
