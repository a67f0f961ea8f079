"""Collectives on tensors. On the host they are programs of one statement, which are cached by dtype and size.

Every rank makes the same calls, in one order. A collective is planned and proved when it is first called for a size.
"""

import array
import contextlib
import operator
import sys

from . import _autograd, _bytes, _cuda, _lib, _model, _tensors, _world
from ._errors import InputError, UnsupportedError

_MOST = 256  # loaded programs, least recently used out. All ranks keep the same ones, since they call alike
_OPS = ("sum", "avg", "max", "min")


def _program(s, key, text):
    models = s.models
    model = models.get(key) or _model.load(text, group=s)
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
    """Runs a collective that reads the n elements of the view v and writes m elements to the view out."""
    r = s.rank if s.size > 1 else -1
    a, b = _tensors.View(v.keep, v.dtype, (n,), v.address, v.kind), _tensors.View(out.keep, v.dtype, (m,), out.address, out.kind)
    _lib.run(model._handle, [a.struct("x", r)], [b.struct("y", r)], b"{}")


def _statement(w, name, dt, n, m, statement):
    """Returns the program of a collective in which each of w ranks passes n elements and receives m."""
    return (f"mesh r[{w}]\nfunc {name}(%x: {dt}[{n * w}/r]) -> {dt}[{m * w}/r] {{\n"
            f"  %y = alloc {dt}[{m * w}/r]\n  {statement}\n  return %y\n}}\n")


def _collective(s, name, t, out, shape, m, statement, variant="", of=None, function=None, call=None):
    """Runs a collective of tensors in host memory. of is the element type and the shape of the caller's tensor, if they
    differ from those of t. Ranks must have the same function, which is by default the name. call describes the caller's
    call in errors, if it is not this collective."""
    v, n = _flat(t, "the tensor", out is t)
    option = f", {variant}" if variant != "" else ""
    if out is None:
        out, o = _tensors.empty(v, v.dtype, shape)
    else:
        o, got = (v, n) if out is t else _flat(out, "out", True)
        if o.dtype != v.dtype or got != m:
            raise InputError(f"out is {o.dtype}[{got}], and the result is {v.dtype}[{m}]")
    dtype, dims = of or (v.dtype, v.shape)
    _world.calling(call or f"{name}({dtype}{list(dims)}{option})")
    function = function or (f"{name}_{dtype}" if of else name)  # of the caller's type: ranks whose types differ are refused
    text = _statement(s.size, function, v.dtype, n, m, statement)
    # Tensors without elements, too: ranks that call the same collective with other shapes must be refused.
    _run(s, _program(s, (function, v.dtype, n, m, variant), text), v, n, o, m)
    return out


def _state(t, group):
    """Returns the processes that take part in a collective of t."""
    return _world.of(group, "cuda" if _cuda.is_cuda(t) else "cpu")


def _shape(t):
    return tuple(t.shape) if _cuda.is_cuda(t) else _tensors.view(t, "the tensor").shape


def _length(shape):
    """Returns the number of elements of a tensor with the given shape."""
    n = 1
    for e in shape:
        n *= e
    return n


