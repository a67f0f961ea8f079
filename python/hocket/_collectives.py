"""Collectives on tensors: programs of one statement, kept by dtype and size.

Every rank calls them alike, in one order. They are planned and proved when they are first called for a size.
"""

import sys

from . import _bytes, _cuda, _lib, _model, _tensors, _world
from ._errors import InputError

_MOST = 256  # loaded programs, least recently used out. All ranks keep the same ones, since they call alike
_OPS = ("sum", "avg", "max", "min")


def _program(s, key, text):
    models = s.models
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


def _run(s, model, v, n, out, m):
    """Runs a collective of n elements of the view v, of which m come to the view out."""
    r = s.rank if s.size > 1 else -1
    a, b = _tensors.View(v.keep, v.dtype, (n,), v.address, v.kind), _tensors.View(out.keep, v.dtype, (m,), out.address, out.kind)
    _lib.run(model._handle, [a.struct("x", r)], [b.struct("y", r)], b"{}")


def _statement(w, name, dt, n, m, statement):
    """A function that has each of w ranks give n elements and get m."""
    return (f"mesh r[{w}]\nfunc {name}(%x: {dt}[{n * w}/r]) -> {dt}[{m * w}/r] {{\n"
            f"  %y = alloc {dt}[{m * w}/r]\n  {statement}\n  return %y\n}}\n")


def _collective(s, name, t, out, shape, m, statement, variant="", of=None):
    """Runs a collective of tensors in the host's memory. of is the element type and the shape that the caller's tensor
    has, if they are not those of t."""
    v, n = _flat(t, "the tensor", out is t)
    option = f", {variant}" if variant != "" else ""
    if out is None:
        out, o = _tensors.empty(v, v.dtype, shape)
    else:
        o, got = (v, n) if out is t else _flat(out, "out", True)
        if o.dtype != v.dtype or got != m:
            raise InputError(f"out has {got} elements of {o.dtype}, and {m} of {v.dtype} come")
    if n > 0 and m > 0:
        dtype, dims = of or (v.dtype, v.shape)
        _world.calling(f"{name}({dtype}{list(dims)}{option})")
        function = f"{name}_{dtype}" if of else name  # of the caller's type: ranks whose types differ are refused
        text = _statement(s.size, function, v.dtype, n, m, statement)
        _run(s, _program(s, (function, v.dtype, n, m, variant), text), v, n, o, m)
    return out


def _state(t):
    """The processes of a collective of t."""
    return _world.state("cuda" if _cuda.is_cuda(t) else "cpu")


def _shape(t):
    return tuple(t.shape) if _cuda.is_cuda(t) else _tensors.view(t, "the tensor").shape


def _length(t, shape):
    """The bytes of a tensor of a shape whose elements are bytes."""
    n = 1
    for e in shape:
        n *= e
    return n


def _blocks(s, shape, what):
    """The shape of a rank's block of the first dimension."""
    if not shape or shape[0] % s.size:
        raise InputError(f"{what} of shape {list(shape)}: its first dimension does not divide by {s.size} processes")
    return (shape[0] // s.size, *shape[1:])


def _gathered(s, shape):
    return (s.size * shape[0], *shape[1:]) if shape else (s.size,)


def _known(op):
    if op not in _OPS:
        raise InputError(f"op is {op!r}; there are {', '.join(_OPS)}")


def all_reduce(t, op="sum", out=None):
    """Adds (or op: avg, max, min) the ranks' tensors. In place, or into ``out``; returns where the result is."""
    _known(op)
    s, out = _state(t), t if out is None else out
    dtype = _bytes.type_of(t)
    if dtype:
        of = dtype, _shape(t)
        out = _bytes.result(t, out, None)
        return _bytes.reduce(t, dtype, op, out, lambda wide, op: _all_reduce(s, wide, op, wide, of))
    return _all_reduce(s, t, op, out)


def _all_reduce(s, t, op, out, of=None):
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "all_reduce", t, out, t.shape, op)
    _, n = _flat(t, "the tensor")
    return _collective(s, "all_reduce", t, out, None, n, f"all_reduce %x into %y, over=r, op={op}", op, of)


def all_gather(t, out=None):
    """Joins the ranks' tensors along the first dimension, in the order of ranks."""
    s, shape = _state(t), _shape(t)
    if _bytes.type_of(t):
        lengths = [_length(t, shape)] * s.size
        return _moved(s, t, out, _gathered(s, shape), 1, lengths, _all_gather)
    return _all_gather(s, t, out)


def _all_gather(s, t, out, of=None):
    shape = _gathered(s, _shape(t))
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "all_gather", t, out, shape)
    _, n = _flat(t, "the tensor")
    return _collective(s, "all_gather", t, out, shape, n * s.size, "all_gather %x into %y, over=r, axis=0", of=of)


