"""Collectives of elements of one byte: i8, u8, bool, f8e4m3, f8e5m2, which the library does not have. They are moved in
words of four bytes, and reduced as i32, of which the lowest byte is kept: sums of i8 and u8 wrap."""

import ctypes
import sys

from . import _cuda, _tensors
from ._errors import InputError, UnsupportedError

TYPES = {"i8", "u8", "bool", "f8e4m3", "f8e5m2"}
_SIGN = bytes(0 if b < 128 else 255 for b in range(256))  # the upper bytes of an i8 as i32
_LOGICAL = {"sum": "max", "max": "max", "min": "min"}  # of bool, as torch has them by NCCL


def type_of(t):
    """Returns the name of t's element type if its elements have one byte, otherwise None."""
    if _cuda.is_cuda(t) and t.element_size() != 1:
        return None
    name = _tensors.TORCH.get(str(t.dtype)[6:]) if _cuda.is_cuda(t) else _tensors.view(t, "the tensor").dtype
    return name if name in TYPES else None


def result(t, out, shape):
    """Returns the tensor that receives a result: out, or a new tensor of t's type."""
    dtype = type_of(t)
    if out is None:
        return t.new_empty(shape) if _cuda.is_cuda(t) else _tensors.empty(_tensors.view(t), dtype, shape)[0]
    if type_of(out) != dtype or _cuda.is_cuda(out) != _cuda.is_cuda(t):
        raise InputError(f"out has other elements than the tensor, which has {dtype}, or is elsewhere")
    return out


class _Flat:
    """Gives access to the bytes of a torch tensor on a GPU, or of a view of host memory."""

    def __init__(self, t, what="the tensor", written=False):
        self.cuda = _cuda.is_cuda(t)
        if self.cuda:
            if not t.is_contiguous():
                raise InputError(f"{what} is not contiguous: call .contiguous(), and copy a result that is written in place back")
            self.bytes, self.address = t.detach().view(_torch().uint8).view(-1), t.data_ptr()
        else:
            self.of = _tensors.written(t, what) if written else _tensors.view(t, what)
            self.address = self.of.address
            memory = (ctypes.c_char * self.of.nbytes).from_address(self.address)
            self.bytes = memoryview(memory).cast("B") if self.of.nbytes else memoryview(bytearray())

    def new(self, n):
        """Returns a new buffer of n bytes in the same kind of memory."""
        return self.bytes.new_empty(n) if self.cuda else memoryview(bytearray(n))

    def words(self, data):
        """Converts bytes to i32 elements."""
        return data.view(_torch().int32) if self.cuda else data.cast("i")

    def of_words(self, words):
        """Converts i32 elements to bytes."""
        return words.view(_torch().uint8) if self.cuda else memoryview(words).cast("B")


def _torch():
    return sys.modules["torch"]


def move(t, out, blocks, lengths, run):
    """Moves t, which consists of the given number of blocks of one size, to out, which consists of blocks of the given
    lengths in bytes. run is the collective: its argument is the words of t's blocks, each padded to the longest block,
    and its result the words of out's blocks."""
    a, b = _Flat(t), _Flat(out, "out", True)
    if len(b.bytes) != sum(lengths):
        raise InputError(f"out has {len(b.bytes)} bytes, and {sum(lengths)} come")
    size = len(a.bytes) // blocks
    padded = -(-max(size, *lengths) // 4) * 4
    if padded == 0:
        return out
    data = a.bytes
    if size != padded or a.address % 4:
        data = a.new(blocks * padded)
        for i in range(blocks):
            data[i * padded : i * padded + size] = a.bytes[i * size : (i + 1) * size]
    got, at = a.of_words(run(a.words(data))), 0
    for i, n in enumerate(lengths):
        b.bytes[at : at + n] = got[i * padded : i * padded + n]
        at += n
    return out


def reduce(t, dtype, op, out, run):
    """Reduces t into out. run is the collective, which reduces i32 elements with the given op."""
    if dtype.startswith("f8"):
        raise UnsupportedError(f"a reduction of {dtype}: convert to bf16 or f32 before")
    if dtype == "bool":
        if op == "avg":
            raise UnsupportedError("avg of bool; there are sum, max, min")
        op = _LOGICAL[op]
    if _cuda.is_cuda(t):
        return out.copy_(run(t.to(_torch().int32), op))
    a, b = _Flat(t), _Flat(out, "out", True)
    low = bytes(a.bytes)
    wide = bytearray(4 * len(low))
    wide[::4] = low
    if dtype == "i8":
        wide[1::4] = wide[2::4] = wide[3::4] = low.translate(_SIGN)
    got = memoryview(run(memoryview(wide).cast("i"), op)).cast("B")[::4] if low else b""
    if len(got) != len(b.bytes):
        raise InputError(f"out has {len(b.bytes)} elements, and {len(got)} come")
    b.bytes[:] = bytes(got)
    return out