def _blocks(s, shape, what):
    """Returns the shape of a rank's block if the first dimension is split over the ranks."""
    if not shape or shape[0] % s.size:
        raise InputError(f"{what} of shape {list(shape)}: its first dimension does not divide by {s.size} processes")
    return (shape[0] // s.size, *shape[1:])


def _gathered(s, shape):
    return (s.size * shape[0], *shape[1:]) if shape else (s.size,)


def _known(what, name, names):
    if name not in names:
        raise InputError(f"{what} is {name!r}; there are {', '.join(names)}")


def _reduction(op):
    """The name of a reduction: op itself, or that of torch's ReduceOp."""
    torchs = getattr(sys.modules.get("torch.distributed"), "ReduceOp", None)
    for name in _OPS:
        of = getattr(torchs, name.upper(), None)
        if of is not None and type(op) is type(of) and op == of:
            return name
    if not isinstance(op, str):
        raise InputError(f"op is {op!r}; the reductions are {', '.join(_OPS)}, and torch's ReduceOp of these names")
    _known("op", op, _OPS)
    return op


def _has_gradient(what, t, op, out):
    """Returns whether a call needs a gradient. Raises an error if the collective does not support that gradient."""
    if not _autograd.wanted(t, out):
        return False
    if out is not None:
        _autograd.none(f"{what} with out=", t, out)
    if op not in ("sum", "avg"):
        _autograd.none(f"{what} of op {op}", t)
    return True


def all_reduce(t, op="sum", out=None, group=None, grad="identity", async_op=False):
    """Adds the ranks' tensors, or reduces them by the op avg, max or min. The result is in place or in ``out``, and is
    returned. ``async_op=True`` is not supported.

    The gradient of a sum or average is that of the result, which is right if all ranks compute the same loss from it.
    Use ``grad="all_reduce"``, which adds the ranks' gradients, if the ranks compute different losses."""
    into = t if out is None else out
    if not async_op and grad == "identity" and _cuda.reduced(_world.known(group), t, op, into):
        return into
    op = _reduction(op)
    _known("grad", grad, ("identity", "all_reduce"))
    if async_op:
        raise UnsupportedError("async_op is not supported: a call on GPUs returns before it has run, so call it on a side stream of "
                               "torch; on the CPU call it in a thread (docs/pytorch.md, Overlap with other work)")
    s = _state(t, group)
    if _has_gradient("all_reduce", t, op, out):
        _autograd.overwritten(t, "all_reduce")
        return _autograd.apply("all_reduce", t, op, s, grad)
    dtype, out = _bytes.type_of(t), t if out is None else out
    if dtype:
        of, out = (dtype, _shape(t)), _bytes.result(t, out, None)
        _bytes.reduce(t, dtype, op, out, lambda wide, op: _all_reduce(s, wide, op, wide, of))
    else:
        _all_reduce(s, t, op, out)
    _autograd.written(out)
    return out


def replicate(t, group=None):
    """Returns t, which is equal on all ranks; its gradient is the sum of the ranks' gradients. A layer that is split
    over ranks begins with this function, and ends with all_reduce."""
    s = _state(t, group)
    return _autograd.apply("replicate", t, s) if _autograd.wanted(t) else t


def _all_reduce(s, t, op, out, of=None):
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "all_reduce", t, out, t.shape, op)
    _, n = _flat(t, "the tensor")
    return _collective(s, "all_reduce", t, out, None, n, f"all_reduce %x into %y, over=r, op={op}", op, of)


def all_gather(t, out=None, group=None, grad="reduce_scatter"):
    """Concatenates the ranks' tensors along the first dimension, in the order of the ranks.

    The gradient is the rank's block of the sum of the ranks' gradients. With ``grad="slice"``, for ranks that all
    compute the same loss from the result, the gradient is the block of the rank's own gradient."""
    _known("grad", grad, ("reduce_scatter", "slice"))
    s = _state(t, group)
    if _has_gradient("all_gather", t, "sum", out):
        return _autograd.apply("all_gather", t, s, grad, None)
    if _bytes.type_of(t):
        shape = _shape(t)
        return _finished(out, _moved(s, t, out, _gathered(s, shape), 1, [_length(shape)] * s.size, _all_gather))
    return _finished(out, _all_gather(s, t, out))


def _finished(out, result):
    """Returns the result of a call. If it is in the caller's tensor, autograd is notified of the new value."""
    if out is not None:
        _autograd.written(out)
    return result


def _all_gather(s, t, out, of=None):
    shape = _gathered(s, _shape(t))
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "all_gather", t, out, shape)
    _, n = _flat(t, "the tensor")
    return _collective(s, "all_gather", t, out, shape, n * s.size, "all_gather %x into %y, over=r, axis=0", of=of)


def _moved(s, t, out, shape, blocks, lengths, collective):
    """Runs a collective of one-byte elements, which are moved as words."""
    of = _bytes.type_of(t), _shape(t)
    return _bytes.move(t, _bytes.result(t, out, shape), blocks, lengths, lambda words: collective(s, words, None, of))


