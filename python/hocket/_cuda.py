"""Collectives on torch's tensors on GPUs: on torch's current stream, without waiting on the host, and capturable by
torch.cuda.graph after each collective has been called once."""

import ctypes
import functools
import json
import sys

from . import _autograd, _errors, _lib, _tensors, _world
from ._errors import InputError, UnsupportedError

_DTYPES = {"torch.float32": 0, "torch.float64": 1, "torch.float16": 2, "torch.bfloat16": 3, "torch.int32": 4, "torch.int64": 5}
_OPS = {"all_reduce": 0, "all_gather": 1, "reduce_scatter": 2, "all_to_all": 3, "broadcast": 4}
_REDS = {"sum": 0, "avg": 1, "max": 2, "min": 3}


def is_cuda(t):
    """Returns whether t is a torch tensor on a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(t, torch.Tensor) and t.is_cuda


def of_dlpack(t):
    """Converts a GPU tensor of another library to a torch tensor. Other arguments are returned unchanged."""
    torch = sys.modules.get("torch")
    if torch is None or isinstance(t, torch.Tensor) or not hasattr(t, "__dlpack_device__"):
        return t
    if t.__dlpack_device__()[0] != 2:
        return t
    own = torch.from_dlpack(t)
    own.hocket_readonly = _tensors.foreign(t)
    return own


class Block:
    """A dense torch tensor on a GPU that is a rank's block of a parameter or result."""

    def __init__(self, t, name):
        self.tensor, self.name = t, name
        if not is_cuda(t):
            where = getattr(t, "device", "not torch's")
            raise InputError(f"{name} is {where}, and other arguments are on a GPU: move it there")
        if not t.is_contiguous():
            raise InputError(f"{name} is not contiguous: call .contiguous(), and copy a result that is written in place back")
        if t.is_neg():
            raise InputError(f"{name} {_tensors.NEGATIVE}")
        self.dtype = _tensors.TORCH.get(str(t.dtype).removeprefix("torch."))
        if self.dtype is None:
            raise InputError(f"{name} has dtype {t.dtype}; there are {', '.join(_tensors.SIZES)}")

    def written(self):
        """The block that the runs of an inout parameter update."""
        why = getattr(self.tensor, "hocket_readonly", "")
        if why:
            raise InputError(f"{self.name} {why}, and the program updates it: pass a tensor of torch's")
        return self

    def struct(self, rank):
        return _tensors.View(self.tensor, self.dtype, self.tensor.shape, self.tensor.data_ptr(), "torch").struct(
            self.name, rank)

    @staticmethod
    def capturing():
        return sys.modules["torch"].cuda.is_current_stream_capturing()


def torch_dtype(dtype):
    """Returns torch's name of an element type."""
    return getattr(sys.modules["torch"], _tensors.NAMES[dtype])


def lent(address, dtype, shape, device):
    """A torch tensor in memory of the library on a GPU, and the object that the tensor keeps alive."""
    n = _tensors.SIZES[dtype]
    for e in shape:
        n *= e
    memory = _Lent(address, n)
    return memory.tensor(torch_dtype(dtype), shape, device), memory


def operand(t, what):
    """Returns the number of t's element type. Raises an error if t cannot be an operand."""
    n = _DTYPES.get(str(t.dtype))
    if n is None:
        raise InputError(f"{what} has dtype {t.dtype}; there are {', '.join(_DTYPES)}")
    if not t.is_contiguous():
        raise InputError(f"{what} is not contiguous: call .contiguous(), and copy a result that is written in place back")
    if t.is_neg():
        raise InputError(f"{what} {_tensors.NEGATIVE}")
    return n


def stream_of(device):
    """Returns a function that returns the handle of torch's current stream on a device."""
    torch = sys.modules["torch"]
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda: torch.cuda.current_stream(device).cuda_stream
    return functools.partial(raw, device.index)


