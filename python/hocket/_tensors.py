"""Tensors of other libraries: the addresses of their bytes, and new tensors of the same library."""

import ctypes
import sys

from . import _lib
from ._errors import InputError

SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i32": 4, "i64": 8,
         "i8": 1, "u8": 1, "bool": 1, "f8e4m3": 1, "f8e5m2": 1}  # those of one byte in collectives only
TORCH = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64",
         "int8": "i8", "uint8": "u8", "bool": "bool", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
NAMES = {v: k for k, v in TORCH.items()}
_FORMATS = {"f": "f32", "d": "f64", "e": "f16", "i": "i32", "l": "i64", "q": "i64", "b": "i8", "B": "u8", "?": "bool"}


_NUMPY = {"f32": "float32", "f64": "float64", "f16": "float16", "i32": "int32", "i64": "int64"}


def _is(t, module, name):
    m = sys.modules.get(module)
    return m is not None and isinstance(t, getattr(m, name))


class View:
    """The memory of a dense tensor, which the object ``keep`` keeps alive. ``readonly`` is the reason why the memory
    must not be written; empty if it may be written."""

    def __init__(self, keep, dtype, shape, address, kind, readonly=""):
        self.keep, self.dtype, self.shape, self.address, self.kind = keep, dtype, tuple(shape), address, kind
        self.readonly = readonly

    @property
    def nbytes(self):
        n = SIZES[self.dtype]
        for e in self.shape:
            n *= e
        return n

    def struct(self, name, rank=-1):
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        t = _lib.Tensor(name.encode(), self.dtype.encode(), rank, len(self.shape), shape, self.address,
                        self.nbytes)
        t._keep = (self.keep, shape)
        return t


def filled(t, shape, what, value=0):
    """A tensor of torch or numpy, padded with the value at the end of each dimension to a larger shape."""
    t = cut(t, what)
    larger = t.new_full(shape, value) if hasattr(t, "new_full") else sys.modules["numpy"].full(shape, value, t.dtype)
    larger[tuple(slice(0, e) for e in t.shape)] = t
    return larger


def cut(t, what):
    """A tensor of torch or numpy, which can be sliced and padded."""
    if not hasattr(t, "new_zeros") and not _is(t, "numpy", "ndarray"):
        raise InputError(f"{what} is a {type(t).__name__}, and is to be filled up: give a tensor of torch or an array of numpy")
    return t


def joined(parts):
    """Tensors of torch, or of numpy, one after another along the first dimension."""
    return sys.modules["torch"].cat(parts) if hasattr(parts[0], "new_zeros") else sys.modules["numpy"].concatenate(parts)


def view(t, what="a tensor"):
    """Where the bytes of a tensor of torch, numpy, DLPack or the buffer protocol are."""
    if isinstance(t, View):
        return t
    if _is(t, "torch", "Tensor"):
        return _of_torch(t, what)
    if _is(t, "numpy", "ndarray"):
        return _of_numpy(t, what)
    if hasattr(t, "__dlpack__"):
        return _of_dlpack(t, what)
    try:
        m = memoryview(t)
    except TypeError:
        raise InputError(f"{what} is a {type(t).__name__}, not a tensor") from None
    dtype = _FORMATS.get(m.format)
    if dtype is None or not m.c_contiguous or SIZES[dtype] != m.itemsize:
        raise InputError(f"{what} has format {m.format!r}; dense buffers of f, d, e, i, q, b, B, ? are taken")
    if m.readonly:
        v = _of_buffer(bytearray(m), dtype, m.shape)
        v.readonly = "is read-only"
        return v
    keep = (ctypes.c_char * m.nbytes).from_buffer(m)
    return View((m, keep), dtype, m.shape, ctypes.addressof(keep), "buffer")


def written(t, what):
    """Like view, for a tensor that receives a result."""
    v = view(t, what)
    if v.readonly:
        raise InputError(f"{what} {v.readonly}, and cannot receive a result: pass another tensor")
    return v


def _of_buffer(b, dtype, shape):
    keep = (ctypes.c_char * len(b)).from_buffer(b)
    return View((b, keep), dtype, shape, ctypes.addressof(keep), "buffer")


NEGATIVE = "has the negative bit, so that its memory has the other sign: call .resolve_neg()"


