"""Tests of what torch users reach for: types, gradients, groups, on the CPU machine. HOCKET_LIBRARY names what is tested.

Run alone: python3 python/tests/test_torch.py. Tests of several processes start this file again as their members.
"""

import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import hocket  # noqa: E402
import processes  # noqa: E402

try:
    import numpy
    import torch
except ImportError:
    numpy = torch = None


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Types(unittest.TestCase):
    """Elements of one byte."""

    def test_bytes(self):
        for n in (1, 2, 3):
            processes.right(self, __file__, n, "bytes")

    def test_differ(self):
        """Ranks whose types differ are refused, though the bytes that are moved are as many."""
        processes.right(self, __file__, 2, "differ", HOCKET_STALL_TIMEOUT="20s")


def draws(seed, *shape):
    """Bytes of a rank, all values among them; as int64."""
    return numpy.random.default_rng(seed).integers(0, 256, shape)


# Ways to hold bytes: how tensors are made of values from 0 to 255, and their bytes.
HOLDERS = {
    "torch": (lambda v: torch.tensor(v, dtype=torch.uint8), lambda t: t.numpy().view("u1")),
    "numpy": (lambda v: v.astype("u1"), lambda t: t.view("u1")),
    "buffer": (lambda v: memoryview(bytearray(v.astype("u1").tobytes())).cast("B", v.shape) if v.size else
               memoryview(bytearray()), lambda t: numpy.array(t)),
}


def member_bytes():
    hocket.init()
    r, n = hocket.rank(), hocket.world_size()
    for rows, width in ((1, 1), (3, 1), (2, 5), (4, 8), (0, 3)):
        every = [draws(rank, rows * n, width) for rank in range(n)]
        for holder, (make, bytes_of) in HOLDERS.items():
            if holder == "buffer" and not rows:
                continue

            def check(got, want):
                assert numpy.array_equal(bytes_of(got), want % 256), (holder, rows, width, bytes_of(got), want)

            mine = [v[:rows] for v in every]
            check(hocket.all_gather(make(mine[r])), numpy.concatenate(mine))
            check(hocket.all_to_all(make(every[r])), numpy.concatenate([v[r * rows : (r + 1) * rows] for v in every]))
            b = make(mine[r])
            hocket.broadcast(b, root=n - 1)
            check(b, mine[n - 1])
            counts = [rows + i for i in range(n)]
            parts = [draws(100 + i, c, width) for i, c in enumerate(counts)]
            check(hocket.all_gather_v(make(parts[r]), counts), numpy.concatenate(parts))
            if rows:
                t = make(mine[r])
                assert hocket.all_reduce(t) is t
                check(t, sum(mine))
                out = make(0 * mine[r])
                check(hocket.all_reduce(make(mine[r]), "min", out=out), numpy.min(mine, axis=0))
                check(hocket.all_reduce(make(mine[r]), "max"), numpy.max(mine, axis=0))
                check(hocket.reduce_scatter(make(every[r])), sum(every)[r * rows : (r + 1) * rows])
    wide = draws(r, 4, 3) - 128
    all_wide = [draws(rank, 4, 3) - 128 for rank in range(n)]
    for op, of in (("sum", sum), ("max", lambda v: numpy.max(v, axis=0)), ("min", lambda v: numpy.min(v, axis=0)),
                   ("avg", lambda v: numpy.trunc(sum(v) / n))):
        want = torch.tensor(numpy.asarray(of(all_wide))).long().to(torch.int8)  # wraps
        assert torch.equal(hocket.all_reduce(torch.tensor(wide, dtype=torch.int8), op), want), op
        assert torch.equal(torch.from_numpy(hocket.all_reduce(wide.astype("i1"), op)), want), op
    odd = torch.arange(5) % 2 == (r == 0)
    both = [torch.arange(5) % 2 == (rank == 0) for rank in range(n)]
    assert torch.equal(hocket.all_reduce(odd.clone()), torch.stack(both).any(0))
    assert torch.equal(hocket.all_reduce(odd.clone(), "min"), torch.stack(both).all(0))
    assert torch.equal(hocket.all_gather(odd), torch.cat(both)) and hocket.all_gather(odd).dtype == torch.bool
    for name in ("float8_e4m3fn", "float8_e5m2"):
        if hasattr(torch, name):
            kind = getattr(torch, name)
            f = torch.tensor(draws(r, 6), dtype=torch.uint8).view(kind)
            want = torch.cat([torch.tensor(draws(rank, 6), dtype=torch.uint8) for rank in range(n)])
            got = hocket.all_gather(f)
            assert got.dtype == kind and torch.equal(got.view(torch.uint8), want)
            refuses(hocket.UnsupportedError, "convert to bf16", lambda: hocket.all_reduce(f))
    if n == 1:
        f8 = hocket._tensors.View(None, "f8e4m3", (4,), 4096, "dlpack")
        refuses(hocket.UnsupportedError, "convert to bf16", lambda: hocket.all_reduce(f8))
    refuses(hocket.UnsupportedError, "avg of bool", lambda: hocket.all_reduce(odd, "avg"))
    refuses(hocket.InputError, "op is 'prod'; there are sum, avg, max, min", lambda: hocket.all_reduce(odd, "prod"))
    refuses(hocket.InputError, "out has", lambda: hocket.all_reduce(odd, out=torch.zeros(5, dtype=torch.uint8)))
    refuses(hocket.InputError, "out has 4 bytes, and", lambda: hocket.all_gather(odd, out=torch.zeros(4, dtype=torch.bool)))
    refuses(hocket.InputError, "complex64", lambda: hocket.all_reduce(torch.zeros(4, dtype=torch.complex64)))
    with hocket.load(f"mesh d[{n}]\nfunc f(%x: f32[{4 * n}/d]) -> f32[{4 * n}/d] {{\n  %y = add %x, %x\n  return %y\n}}\n") as m:
        refuses(hocket.InputError, "u8", lambda: m(torch.zeros(4, dtype=torch.uint8)))


def refuses(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
    else:
        raise AssertionError(f"not refused: {words}")


def member_differ():
    hocket.init()
    t = torch.zeros(8, dtype=torch.uint8 if hocket.rank() else torch.int8)
    try:
        hocket.all_gather(t)
    except hocket.DisagreeError as e:
        assert "all_gather(u8[8])" in str(e) and "all_gather(i8[8])" in str(e), e
    else:
        raise AssertionError("types differ, and nothing was raised")


if __name__ == "__main__":
    processes.main(globals(), unittest)