class Group:
    """The ranks of the world, open for calls."""

    def __init__(self, state):
        torch = sys.modules["torch"]
        if state.size < 2:
            raise UnsupportedError("collectives on GPUs want several processes: start them by torchrun or hocket launch")
        if state.name != "cuda":
            raise InputError(f"a tensor on a GPU, and the machine is {state.name}: call hocket.init('cuda')")
        self.size, self.rank = state.size, state.rank
        self.handle = _lib.call("hocket_collectives", state.machine, json.dumps(state.collectives).encode())
        self.device = _lib.call("hocket_device", self.handle)
        self.stream = stream_of(torch.device("cuda", self.device))
        lib, self.number = _lib.lib(), self.handle.value
        self.call, self._norm, self._calling, self.site = lib.do, lib.hocket_do_norm, lib.hocket_calling, None
        self.dtypes = {getattr(torch, name[6:]): n for name, n in _DTYPES.items()}
        self.bump = getattr(torch.autograd.graph, "increment_version", None)
        self.free = {}  # memory for borrowed, by stream

    def dtype(self, t, what):
        """Returns the number of t's element type, if t can be an operand."""
        n = self.dtypes.get(t.dtype)
        if n is None or not t.is_contiguous() or t.is_neg():
            operand(t, what)  # says why it is none
        if t.device.index != self.device:
            raise InputError(f"{what} is on {t.device}, and hocket's rank {self.rank} is on cuda:{self.device}: "
                             f"call torch.cuda.set_device({self.device}) before it is made")
        return n

    def at(self, frame):
        """Reports the caller's source line for errors in other processes, if it differs from that of the last call."""
        if (frame.f_code, frame.f_lasti) == self.site:
            return
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_world.OWN):
            frame = frame.f_back
        site = frame.f_code, frame.f_lasti
        if site != self.site:
            self.site = site
            self._calling(b"", f"{_world.shown(frame.f_code.co_filename)}:{frame.f_lineno}".encode())

    def do(self, op, red, dtype, root, count, a, b):
        """Enqueues a collective on torch's current stream."""
        error = self.call(self.number, op, red, dtype, root, count, self.stream(), a, b)
        if error:
            raise _errors.of(_lib.taken(error))

    def do_norm(self, dtype, rows, width, eps, addresses):
        """Enqueues a normalised sum on torch's current stream."""
        error = _lib._text()
        self._norm(self.handle, dtype, rows, width, eps, self.stream(), *addresses, ctypes.byref(error))
        if error:
            raise _errors.of(_lib._take(error))


def group(s):
    """The ranks of the processes s, opened at the first call."""
    if s.group is None:
        s.group = Group(s)
    return s.group


def _plain(t, device):
    """Returns whether t, which has a dtype of torch, is dense on this GPU and does not require a gradient."""
    return (t.is_cuda and not t.requires_grad and t.is_contiguous() and not t.is_neg() and t.get_device() == device
            and not t.is_inference())


def reduced(s, t, op, out):
    """Runs the most frequent kind of all_reduce of the ranks s: of a dense tensor on a GPU that needs no gradient, into
    out. Returns False, without an effect, if the call is of another kind, which the caller must then handle."""
    g = s and s.group
    if not g or op.__class__ is not str:
        return False
    dtype, red = g.dtypes.get(getattr(t, "dtype", None)), _REDS.get(op)
    if dtype is None or red is None or not _plain(t, g.device):
        return False
    if out is not t and (getattr(out, "dtype", None) != t.dtype or not _plain(out, g.device) or out.numel() != t.numel()):
        return False
    frame, a = sys._getframe(2), t.data_ptr()
    if (frame.f_code, frame.f_lasti) != g.site:
        g.at(frame)
    error = g.call(g.number, 0, red, dtype, 0, t.numel(), g.stream(), a, a if out is t else out.data_ptr())
    if error:
        raise _errors.of(_lib.taken(error))
    if g.bump is None:
        _autograd.written(out)
    else:
        g.bump(out)
    return True


def collective(s, op, t, out, shape, red="sum", root=0):
    """Runs a collective of t into out, or into a new tensor with the given shape. Returns the result."""
    g = group(s) if s.size > 1 else None
    number = g.dtype if g else operand
    code = _REDS.get(red)
    if code is None:
        raise UnsupportedError(f"op {red!r} on GPUs; there are {', '.join(_REDS)}")
    dtype = number(t, "the tensor")
    if out is None:
        out = t.new_empty(shape)
    elif out is not t:
        n = 1
        for e in shape:
            n *= e
        if number(out, "out") != dtype or out.numel() != n:
            raise InputError(f"out has {out.numel()} elements of {out.dtype}, and the result {n} of {t.dtype}")
    if g is None:
        return out if out is t else out.copy_(t.view(out.shape))
    g.at(sys._getframe(2))
    g.do(_OPS[op], code, dtype, root, t.numel(), t.data_ptr(), out.data_ptr())
    return out


def all_gather_v(s, t, counts):
    """Gathers blocks of different lengths: pads them to the longest, gathers them, and removes the padding."""
    torch = sys.modules["torch"]
    most = max(counts)
    padded = t.new_empty((most, *t.shape[1:]))
    padded[: t.shape[0]].copy_(t)
    whole = collective(s, "all_gather", padded, None, (len(counts) * most, *t.shape[1:]))
    return torch.cat([whole[i * most : i * most + n] for i, n in enumerate(counts)])