def all_gather_v(t, counts, out=None, group=None, grad="reduce_scatter"):
    """Concatenates ``counts[i]`` rows of each rank i's tensor along the first dimension. Counts are the same on all
    ranks. ``grad``: see all_gather."""
    _known("grad", grad, ("reduce_scatter", "slice"))
    s, shape = _state(t, group), _shape(t)
    counts = _counts(counts, s, "counts")
    if not shape or shape[0] != counts[s.rank]:
        raise InputError(f"the tensor of shape {list(shape)} has not counts[{s.rank}] = {counts[s.rank]} rows")
    if _has_gradient("all_gather_v", t, "sum", out):
        return _autograd.apply("all_gather", t, s, grad, counts)
    row, most = _length(shape[1:]), max(counts)
    whole = (sum(counts), *shape[1:])
    if _bytes.type_of(t):
        return _finished(out, _moved(s, t, out, whole, 1, [c * row for c in counts], _all_gather))
    if _cuda.is_cuda(t):
        got = _cuda.all_gather_v(s, t, counts)
        return got if out is None else out.copy_(got)
    v, _ = _flat(t, "the tensor")
    padded, p = _tensors.empty(v, v.dtype, (most * row,))  # all ranks give as much, and the first of it counts
    _tensors.copy(p, v)
    elements = ", ".join(str(c * row) for c in counts)
    return _finished(out, _collective(s, "all_gather_v", padded, out, whole, sum(counts) * row,
                                      f"all_gatherv %x into %y, over=r, axis=0, counts=({elements})", elements))


def reduce_scatter(t, op="sum", out=None, group=None):
    """Adds (or op: avg, max, min) the ranks' tensors; rank i gets the i-th block of the first dimension. The gradient of
    a sum or average is gathered."""
    op = _reduction(op)
    s, dtype = _state(t, group), _bytes.type_of(t)
    shape = _blocks(s, _shape(t), "a tensor to scatter")
    if _has_gradient("reduce_scatter", t, op, out):
        return _autograd.apply("reduce_scatter", t, op, s)
    if dtype:
        of, to = (dtype, _shape(t)), _bytes.result(t, out, shape)
        return _finished(out, _bytes.reduce(t, dtype, op, to, lambda wide, op: _reduce_scatter(s, wide, op, None, of)))
    return _finished(out, _reduce_scatter(s, t, op, out))


def _reduce_scatter(s, t, op, out, of=None):
    shape = _blocks(s, _shape(t), "a tensor to scatter")
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "reduce_scatter", t, out, shape, op)
    _, n = _flat(t, "the tensor")
    return _collective(s, "reduce_scatter", t, out, shape, n // s.size,
                       f"reduce_scatter %x into %y, over=r, op={op}, axis=0", op, of)


def all_to_all(t, out=None, group=None):
    """Sends the i-th block of the first dimension to rank i, and concatenates the received blocks in the order of the
    ranks. The gradient is sent back."""
    s, shape = _state(t, group), _shape(t)
    block = _blocks(s, shape, "a tensor to exchange")
    if _has_gradient("all_to_all", t, "sum", out):
        return _autograd.apply("all_to_all", t, s)
    if _bytes.type_of(t):
        return _finished(out, _moved(s, t, out, shape, s.size, [_length(block)] * s.size, _all_to_all))
    return _finished(out, _all_to_all(s, t, out))


def _all_to_all(s, t, out, of=None):
    shape = _shape(t)
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "all_to_all", t, out, shape)
    _, n = _flat(t, "the tensor")
    return _collective(s, "all_to_all", t, out, shape, n, "all_to_all %x into %y, over=r, split=0, concat=0", of=of)


def _counts(counts, s, what):
    counts = [int(c) for c in counts]
    if len(counts) != s.size or min(counts) < 0:
        raise InputError(f"{what} are {counts}; {s.size} of them, none negative, are wanted")
    return counts


def _padded(t, counts, most):
    """The blocks of t, with the given numbers of rows, each padded to ``most`` rows."""
    at, parts = 0, []
    for c in counts:
        parts.append(_tensors.filled(t[at : at + c], (most, *t.shape[1:]), "the tensor"))
        at += c
    return _tensors.joined(parts)


def _rows(t, counts, what):
    if not _tensors.cut(t, "the tensor").shape or t.shape[0] != sum(counts):
        raise InputError(f"the tensor of shape {list(t.shape)} has not the {sum(counts)} rows of {what} {counts}")