def _of_torch(t, what):
    dtype = TORCH.get(str(t.dtype).removeprefix("torch."))
    if dtype is None:
        raise InputError(f"{what} has dtype {t.dtype}; there are {', '.join(SIZES)}")
    if t.device.type != "cpu":
        raise InputError(f"{what} is on {t.device}; tensors in the host's memory are taken")
    if str(t.layout) != "torch.strided":
        raise InputError(f"{what} has layout {t.layout}: call .to_dense()")
    if not t.is_contiguous():
        raise InputError(f"{what} is not contiguous: call .contiguous(), and copy a result that is written in place back")
    if t.is_neg():
        raise InputError(f"{what} {NEGATIVE}")
    t = t.detach()
    return View(t, dtype, t.shape, t.data_ptr(), "torch")


def _of_numpy(a, what):
    dtype = TORCH.get(a.dtype.name)  # bfloat16 and the types of 8 bits are those of ml_dtypes
    if dtype is None or not a.dtype.isnative:
        raise InputError(f"{what} has dtype {a.dtype}; there are {', '.join(SIZES)}, in the machine's byte order")
    if not a.flags.c_contiguous:
        raise InputError(f"{what} is not contiguous: call numpy.ascontiguousarray")
    masked = sys.modules.get("numpy.ma")
    if masked and masked.is_masked(a):
        raise InputError(f"{what} has masked elements: call .filled(value), or give .data")
    return View(a, dtype, a.shape, a.ctypes.data, "numpy", "" if a.flags.writeable else "is read-only")


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


def _of_dlpack(t, what):
    """DLPack's version 0, whose capsule is not consumed: it lives as long as the view. DLPack's version 0 has no flag
    for tensors that must not be written."""
    capsule = t.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    dl = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    dtype = {(0, 8): "i8", (0, 32): "i32", (0, 64): "i64", (1, 8): "u8", (2, 16): "f16", (2, 32): "f32", (2, 64): "f64",
             (4, 16): "bf16", (6, 8): "bool", (10, 8): "f8e4m3", (12, 8): "f8e5m2"}.get((dl.code, dl.bits))
    shape = [dl.shape[i] for i in range(dl.ndim)]
    if dl.device.type != 1:
        raise InputError(f"{what} is on DLPack device {dl.device.type}; tensors in the host's memory are taken")
    if dtype is None or dl.lanes != 1:
        raise InputError(f"{what} has a DLPack type of code {dl.code} with {dl.bits} bits; there are {', '.join(SIZES)}")
    if dl.strides:
        step = 1
        for i in reversed(range(dl.ndim)):
            if shape[i] != 1 and dl.strides[i] != step:
                raise InputError(f"{what} is not dense")
            step *= shape[i]
    return View((t, capsule), dtype, shape, (dl.data or 0) + dl.byte_offset, "dlpack",
                foreign(t))


def foreign(t):
    """Returns the reason why a tensor from DLPack must not be written."""
    return f"is a {type(t).__name__}, which DLPack does not mark as writable"


def empty(like, dtype, shape):
    """Creates a tensor with the library of the view ``like``. Returns the tensor and its view."""
    if like.kind == "torch":
        torch = sys.modules["torch"]
        t = torch.empty(tuple(shape), dtype=getattr(torch, NAMES[dtype]))
        return t, view(t)
    if like.kind == "numpy" and dtype == like.dtype:
        a = sys.modules["numpy"].empty(tuple(shape), dtype=like.keep.dtype)
        return a, view(a)
    if like.kind == "numpy" and dtype in _NUMPY:
        a = sys.modules["numpy"].empty(tuple(shape), dtype=_NUMPY[dtype])
        return a, view(a)
    n = 1
    for e in shape:
        n *= e
    data = bytearray(n * SIZES[dtype])
    v = _of_buffer(data, dtype, shape)
    form = {"f32": "f", "f64": "d", "f16": "e", "i32": "i", "i64": "q", "bf16": "H", "i8": "b", "bool": "?"}.get(dtype, "B")
    shaped = memoryview(data).cast(form, tuple(shape)) if n and shape else memoryview(data).cast(form)
    return shaped, v


def on_host(t):
    """Returns a tensor in host memory; torch tensors on a GPU are copied."""
    if _is(t, "torch", "Tensor") and t.device.type != "cpu":
        return t.detach().cpu().contiguous()
    return t


def bytes_of(v):
    """Returns a copy of a view's bytes."""
    return ctypes.string_at(v.address, v.nbytes)


def restore(v, data):
    """Writes bytes to a view."""
    ctypes.memmove(v.address, data, len(data))


def copy(to, of):
    """Copies the bytes of one view to the beginning of another."""
    ctypes.memmove(to.address, of.address, of.nbytes)