def all_reduce_rms_norm(s, t, residual, weight, eps):
    """See hocket.all_reduce_rms_norm; None where there is no kernel for the type, the width or the addresses, and
    for one process."""
    if s.size == 1:
        return None
    g = group(s)
    dtype = g.dtype(t, "the tensor")
    for x, what, shape in ((residual, "residual", t.shape), (weight, "weight", t.shape[-1:])):
        if g.dtype(x, what) != dtype or x.shape != shape:
            raise InputError(f"{what} is {x.dtype}{list(x.shape)}; {t.dtype}{list(shape)} is wanted")
    width = t.shape[-1]
    out, added = t.new_empty(t.shape), t.new_empty(t.shape)
    try:
        g.do_norm(dtype, t.numel() // max(width, 1), width, eps, [
            x.data_ptr() for x in (t, residual, weight, added, out)])
    except UnsupportedError:
        return None
    return out, added


class _Lent:
    """Memory of the library, in the form from which torch makes a tensor."""

    def __init__(self, address, nbytes):
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def tensor(self, dtype, shape, device):
        """Returns a torch tensor in this memory. The tensor keeps this object alive."""
        torch = sys.modules["torch"]
        with torch.cuda.device(device):
            return torch.as_tensor(self, device=device).view(dtype).view(shape)


def empty(shape, dtype):
    """See hocket.empty."""
    torch = sys.modules["torch"]
    g = group(_world.state("cuda"))
    n = torch.empty((), dtype=dtype).element_size()
    for e in shape:
        n *= e
    return _Lent(_lib.call("hocket_empty", g.handle, n), n).tensor(dtype, shape, torch.device("cuda", g.device))


class _Free:
    """Blocks of memory that are free, in the order in which they were allocated. Ranks that allocate and free in the
    same order get corresponding blocks, although the addresses of a block differ between ranks."""

    def __init__(self):
        self.blocks, self.made = [], 0  # (size in bytes, number, address), and the number of all blocks

    def take(self, n, allocate):
        """Removes the first of the smallest blocks of at least n bytes, or allocates a block, and returns it."""
        block = min((b for b in self.blocks if b[0] >= n), default=None)
        if block is None:
            self.made += 1
            return n, self.made, allocate(n)
        self.blocks.remove(block)
        return block


class _Borrowed(_Lent):
    """Memory that is free again when the last tensor in it is freed."""

    def __init__(self, block, nbytes, free):
        super().__init__(block[2], nbytes)
        self.block, self.free = block, free

    def __del__(self):
        self.free.blocks.append(self.block)


def borrowed(s, size, dtype):
    """Returns a tensor in hocket's GPU memory. After the tensor has been freed, the memory is reused, as by torch's
    allocator: for work on the stream that is current now. All ranks of s make the same calls, and free the tensors at
    the same positions in their sequences of calls."""
    torch = sys.modules["torch"]
    g = group(s)
    n = torch.empty((), dtype=dtype).element_size()
    for e in size:
        n *= e
    if n == 0:
        return torch.empty(*size, dtype=dtype, device=torch.device("cuda", g.device))
    free = g.free.setdefault(g.stream(g.device), _Free())
    block = free.take(n, lambda n: _lib.call("hocket_empty", g.handle, n))
    return _Borrowed(block, n, free).tensor(dtype, size, torch.device("cuda", g.device))


def rest():
    """Waits until the GPU has finished the work on torch's streams."""
    sys.modules["torch"].cuda.synchronize()


def adopt(t, shared_by):
    """See hocket.adopt."""
    torch = sys.modules["torch"]
    import torch.distributed._symmetric_memory as symm

    g = group(_world.state("cuda"))
    handle = symm.rendezvous(t, shared_by or torch.distributed.group.WORLD.group_name)
    at = [int(p) for p in handle.buffer_ptrs]
    if len(at) != g.size:
        raise InputError(f"the tensor is shared by {len(at)} ranks, and hocket has {g.size}")
    _lib.held("hocket_call_adopt", g.handle, t, (ctypes.c_uint64 * len(at))(*at), len(at), int(handle.buffer_size))
    return t


def check():
    """See hocket.synchronize."""
    s = _world.state()
    for g in (s, *s.groups):
        if g.group is not None:
            _lib.call("hocket_check", g.group.handle)