def reduce_scatter_v(t, counts, op="sum", group=None):
    """Adds (or op: avg, max, min) the ranks' tensors; rank i gets the i-th block, of ``counts[i]`` rows. Counts are the same
    on all ranks. Tensors are torch's or numpy's. The gradient of a sum or average is gathered."""
    s = _state(t, group)
    counts = _counts(counts, s, "counts")
    _rows(t, counts, "counts")
    if max(counts) == 0:
        return t[:0]
    if min(counts) == max(counts):
        return reduce_scatter(t, op, group=s)
    return reduce_scatter(_padded(t, counts, max(counts)), op, group=s)[: counts[s.rank]]


def all_to_all_v(t, send, recv=None, most=None, group=None):
    """Sends ``send[i]`` rows of the tensor, in order, to rank i, and concatenates the received rows in the order of the
    ranks: ``recv[i]`` rows from rank i. Tensors are torch's or numpy's. The gradient is sent back.

    Counts are numbers on the host. The ranks first exchange their counts, which waits on the host. If the counts of one
    rank are wrong, all ranks raise an error. On GPUs the ranks skip the exchange if ``recv`` and ``most`` are given, so
    that the call can be captured: ``most`` is a number that no count of any rank exceeds, and it must be the same on
    all ranks. Nothing then compares ``recv`` with the counts of the senders: rows are lost, or zeros are added, if they
    differ. If the arguments of one rank are refused, the other ranks wait for that rank. Either all ranks pass both, or
    no rank does.

    Counts can also be an integer tensor of torch. The tensor then has one block for each rank, all with the same number
    of rows, of which the first ``send[i]`` are sent; the result is ``(blocks, counts)``, the received blocks and their
    counts. Nothing waits on the host."""
    s = _state(t, group)
    if hasattr(send, "new_zeros"):
        if send.is_floating_point() or send.is_complex():
            raise InputError(f"counts have type {send.dtype}: give integers")
        if tuple(send.shape) != (s.size,) or not t.shape or t.shape[0] != s.size:
            raise InputError(f"counts of shape {list(send.shape)} for a tensor of shape {list(t.shape)}: with counts in a tensor "
                             f"both begin with {s.size}, a block for each rank")
        return all_to_all(t, group=s), all_to_all(send, group=s)
    compare = recv is None or most is None or not _cuda.is_cuda(t)
    try:
        send = _counts(send, s, "send")
        _rows(t, send, "send")
        recv = None if recv is None else _counts(recv, s, "recv")
    except (InputError, TypeError, ValueError):
        if compare:
            with contextlib.suppress(InputError):
                _exchanged(s, [-1] * s.size, None, None)  # the others have the error, too
        raise
    if compare:
        recv, most = _exchanged(s, send, recv, most)
    if max(*send, *recv) > most:
        raise InputError(f"most is {most}, and send is {send} and recv {recv}")
    if most == 0:
        return t[:0]
    got = all_to_all(_padded(t, send, most), group=s)
    return _tensors.joined([got[i * most : i * most + c] for i, c in enumerate(recv)])


def _exchanged(s, send, recv, most):
    """The counts of rows that a rank receives, and the largest count of all ranks. A rank whose arguments are wrong has
    counts of -1. recv and most are None if they are not given."""
    own = memoryview(array.array("q", [*send, *(recv or [-1] * s.size), -1 if most is None else most]))
    every = memoryview(all_gather(own, group=s)).cast("B").cast("q").tolist()
    row = 2 * s.size + 1
    sends = [every[row * r :][: s.size] for r in range(s.size)]
    for r in range(s.size):
        came, recv, most = [of[r] for of in sends], every[row * r + s.size :][: s.size], every[row * (r + 1) - 1]
        if sends[r][0] < 0:
            raise InputError(f"the arguments of rank {r} are wrong")
        if recv[0] >= 0 and recv != came and min(came) >= 0:
            raise InputError(f"recv of rank {r} is {recv}, and the ranks send {came}")
        if 0 <= most < max(*sends[r], *came):
            raise InputError(f"most of rank {r} is {most}, and it sends {sends[r]} and receives {came}")
    return [of[s.rank] for of in sends], max(map(max, sends))