def _moved(s, t, out, shape, blocks, lengths, collective):
    """A collective of elements of one byte, which it moves as words."""
    of = _bytes.type_of(t), _shape(t)
    return _bytes.move(t, _bytes.result(t, out, shape), blocks, lengths, lambda words: collective(s, words, None, of))


def all_gather_v(t, counts, out=None):
    """Joins ``counts[i]`` rows of each rank i's tensor along the first dimension. Counts are the same on all ranks."""
    s, shape = _state(t), _shape(t)
    counts = [int(c) for c in counts]
    if len(counts) != s.size or min(counts) < 0:
        raise InputError(f"counts are {counts}; {s.size} of them, none negative, are wanted")
    if not shape or shape[0] != counts[s.rank]:
        raise InputError(f"the tensor of shape {list(shape)} has not counts[{s.rank}] = {counts[s.rank]} rows")
    row, most = _length(t, shape[1:]), max(counts)
    whole = (sum(counts), *shape[1:])
    if _bytes.type_of(t):
        return _moved(s, t, out, whole, 1, [c * row for c in counts], _all_gather)
    if _cuda.is_cuda(t):
        got = _cuda.all_gather_v(s, t, counts)
        return got if out is None else out.copy_(got)
    v, _ = _flat(t, "the tensor")
    padded, p = _tensors.empty(v, v.dtype, (most * row,))  # all ranks give as much, and the first of it counts
    _tensors.copy(p, v)
    elements = ", ".join(str(c * row) for c in counts)
    return _collective(s, "all_gather_v", padded, out, whole, sum(counts) * row,
                       f"all_gatherv %x into %y, over=r, axis=0, counts=({elements})", elements)


def reduce_scatter(t, op="sum", out=None):
    """Adds (or op) the ranks' tensors; rank i gets the i-th block of the first dimension."""
    _known(op)
    s, dtype = _state(t), _bytes.type_of(t)
    shape = _blocks(s, _shape(t), "a tensor to scatter")
    if dtype:
        of = dtype, _shape(t)
        out = _bytes.result(t, out, shape)
        return _bytes.reduce(t, dtype, op, out, lambda wide, op: _reduce_scatter(s, wide, op, None, of))
    return _reduce_scatter(s, t, op, out)


def _reduce_scatter(s, t, op, out, of=None):
    shape = _blocks(s, _shape(t), "a tensor to scatter")
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "reduce_scatter", t, out, shape, op)
    _, n = _flat(t, "the tensor")
    return _collective(s, "reduce_scatter", t, out, shape, n // s.size,
                       f"reduce_scatter %x into %y, over=r, op={op}, axis=0", op, of)


def all_to_all(t, out=None):
    """The i-th block of the first dimension goes to rank i; what comes is joined in the order of ranks."""
    s, shape = _state(t), _shape(t)
    block = _blocks(s, shape, "a tensor to exchange")
    if _bytes.type_of(t):
        return _moved(s, t, out, shape, s.size, [_length(t, block)] * s.size, _all_to_all)
    return _all_to_all(s, t, out)


def _all_to_all(s, t, out, of=None):
    shape = _shape(t)
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "all_to_all", t, out, shape)
    _, n = _flat(t, "the tensor")
    return _collective(s, "all_to_all", t, out, shape, n, "all_to_all %x into %y, over=r, split=0, concat=0", of=of)


def broadcast(t, root=0):
    """Gives all ranks the tensor of rank ``root``, in place."""
    s = _state(t)
    if not 0 <= root < s.size:
        raise InputError(f"root is {root}; there are {s.size} processes")
    if _bytes.type_of(t):
        shape = _shape(t)
        return _moved(s, t, t, shape, 1, [_length(t, shape)], lambda s, words, _, of: _broadcast(s, words, root, of))
    return _broadcast(s, t, root)


def _broadcast(s, t, root, of=None):
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "broadcast", t, t, t.shape, root=root)
    _, n = _flat(t, "the tensor")
    return _collective(s, "broadcast", t, t, None, n, f"broadcast %x into %y, over=r, root={root}", root, of)


def all_reduce_rms_norm(t, residual, weight, eps=1e-6):
    """Adds the ranks' tensors ``t`` and ``residual`` and normalises the rows: returns ``rms_norm(s) * weight`` and ``s``,
    for ``s = all_reduce(t) + residual``. On GPUs it is one kernel, or an all-reduce and one where that is faster. Tensors are torch's."""
    if not _cuda.is_cuda(t):
        return _normalised(all_reduce(t) + residual, weight, eps)
    both = _cuda.all_reduce_rms_norm(_state(t), t, residual, weight, eps)
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