def broadcast(t, root=0, group=None):
    """Copies the tensor of rank ``root`` of the group to all ranks, in place. It has no gradient."""
    _autograd.none("broadcast", t)
    s = _state(t, group)
    try:
        root = operator.index(root)
    except TypeError:
        raise InputError(f"root is {root!r}: give the number of a rank") from None
    if not 0 <= root < s.size:
        raise InputError(f"root is {root}; there are {s.size} processes")
    if _bytes.type_of(t):
        shape = _shape(t)
        _moved(s, t, t, shape, 1, [_length(shape)], lambda s, words, _, of: _broadcast(s, words, root, of))
    else:
        _broadcast(s, t, root)
    _autograd.written(t)
    return t


def _broadcast(s, t, root, of=None):
    if _cuda.is_cuda(t):
        return _cuda.collective(s, "broadcast", t, t, t.shape, root=root)
    _, n = _flat(t, "the tensor")
    return _collective(s, "broadcast", t, t, None, n, f"broadcast %x into %y, over=r, root={root}", root, of)


def all_reduce_rms_norm(t, residual, weight, eps=1e-6, group=None):
    """Adds the ranks' tensors ``t`` and ``residual`` and normalises the rows: returns ``rms_norm(s) * weight`` and
    ``s``, for ``s = all_reduce(t) + residual``. On GPUs this is one kernel, or an all-reduce and a kernel if that is
    faster. Tensors are torch's. It has no gradient."""
    _autograd.none("all_reduce_rms_norm", t, residual, weight)
    if not t.shape or not t.is_floating_point() or _bytes.type_of(t):
        raise InputError(f"the tensor is {t.dtype}{list(t.shape)}: give rows of f32, f64, f16 or bf16")
    for x, what, shape in ((residual, "residual", t.shape), (weight, "weight", t.shape[-1:])):
        if x.dtype != t.dtype or x.shape != shape or x.device != t.device:
            raise InputError(f"{what} is {x.dtype}{list(x.shape)} on {x.device}; {t.dtype}{list(shape)} on {t.device} is wanted")
    if not 0 <= eps < float("inf"):
        raise InputError(f"eps is {eps}: give a number of at least 0")
    s = _state(t, group)
    if not _cuda.is_cuda(t):
        n, bits = t.numel(), float(eps).hex().replace("-", "m").replace("+", "").replace(".", "_")
        added = _collective(s, "all_reduce_rms_norm", t, t.new_empty(t.shape), None, n, "all_reduce %x into %y, over=r, op=sum",
                            f"eps={eps}", function=f"all_reduce_rms_norm_{bits}")  # ranks whose eps differ are refused
    else:
        both = _cuda.all_reduce_rms_norm(s, t, residual, weight, eps)
        if both is not None:
            return both
        added = all_reduce(t, out=t.new_empty(t.shape), group=group)
    return _normalised(added + residual, weight, eps)


def _normalised(s, weight, eps):
    """Returns rms_norm(s) * weight, and s."""
    import torch
    if hasattr(torch.nn.functional, "rms_norm"):  # torch 2.4
        return torch.nn.functional.rms_norm(s, s.shape[-1:], weight, eps), s
    f = s.float()
    return (f * (f.pow(2).mean(-1, keepdim=True) + eps).rsqrt()).to(s.dtype) * weight, s


def empty(*shape, dtype):
    """Returns a torch tensor in hocket's GPU memory, which collectives use without copies. All ranks make the same call.
    The tensor stays valid until the machine is shut down."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    return _cuda.empty(shape, dtype)


def adopt(t, group=None):
    """Registers a tensor of torch's symmetric memory (torch.distributed._symmetric_memory.empty), so that collectives
    use it, and parts of it, without copies; returns the tensor. ``group`` is the name of the group that shares the
    tensor, by default all ranks. All ranks make the same call. hocket holds a reference to the tensor until the machine
    is shut down."""
    if not _cuda.is_cuda(t):
        raise InputError("the tensor is not torch's on a GPU")
    return _cuda.adopt(t, group)


def synchronize():
    """Waits for torch's current stream, and raises the error of an earlier collective on GPUs, for example if a process
    has ended or did not take part."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    _cuda.check()


def barrier(group=None):
    """Returns when all ranks of the group have called it."""
    s, word = _world.of(group), memoryview(bytearray(4)).cast("i")
    _collective(s, "barrier", word, word, None, 1, "all_reduce %x into %y, over=r, op=sum", call="barrier()")
