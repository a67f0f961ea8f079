"""Tests of what torch users reach for: types, gradients, groups, on the CPU machine. HOCKET_LIBRARY names what is tested.

Run alone: python3 python/tests/test_torch.py. Tests of several processes start this file again as their members.
"""

import json
import os
import pathlib
import re
import signal
import struct
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

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
        """Ranks whose types or counts differ are refused, even if they move equally many bytes, or none."""
        for what in ("differ", "empty"):
            processes.right(self, __file__, 2, what, HOCKET_STALL_TIMEOUT="20s")


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Profiles(unittest.TestCase):
    """The code of docs/start-profile.md."""

    def test_steps(self):
        """The profile that the page records has the marks of five steps, by which hocket trace knows them."""
        page = (ROOT / "docs/start-profile.md").read_text(encoding="utf-8")
        code = page.split("```python\n")[1].split("```")[0]
        calls = []
        nothing = unittest.mock.Mock()
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("torch.cuda.synchronize", nothing), \
                unittest.mock.patch("torch.distributed.barrier", nothing, create=True), \
                unittest.mock.patch("torch.distributed.get_rank", lambda: 3, create=True):
            here = os.getcwd()
            os.chdir(folder)
            try:
                exec(code, {"torch": torch, "step": lambda: calls.append(torch.ones(2) + 1)})
                events = json.loads(pathlib.Path("run.rank3.json").read_text(encoding="utf-8"))
            finally:
                os.chdir(here)
        events = events["traceEvents"] if isinstance(events, dict) else events
        names = {e["name"] for e in events if e.get("ph") == "X" and str(e["name"]).startswith("ProfilerStep#")}
        self.assertEqual(names, {f"ProfilerStep#{i}" for i in range(5)})
        self.assertEqual(len(calls), 8)


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Gradients(unittest.TestCase):
    """Gradients of collectives."""

    def test_gradcheck(self):
        for n in (2, 3):
            processes.right(self, __file__, n, "gradcheck", MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())

    def test_training(self):
        """A layer that is split over ranks, trained by hocket's collectives, by gloo's, and whole."""
        processes.right(self, __file__, 2, "training", MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())

    def test_refused(self):
        processes.right(self, __file__, 2, "refused")


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Groups(unittest.TestCase):
    """Some of the processes."""

    def test_mixed(self):
        """Calls drawn at random, in groups of hocket's and torch's, against gloo and arithmetic."""
        processes.right(self, __file__, 4, "mixed", MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())

    def test_torch_first(self):
        """A group of torch's that some processes have used changes no names of hocket's."""
        processes.right(self, __file__, 3, "torch_first", MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())

    def test_shutdown(self):
        """The machine is closed though a group cannot be."""
        processes.right(self, __file__, 2, "shutdown")

    def test_groups(self):
        processes.right(self, __file__, 3, "groups", HOCKET_STALL_TIMEOUT="60s")

    def test_differing_calls(self):
        """What only one of three ranks calls differently: all of them name both calls and their lines."""
        processes.right(self, __file__, 3, "differing", HOCKET_STALL_TIMEOUT="60s")

    def test_interrupted(self):
        processes.right(self, __file__, 3, "interrupted", HOCKET_STALL_TIMEOUT="60s")

    def test_order(self):
        """Groups that are used in an order that deadlocks: the error comes long before the stall limit, 300 s."""
        for what in ("order", "torch_order"):
            processes.right(self, __file__, 4, what, HOCKET_STALL_TIMEOUT="300s", HOCKET_JOIN_TIMEOUT="300s",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())

    def test_died(self):
        """All processes and groups end when one of a group's dies."""
        got = processes.launch(__file__, 4, "died", HOCKET_STALL_TIMEOUT="60s")
        self.assertEqual(got[3][0], 9)
        for code, text in got[:3]:
            self.assertEqual((code, text.strip().splitlines()[-1:]), (0, ["PeerError 3"]), text)


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Engines(unittest.TestCase):
    """hocket.communicator, by the calls that engines' own tests make."""

    def test_communicator(self):
        processes.right(self, __file__, 4, "communicator", MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class OneProcess(unittest.TestCase):
    """Collectives of torch's tensors on GPUs in a group of one process, which touch no GPU."""

    def test_checked(self):
        from hocket import _cuda

        s, t = types.SimpleNamespace(size=1, rank=0), torch.ones(4, 2)
        self.assertIs(_cuda.collective(s, "all_reduce", t, t, t.shape), t)
        for out in (None, torch.zeros(2, 4)):
            got = _cuda.collective(s, "all_gather", t, out, (4, 2))
            self.assertTrue(got is not t and got.sum() == 8)
        for call, why in ((lambda: _cuda.collective(s, "all_reduce", t.T, t.T, (2, 4)), "not contiguous"),
                          (lambda: _cuda.collective(s, "all_gather", t.to(torch.complex64), None, (4, 2)), "complex64"),
                          (lambda: _cuda.collective(s, "all_gather", t, torch.ones(3), (4, 2)), "out has 3 elements"),
                          (lambda: _cuda.collective(s, "all_gather", t, t.double(), (4, 2)), "out has 8 elements of torch.float64")):
            with self.assertRaisesRegex(hocket.InputError, why):
                call()
        self.assertIsNone(_cuda.all_reduce_rms_norm(s, t, t, t[0], 1e-6))


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Several(unittest.TestCase):
    """What one start of processes tests: model.load, the plan cache, uneven collectives."""

    def test_several(self):
        with tempfile.TemporaryDirectory() as folder:
            for n in (1, 2):
                processes.right(self, __file__, n, "several", HOCKET_TEST_FOLDER=folder)


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


def member_empty():
    """A rank that calls without elements takes part in the comparison of calls. Reductions may be torch's."""
    import torch.distributed as dist

    hocket.init()
    r = hocket.rank()
    assert hocket.all_reduce(torch.full((2,), r + 1.0), op=dist.ReduceOp.SUM).tolist() == [3, 3]
    assert hocket.all_reduce(torch.full((2,), r + 1.0), op=dist.ReduceOp.MAX).tolist() == [2, 2]
    refuses(hocket.InputError, "ReduceOp of these names", lambda: hocket.all_reduce(torch.ones(2), op=dist.ReduceOp.PRODUCT))
    refuses(hocket.InputError, "new_group", lambda: hocket.all_reduce(torch.ones(2), group=[0, 1]))
    for f in (hocket.all_reduce, hocket.broadcast, hocket.all_gather, hocket.reduce_scatter, hocket.all_to_all):
        assert f(torch.empty(0, 3)).shape == (0, 3)
    try:
        hocket.all_reduce(torch.ones(4) if r == 0 else torch.empty(0))
        got = hocket.all_reduce(torch.full((4,), 10.0))
    except hocket.DisagreeError as e:
        assert "all_reduce(f32[4], sum)" in str(e) and "all_reduce(f32[0], sum)" in str(e), e
    else:
        raise AssertionError(f"shapes differ, and a later call returned {got}")


def gloo():
    """torch.distributed, with the ranks of hocket."""
    import torch.distributed as dist

    hocket.init()
    dist.init_process_group("gloo", rank=hocket.rank(), world_size=hocket.world_size())
    return dist


def member_gradcheck():
    """torch's gradcheck. All ranks have the inputs of all, and differentiate one function of them: what the ranks
    compute, added by gloo, so that the gradient is that of the sum; or what each computes, where all compute the same."""
    dist = gloo()
    r, n = hocket.rank(), hocket.world_size()

    class Own(torch.autograd.Function):
        """The input of this rank."""

        @staticmethod
        def forward(ctx, every):
            return every[r].clone()

        @staticmethod
        def backward(ctx, g):
            every = torch.zeros(n, *g.shape, dtype=g.dtype)
            every[r] = g
            dist.all_reduce(every)
            return every

    class Total(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            t = t.clone()
            dist.all_reduce(t)
            return t

        @staticmethod
        def backward(ctx, g):
            return g

    own, total = Own.apply, Total.apply
    every = torch.randn(n, n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.arange(2.0 * n * n, dtype=torch.float64)

    def weighed(t):  # other weights on other ranks
        return t * (weights[: t.numel()].view_as(t) + r)

    for op in ("sum", "avg"):
        assert torch.autograd.gradcheck(lambda x: hocket.all_reduce(own(x), op), every)
        assert torch.autograd.gradcheck(lambda x: total(weighed(hocket.all_reduce(own(x), op, grad="all_reduce"))), every)
        assert torch.autograd.gradcheck(lambda x: total(weighed(hocket.reduce_scatter(own(x), op))), every)
    assert torch.autograd.gradcheck(lambda x: hocket.all_gather(own(x), grad="slice"), every)
    assert torch.autograd.gradcheck(lambda x: total(weighed(hocket.all_gather(own(x)))), every)
    uneven = list(range(1, n + 1))
    for grad in ("reduce_scatter", "slice"):
        f = (lambda t: t) if grad == "slice" else (lambda t: total(weighed(t)))
        assert torch.autograd.gradcheck(lambda x: f(hocket.all_gather_v(own(x)[: r + 1], uneven, grad=grad)), every)
    assert torch.autograd.gradcheck(lambda x: total(weighed(hocket.all_to_all(own(x)))), every)
    same = every[0].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: total(weighed(hocket.replicate(x))), same)
    scalars = every[:, 0, 0].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: total(weighed(hocket.all_gather(own(x)))), scalars)
    dist.destroy_process_group()


def member_training():
    dist = gloo()
    r, n = hocket.rank(), hocket.world_size()

    class Reduce(torch.autograd.Function):
        """Megatron's g: the ranks' sum forward, the identity back."""

        @staticmethod
        def forward(ctx, t):
            dist.all_reduce(t)
            ctx.mark_dirty(t)
            return t

        @staticmethod
        def backward(ctx, g):
            return g

    class Copy(torch.autograd.Function):
        """Megatron's f: the identity forward, the ranks' sum back."""

        @staticmethod
        def forward(ctx, t):
            return t.view_as(t)

        @staticmethod
        def backward(ctx, g):
            g = g.clone()
            dist.all_reduce(g)
            return g

    rng = torch.Generator().manual_seed(2)
    whole = [torch.randn(s, generator=rng) / 4 for s in ((16, 32), (64, 16), (16, 64), (16, 16))]
    target = torch.randn(8, 16, generator=rng)
    inputs = torch.randn(8, 32, generator=rng)

    def train(first, last, split):
        """The losses of 50 steps of a layer, then a layer whose weights are split: by columns, and by rows."""
        embed, up, down, out = (w.clone() for w in whole)
        if split:
            up, down = up.chunk(n)[r].clone(), down.chunk(n, 1)[r].clone()
        params = [p.requires_grad_() for p in (embed, up, down, out)]
        optimizer, losses = torch.optim.SGD(params, lr=0.1, momentum=0.9), []
        for _ in range(50):
            x = torch.tanh(inputs @ embed.T)
            y = last(torch.nn.functional.gelu(first(x) @ up.T) @ down.T)
            loss = ((x + y) @ out.T - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def same(t):
        return t

    ours = train(hocket.replicate, hocket.all_reduce, True)
    theirs = train(Copy.apply, Reduce.apply, True)
    alone = train(same, same, False)
    rows = train(hocket.replicate, lambda y: hocket.all_gather(hocket.reduce_scatter(y), grad="slice"), True)
    assert ours == theirs, (ours, theirs)  # two addends: the same bits
    assert rows == ours, (rows, ours)  # a sum of rows, gathered
    assert numpy.allclose(ours, alone, rtol=1e-3) and ours[-1] < ours[0] / 2, (ours, alone)
    dist.destroy_process_group()


def member_refused():
    """What has no gradient, and what autograd saved and is overwritten."""
    hocket.init()
    x = torch.ones(4, 4, requires_grad=True)
    refuses(hocket.InputError, "overwrites a leaf", lambda: hocket.all_reduce(x))
    for what, call in (("all_reduce of op max", lambda: hocket.all_reduce(x * 1, "max")),
                       ("all_reduce with out=", lambda: hocket.all_reduce(x * 1, out=torch.empty(4, 4))),
                       ("reduce_scatter of op min", lambda: hocket.reduce_scatter(x, "min")),
                       ("all_gather with out=", lambda: hocket.all_gather(x, out=torch.empty(8, 4))),
                       ("broadcast", lambda: hocket.broadcast(x)),
                       ("all_reduce_rms_norm", lambda: hocket.all_reduce_rms_norm(x, x, torch.ones(4))),
                       ("f has no gradient", lambda: hocket.load("mesh d[2]\nfunc f(%x: f32[8/d, 4]) -> f32[8/d, 4] {\n"
                                                                 "  %y = add %x, %x\n  return %y\n}\n", func="f")(x))):
        refuses(hocket.UnsupportedError, what, call)
    refuses(hocket.InputError, "grad is 'mean'; there are identity, all_reduce", lambda: hocket.all_reduce(x, grad="mean"))
    with torch.no_grad():
        hocket.all_reduce(x)
    hocket.broadcast(x.detach())
    assert torch.equal(x, torch.full((4, 4), 2.0)), x
    assert not hocket.all_gather(x.detach()).requires_grad
    for change in (lambda t: hocket.all_reduce(t), lambda t: hocket.all_reduce(torch.ones(4, 4), out=t),
                   lambda t: hocket.broadcast(t), lambda t: hocket.all_gather(torch.ones(2, 4), out=t)):
        t = torch.ones(4, 4)
        y = (x * t).sum()  # saves t
        change(t)
        try:
            y.backward()
        except RuntimeError as e:
            assert "inplace operation" in str(e), e
        else:
            raise AssertionError("autograd used a value that was overwritten")
    with torch.inference_mode():
        hocket.all_reduce(torch.ones(4))


class Mesh:
    """One dimension of a DeviceMesh, which torch 1 has not."""

    ndim, mesh_dim_names = 1, ("x",)

    def __init__(self, group):
        self.get_group = lambda: group


def member_mixed():
    dist = gloo()
    r = hocket.rank()
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    both = [dist.new_group(ranks) for ranks in rows], [dist.new_group(ranks) for ranks in columns]
    own = both[0][r // 2], both[1][r % 2]
    ours = [[hocket.new_group(ranks, "tp") for ranks in rows][r // 2], Mesh(own[1]), dist.group.WORLD]
    theirs = [own[0], own[1], dist.group.WORLD]
    members = [rows[r // 2], columns[r % 2], [0, 1, 2, 3]]
    assert [hocket.world_size(g) for g in ours] == [2, 2, 4] and hocket.rank(ours[1]) == r // 2
    rng = numpy.random.default_rng(5)
    reduces = {"sum": (dist.ReduceOp.SUM, sum), "max": (dist.ReduceOp.MAX, lambda v: numpy.max(v, axis=0)),
               "min": (dist.ReduceOp.MIN, lambda v: numpy.min(v, axis=0))}
    types = [torch.int32, torch.int64, torch.uint8, torch.float32, torch.float64]
    for step in range(int(os.environ.get("HOCKET_TEST_CALLS", "200"))):
        seed, which, call, kind, size = (int(rng.integers(n)) for n in (1 << 30, 3, 5, len(types), 4))
        op, root = ("sum", "max", "min")[int(rng.integers(3))], int(rng.integers(2))
        dtype, n = types[kind], (1, 3, 8, 100)[size]
        group, peers = ours[which], members[which]
        me = peers.index(r)
        every = [numpy.random.default_rng(seed + p).integers(0, 50, (len(peers) * n, 2)) for p in peers]
        mine = torch.tensor(every[me]).to(dtype)

        def check(got, want):
            want = torch.as_tensor(numpy.asarray(want)).to(dtype)
            assert got.dtype == dtype and torch.equal(got, want), (step, call, dtype, n, op, got, want)

        if call == 0:
            check(hocket.all_reduce(mine, op, group=group), reduces[op][1](every))
            dist.all_reduce(mine := torch.tensor(every[me]).to(dtype), reduces[op][0], group=theirs[which])
            check(mine, reduces[op][1](every))
        elif call == 1:
            got = hocket.all_gather(mine, group=group)
            parts = [torch.empty_like(mine) for _ in peers]
            dist.all_gather(parts, mine, group=theirs[which])
            check(got, torch.cat(parts))
            check(got, numpy.concatenate(every))
        elif call == 2:
            check(hocket.reduce_scatter(mine, op, group=group), reduces[op][1](every)[me * n : (me + 1) * n])
        elif call == 3:
            check(hocket.all_to_all(mine, group=group), numpy.concatenate([v[me * n : (me + 1) * n] for v in every]))
        else:
            check(hocket.broadcast(mine, root, group=group), every[root])
    model = hocket.load("mesh d[2]\nfunc f(%x: f32[4/d]) -> f32[4] {\n  %y = all_gather %x, over=d, axis=0\n  return %y\n}\n",
                        group=ours[1])
    assert model(torch.full((2,), float(r))).tolist() == [float(p) for p in members[1] for _ in range(2)]
    dist.destroy_process_group()


def member_torch_first():
    dist = gloo()
    pair = dist.new_group([0, 1])
    r = hocket.rank()
    if r < 2:
        assert hocket.all_reduce(torch.ones(2), group=pair).tolist() == [2, 2]
    g = hocket.new_group([0, 2])
    if r != 1:
        assert hocket.all_reduce(torch.ones(2), group=g).tolist() == [2, 2]
    dist.destroy_process_group()


def member_shutdown():
    from hocket import _lib

    hocket.init()
    groups, close, closed = [hocket.new_group([0, 1]) for _ in range(2)], _lib.close, []
    machine = hocket._world.state().machine

    def fails(handle):
        closed.append(handle)
        if handle is groups[1].machine:
            raise hocket.MachineError("a GPU failed")
        close(handle)

    _lib.close = fails
    refuses(hocket.MachineError, "a GPU failed", hocket.shutdown)
    assert closed == [groups[1].machine, groups[0].machine, machine], closed
    assert not hocket.is_initialized() and not machine
    close(groups[1].machine)


def member_differing():
    hocket.init()
    r, n = hocket.rank(), hocket.world_size()
    last, at = r == n - 1, r"\) at \S*test_torch\.py:\d+"
    rows = torch.ones(2, 8)

    def differ(calls, call, others):
        """The last rank makes another call than the others: all raise an error that names both, and the run begins anew."""
        try:
            calls()
        except hocket.DisagreeError as e:
            want = rf"rank {n - 1} .*called {call}{at}, the others \(ranks 0-1\) called {others}{at}$"
            assert re.search(want, str(e)), (want, str(e))
        else:
            raise AssertionError(f"{call} next to {others}, and nothing was raised")
        hocket.shutdown()
        refuses(hocket.ClosedError, "call hocket.init()", lambda: hocket.all_reduce(torch.ones(1)))
        hocket.init()

    differ(lambda: hocket.new_group([1, 2] if last else [0, 1], "tp"), r"new_group\(\[1, 2\]", r"new_group\(\[0, 1\]")
    differ(lambda: hocket.barrier() if last else hocket.all_reduce(torch.ones(1, dtype=torch.int32)),
           r"barrier\(", r"all_reduce\(i32\[1\], sum")
    differ(lambda: hocket.all_reduce_rms_norm(rows, rows, rows[0], 1.0 if last else 1e-5),
           r"all_reduce_rms_norm\(f32\[2, 8\], eps=1.0", r"all_reduce_rms_norm\(f32\[2, 8\], eps=1e-05")

    def threads():
        failed = []

        def reduces(length):
            try:
                hocket.all_reduce(torch.ones(length))
            except hocket.Error as e:
                failed.append(e)

        both = [threading.Thread(target=reduces, args=(k,)) for k in ((16, 8) if last else (8, 16))]
        for t in both:
            t.start()
            time.sleep(0.5)  # the first call waits for the others
        for t in both:
            t.join()
        raise failed[0]

    differ(threads, r"all_reduce\(f32\[16\], sum", r"all_reduce\(f32\[8\], sum")

    # Lengths that do not fit are an error on all ranks, also if recv and most are given: neither zeros nor lost rows.
    for wrong in (2, 0):
        refuses(hocket.InputError, f"recv of rank {n - 1} is {[wrong] * n}, and the ranks send {[1] * n}",
                lambda: hocket.all_to_all_v(torch.ones(n), [1] * n, recv=[wrong if last else 1] * n, most=2))
    refuses(hocket.InputError, f"most of rank {n - 1} is 0", lambda: hocket.all_to_all_v(
        torch.ones(n), [1] * n, recv=[1] * n, most=0 if last else 2))
    for bad in ((rows[:, :7], rows[0], 1e-5), (rows, rows[0, :7], 1e-5), (rows, rows[0].double(), 1e-5), (rows, rows[0], -1.0),
                (rows, rows[0], float("nan"))):
        refuses(hocket.InputError, "wanted" if bad[2] > 0 else "eps is", lambda: hocket.all_reduce_rms_norm(rows, *bad))
    refuses(hocket.InputError, "give rows", lambda: hocket.all_reduce_rms_norm(rows.long(), rows.long(), rows[0].long()))
    got, added = hocket.all_reduce_rms_norm(rows * (r + 1), rows, rows[0] * 3, 0.0)  # the sum is 1 + 2 + 3 + 1 everywhere
    assert torch.equal(added, rows * 7) and torch.allclose(got, rows * 3), (got, added)
    for ranks in ([0.5], "ab", 0):
        refuses(hocket.InputError, "give a list of ranks", lambda: hocket.new_group(ranks))
    refuses(hocket.InputError, "root is 'a'", lambda: hocket.broadcast(rows, root="a"))
    refuses(hocket.InputError, "the machines are cpu, cuda", lambda: hocket.init("tpu"))
    refuses(hocket.UnsupportedError, "async_op", lambda: hocket.all_reduce(rows, async_op=True))
    hocket.barrier()


def member_interrupted():
    hocket.init()
    x = torch.ones(10)
    hocket.all_reduce(x)
    if hocket.rank() == 0:
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    elif hocket.rank() == 1:
        time.sleep(3)
    try:
        hocket.all_reduce(x)
    except KeyboardInterrupt:
        assert hocket.rank() == 0
    except hocket.PeerError as e:
        assert hocket.rank() > 0 and re.search(
            r"rank 0 \(.*\): interrupted, in all_reduce\(f32\[10\], sum\) at \S*test_torch\.py:\d+", str(e)), e
    else:
        raise AssertionError("rank 0 was interrupted, and nothing was raised")


def member_groups():
    hocket.init()
    r = hocket.rank()
    pair, alone, turned = hocket.new_group([0, 2]), hocket.new_group([1]), hocket.new_group([2, 1, 0], "turned")
    assert hocket.rank(turned) == 2 - r and turned.ranks == (2, 1, 0)
    assert hocket.all_gather(torch.tensor([r]), group=turned).tolist() == [2, 1, 0]
    about = hocket.info() if r == 0 else None
    assert about is None or (about["machine"], about["rank"], about["size"]) == ("cpu", 0, 3) and [0, 2] in about["groups"]
    assert about is None or {"libraries", "multicast"} <= set(about), about
    if r == 1:
        t = torch.tensor([5.0])
        assert hocket.all_reduce(t, group=alone) is t and t.item() == 5.0
        refuses(hocket.InputError, "rank 1 is not of the group of ranks [0, 2]", lambda: hocket.barrier(pair))
    else:
        assert hocket.all_reduce(torch.tensor([1.0 + r]), group=pair).item() == 4.0
        refuses(hocket.InputError, "root is 2; there are 2 processes", lambda: hocket.broadcast(torch.ones(1), 2, group=pair))
        pair.close()
        refuses(hocket.ClosedError, "", lambda: hocket.barrier(pair))
    refuses(hocket.InputError, "group is of type str: give a group that hocket.new_group returned", lambda: hocket.barrier("tp"))
    for ranks, words in (([0, 3], "a group of ranks [0 3]: there is no rank 3; the ranks of the 3 processes are 0 to 2"),
                         ([-1, 1], "there is no rank -1"), ([1, 1], "rank 1 is listed twice"), ([], "a group of no ranks")):
        refuses(hocket.InputError, words, lambda: hocket.new_group(ranks))
    text = "mesh d[2]\nfunc f(%x: f32[4/d]) -> f32[4] {\n  %y = all_gather %x, over=d, axis=0\n  return %y\n}\n"
    for options in ({}, {"ranks": 2}):
        refuses(hocket.InputError, "the mesh of program.hkt has size 2, and there are 3 processes, which have one rank each: start "
                "2 processes, as by hocket launch -n 2, or load it in 2 of them, with group=hocket.new_group(list(range(2)))",
                lambda: hocket.load(text, **options))
    open_mesh = "dim N\n" + text.replace("d[2]", "d[N]")
    hocket.load(open_mesh)  # its size is that of the processes
    refuses(hocket.InputError, "ranks is 2, and there are 3 processes", lambda: hocket.load(open_mesh, ranks=2))
    refuses(hocket.InputError, "the mesh of program.hkt has size 2, and there are 3 processes in the group, which have one rank "
            "each: give group= a group of 2 processes", lambda: hocket.load(text, group=turned))
    hocket.barrier()
    try:
        hocket.new_group([0, 1] if r else [0, 2])
    except hocket.DisagreeError as e:
        assert "new group" in str(e) and "called new_group([0, 2]) at " in str(e), e
    else:
        raise AssertionError("groups differ, and nothing was raised")


def member_several():
    hocket.init()
    loads()
    caches()
    uneven_calls()


def member_communicator():
    communicator(gloo(), hocket.rank(), "cpu")


def communicator(dist, r, where):
    """Two groups of four processes, whose calls are independent; results against gloo's and arithmetic."""
    from hocket.communicator import Communicator
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    c = Communicator(pairs[r // 2], device=where, device_group=pairs[r // 2], unique_name="tp:0")
    me, peers = r % 2, [r // 2 * 2, r // 2 * 2 + 1]
    assert (c.rank, c.rank_in_group, c.world_size, c.ranks, c.global_rank, c.disabled) == (me, me, 2, peers, r, False)
    ones = torch.ones(16, 64, 64, device=where)
    with c.change_state(enable=True):
        if r < 2:  # the other pair calls once
            assert c.all_reduce(c.all_reduce(ones)).mean().item() == 4
        else:
            assert c.all_reduce(ones).mean().item() == 2
    assert ones.mean().item() == 1  # a new tensor
    with c.change_state(enable=False):
        assert c.all_reduce(ones) is None and not c.should_use(ones) and c.custom_all_reduce(ones) is None
        calls = (lambda: c.all_gather(ones), lambda: c.reduce_scatter(ones), lambda: c.broadcast(ones),
                 lambda: c.all_gather_into_tensor(ones, ones), lambda: c.reduce_scatter_tensor(ones, ones))
        for call in calls:
            refuses(hocket.InputError, "switched off", call)
    assert not c.disabled and c.custom_all_reduce(ones).mean().item() == 2
    for dtype, want in ((torch.float32, True), (torch.bfloat16, True), (torch.float16, True), (torch.int8, False),
                        *(((torch.float8_e4m3fn, False),) if hasattr(torch, "float8_e4m3fn") else ())):
        assert c.should_use(torch.empty(16, dtype=dtype, device=where)) is want, dtype
    out = torch.empty_like(ones)
    assert c.all_reduce(ones, out, op=dist.ReduceOp.MAX) is out and out.mean().item() == 1
    every = [torch.tensor(draws(p, 4, 6, 2)).float() for p in range(4)]
    mine = every[r].to(where)
    for dim in (0, 1, 2, -1):
        assert torch.equal(c.all_gather(mine, dim).cpu(), torch.cat([every[p] for p in peers], dim)), dim
        assert torch.equal(c.reduce_scatter(mine, dim).cpu(), sum(every[p] for p in peers).chunk(2, dim)[me]), dim
    sizes = [1, 3]
    start = [0, 1][me]
    both = c.all_gatherv([mine[start : start + sizes[me]], 2 * mine[: sizes[me]]], sizes=sizes)
    assert torch.equal(both[0].cpu(), torch.cat([every[peers[0]][:1], every[peers[1]][1:4]]))
    assert torch.equal(both[1].cpu(), 2 * torch.cat([every[peers[0]][:1], every[peers[1]][:3]]))
    whole = sum(every[p] for p in peers)
    assert torch.equal(c.reduce_scatterv(mine, 0, sizes).cpu(), whole.split(sizes)[me])
    assert torch.equal(c.reduce_scatterv(mine, 1, [2, 4]).cpu(), whole.split([2, 4], 1)[me])
    hidden, logits = c.dispatch(mine[: sizes[me]], mine[: sizes[me], :, 0], sizes)
    assert hidden.shape == (4, 6, 2) and logits.shape == (4, 6)
    assert torch.equal(c.combine(hidden, sizes), 2 * mine[: sizes[me]])
    into = torch.empty(8, 6, 2, device=where)
    c.all_gather_into_tensor(into, mine)
    assert torch.equal(into.cpu(), torch.cat([every[p] for p in peers]))
    part = torch.empty(2, 6, 2, device=where)
    c.reduce_scatter_tensor(part, mine)
    assert torch.equal(part.cpu(), whole.chunk(2)[me])
    got = c.gather(mine, 1, 0)
    assert (got is None) == (me == 0) and (got is None or torch.equal(got.cpu(), torch.cat([every[p] for p in peers])))
    t = mine.clone()
    assert c.broadcast(t, 1) is t and torch.equal(t.cpu(), every[peers[1]])
    if where == "cpu":  # by gloo
        if me == 0:
            c.send(mine)
        else:
            assert torch.equal(c.recv(mine.shape, mine.dtype), every[peers[0]])
    c.barrier()
    if where != "cpu":
        a = torch.ones(4, 4, device=where)
        c.all_reduce(a)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with c.capture(), torch.cuda.graph(graph):
            b = c.all_reduce(a)
        a.fill_(3)
        graph.replay()
        torch.cuda.synchronize()
        assert b.mean().item() == 6
    refuses(hocket.InputError, "there are SUM, AVG, MAX, MIN", lambda: c.all_reduce(ones, op=dist.ReduceOp.PRODUCT))
    c.destroy()
    for enable in (None, True):
        with c.change_state(enable=enable):
            for call in (*calls, lambda: c.all_reduce(ones)):
                refuses(hocket.ClosedError, "destroyed", call)
    dist.barrier()


def uneven_calls():
    """Blocks of different lengths."""
    uneven(hocket.rank(), hocket.world_size(), "cpu")
    refuses(hocket.InputError, "none negative", lambda: hocket.reduce_scatter_v(torch.ones(3), [-1] * hocket.world_size()))
    refuses(hocket.InputError, "has not the", lambda: hocket.reduce_scatter_v(torch.ones(3), [5] * hocket.world_size()))
    refuses(hocket.InputError, "to be filled up", lambda: hocket.all_to_all_v(
        hocket._tensors.View(None, "f32", (2,), 4096, "buffer"), [2] + [0] * (hocket.world_size() - 1)))
    x = numpy.arange(2.0 * hocket.world_size())
    assert (hocket.all_to_all_v(x, [2] * hocket.world_size()).reshape(-1, 2) == x[2 * hocket.rank() :][:2]).all()


def uneven(r, n, where):
    """reduce_scatter_v and all_to_all_v, and their gradients, against arithmetic on whole numbers."""
    for counts in ([3, 0, 2, 1], [1] * 4, [0] * 4, [0, 5, 1, 0]):
        counts = counts[:n]
        every = [torch.tensor(draws(p, sum(counts), 2)) for p in range(n)]
        weights = [torch.tensor(draws(40 + p, sum(counts), 2)).double() for p in range(n)]
        at = sum(counts[:r])
        for dtype in (torch.int64, torch.uint8, torch.float32):
            got = hocket.reduce_scatter_v(every[r].to(dtype).to(where), counts)
            assert got.dtype == dtype and torch.equal(got.cpu(), sum(every)[at : at + counts[r]].to(dtype)), (counts, dtype, got)
        got = hocket.reduce_scatter_v(every[r].to(where), counts, "max")
        assert torch.equal(got.cpu(), torch.stack(every).amax(0)[at : at + counts[r]])
        x = every[r].double().to(where).requires_grad_()
        (hocket.reduce_scatter_v(x, counts) * weights[r][: counts[r]].to(where)).sum().backward()
        assert torch.equal(x.grad.cpu(), torch.cat([weights[p][: counts[p]] for p in range(n)])), counts
    for seed in range(4):
        sends = torch.tensor(numpy.random.default_rng(seed).integers(0, 4, (n, n)))  # sends[i][j] rows go from i to j
        if seed == 3:
            sends.zero_()
        send, recv, most = sends[r].tolist(), sends[:, r].tolist(), int(sends.max())
        every = [torch.tensor(draws(9 * seed + p, sum(sends[p].tolist()), 2)) for p in range(n)]
        parts = [every[p].split(sends[p].tolist()) for p in range(n)]
        want = torch.cat([parts[p][r] for p in range(n)])
        for dtype in (torch.int64, torch.uint8, torch.float32):
            t = every[r].to(dtype).to(where)
            for got in (hocket.all_to_all_v(t, send), hocket.all_to_all_v(t, send, recv, most)):
                assert torch.equal(got.cpu(), want.to(dtype)), (sends, got, want)
        x = every[r].double().to(where).requires_grad_()
        weights = [torch.tensor(draws(70 + p, 4 * n, 2)).double() for p in range(n)]
        got = hocket.all_to_all_v(x, send)
        (got * weights[r][: len(want)].to(where)).sum().backward()
        back = torch.cat([weights[p][: int(sends[:, p].sum())].split(sends[:, p].tolist())[r] for p in range(n)])
        assert torch.equal(x.grad.cpu(), back), (sends, x.grad, back)
        if most:
            blocks = torch.stack([torch.cat([p, p.new_zeros(most - len(p), 2)]) for p in parts[r]])
            got, counts = hocket.all_to_all_v(blocks.to(where), sends[r].to(where))
            assert counts.tolist() == recv
            assert torch.equal(torch.cat([b[:c] for b, c in zip(got.cpu(), recv)]), want)
        refuses(hocket.InputError, "give integers", lambda: hocket.all_to_all_v(torch.ones(n, 1), torch.ones(n)))
        if n > 1:
            last = [c + (r == n - 1) for c in recv]  # wrong on one rank, and an error on all
            refuses(hocket.InputError, f"recv of rank {n - 1} is", lambda: hocket.all_to_all_v(t, send, last))
            for bad in ([1] * (n + 1), [-1] * n, ["many"] * n):
                try:
                    hocket.all_to_all_v(t, bad if r == 0 else send)
                except (hocket.InputError, ValueError) as e:
                    assert r == 0 or "the arguments of rank 0 are wrong" in str(e), e
                else:
                    raise AssertionError("rank 0 has wrong counts, and nothing was raised")
            refuses(hocket.InputError, "and the ranks send", lambda: hocket.all_to_all_v(t, send, [c + 1 for c in recv]))


def caches():
    """The cache of plans: off, bounded, with buckets, and its counters."""
    n = hocket.world_size()
    text = f"mesh d[{n}]\nfunc f(%x: f32[T, 4], %w: f32[4]) -> f32[T, 4] {{\n  %y = mul %x, %w\n  return %y\n}}\n"
    w = torch.arange(4.0)

    def calls(model, sizes):
        """Calls a model with so many rows, and returns what the counters rose by."""
        before = model.stats()
        for size in sizes:
            x = torch.randn(size, 4)
            got = model(x, w, dims={"T": size} if n > 1 else None)
            assert got.shape == x.shape and torch.equal(got, x * w), (size, got)
        return {k: v - before[k] for k, v in model.stats().items()}

    with hocket.load(text) as m:
        s = calls(m, [3, 5, 3, 5, 7])
        assert (s["hits"], s["misses"], s["evictions"], s["plans"]) == (2, 3, 0, 3), s
        plan = s["bytes"] // 3
    with hocket.load(text, cache="off") as m:
        s = calls(m, [3, 3, 5])
        assert (s["hits"], s["misses"], s["plans"], s["bytes"]) == (0, 3, 0, 0), s
    with hocket.load(text, cache=2 * plan + plan // 2, hard_cache=True) as m:
        s = calls(m, [3, 5, 7, 3])
        assert s["misses"] == 4 and s["evictions"] >= 2 and s["reloads"] == 1 and s["bytes"] <= 2 * plan + plan // 2, (plan, s)
        refuses(hocket.OutOfMemoryError, "hard limit of the plan cache", lambda: calls(m, [1 << 20]))
    with hocket.load(text, buckets={"T": [16, 8]}) as m:
        s = calls(m, [3, 5, 8, 9, 16, 17, 12])
        assert (s["misses"], s["plans"]) == (3, 3), s  # 8, 16 and 17
        got = m(numpy.ones((3, 4), "f4"), w.numpy(), dims={"T": 3} if n > 1 else None)
        assert got.shape == (3, 4) and (got == w.numpy()).all()
    with hocket.load(text.replace("%w: f32[4]", "%w: f32[T, 4]"), buckets={"T": [8]}) as m:
        m.bind("w", torch.full((3, 4), 2.0))  # it fixes T
        assert m(torch.ones(3, 4), dims={"T": 3} if n > 1 else None).tolist() == [[2] * 4] * 3
    double = f"mesh d[{n}]\nfunc f(%x: f32[T]) -> f32[2 * T] {{\n  %y = concat %x, %x, axis=0\n  return %y\n}}\n"
    refuses(hocket.InputError, "T is part of an expression", lambda: hocket.load(double, buckets={"T": [8]}))
    total = f"mesh d[{n}]\nfunc f(%x: f32[T]) -> (f32[T], f32[]) {{\n  %y = relu %x\n  %s = sum %x, axis=0\n  return %y, %s\n}}\n"
    refuses(hocket.InputError, "has the dim N; there are T", lambda: hocket.load(total, buckets={"N": [8]}))
    with hocket.load(total, buckets={"T": [8]}) as m:
        y, total = m(torch.ones(3), dims={"T": 3} if n > 1 else None)
        assert y.tolist() == [1] * 3 and total.item() == 3
    put = (f"mesh d[{n}]\nfunc f(%rows: f32[T, 1], %at: i32[T], %cache: inout f32[6, 1]) -> f32[T, 1] {{\n"
           "  index_copy %rows, %at into %cache\n  %y = add %rows, %rows\n  return %y\n}\n")
    with hocket.load(put, buckets={"T": [4]}) as m:
        cache = torch.zeros(6, 1)
        for at in [0], [1, 2, 5]:
            m(rows=torch.tensor([[7.0], [8.0], [9.0]][:len(at)]), at=torch.tensor(at, dtype=torch.int32), cache=cache,
              dims={"T": len(at)} if n > 1 else None)
        assert cache.flatten().tolist() == [7, 7, 8, 0, 0, 9]
    refuses(hocket.InputError, 'it is a number of bytes from 1 on, or "off"', lambda: hocket.load(text, cache="on"))
    if n > 1:
        split = f"mesh d[{n}]\nfunc f(%x: f32[T/d, 4]) -> f32[T/d, 4] {{\n  %y = add %x, %x\n  return %y\n}}\n"
        with hocket.load(split, buckets={"T": [8]}) as m:
            assert m(torch.ones(4, 4), dims={"T": 8}).tolist() == [[2.0] * 4] * 4
            refuses(hocket.InputError, "split along it over processes", lambda: m(torch.ones(2, 4), dims={"T": 4}))
            refuses(hocket.InputError, "give it in dims", lambda: m(torch.ones(2, 4)))


LAYERS = """dim L = 3
mesh tp[{n}]
func f(%x: f32[T, H], %up: f32[L, 2 * F/tp, H], %down: f32[L, H, F/tp], %head: f32[V/tp, H], %norm: f32[H]) -> (f32[L, 2 * F/tp, H], f32[L, H, F/tp], f32[V/tp, H], f32[T, H]) {{
  %u = copy %up
  %d = copy %down
  %h = copy %head
  %y = mul %x, %norm
  return %u, %d, %h, %y
}}
"""
RULES = {"up": ["layers.*.gate.weight", "layers.*.up.weight"], "down": {"from": "layers.*.down.weight", "transpose": True},
         "head": {"from": "wide", "axis": 1, "lo": 1, "hi": 3, "cast": True}}


def safetensors(path, tensors):
    """Writes a file by the format's description: the length of a header, the header, the bytes."""
    header, data = {}, b""
    for name, t in tensors.items():
        raw = t.numpy().tobytes()
        header[name] = {"dtype": {"float32": "F32", "float64": "F64"}[str(t.dtype)[6:]], "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Sharded:
    """A DTensor, which torch 1 has not: one dimension is split over the processes."""

    def __init__(self, whole, dim, n, r):
        self.whole, self.shape, self.dtype, self.placements = whole, whole.shape, whole.dtype, (Shard(dim),)
        self.to_local, self.full_tensor = lambda: whole.chunk(n, dim)[r].clone(), lambda: whole


class Shard:
    def __init__(self, dim):
        self.dim = dim


def loads():
    """model.load of safetensors and of tensors by name, by rules."""
    r, n, folder = hocket.rank(), hocket.world_size(), pathlib.Path(os.environ["HOCKET_TEST_FOLDER"])
    rng = torch.Generator().manual_seed(4)
    tensors = {f"layers.{i}.{w}.weight": torch.randn(4, 2, generator=rng) for i in range(3) for w in ("gate", "up", "down")}
    tensors.update(wide=torch.randn(4, 6, generator=rng, dtype=torch.float64), norm=torch.randn(2, generator=rng),
                   extra=torch.randn(3, generator=rng))
    layer = {w: torch.stack([tensors[f"layers.{i}.{w}.weight"] for i in range(3)]) for w in ("gate", "up", "down")}
    x = torch.randn(5, 2, generator=rng)
    want = [torch.cat([layer["gate"], layer["up"]], 1).chunk(n, 1)[r], layer["down"].transpose(1, 2).chunk(n, 2)[r],
            tensors["wide"][:, 1:3].float().chunk(n)[r], x * tensors["norm"]]
    if r == 0:
        first = dict(list(tensors.items())[:5])
        safetensors(folder / f"a{n}.safetensors", first)
        safetensors(folder / f"b{n}.safetensors", {k: t for k, t in tensors.items() if k not in first})
        (folder / f"index{n}.safetensors.index.json").write_text(json.dumps({"weight_map": {
            k: f"{'a' if k in first else 'b'}{n}.safetensors" for k in tensors}}))
    hocket.barrier()
    dims = {"T": 5} if n > 1 else None
    # A state_dict as tensor parallelism has it, where each weight is one parameter.
    plain = {"up": torch.cat([layer["gate"], layer["up"]], 1), "down": layer["down"].transpose(1, 2).contiguous(),
             "head": tensors["wide"][:, 1:3].float(), "norm": tensors["norm"]}
    split = {"up": 1, "down": 2, "head": 0}
    arrays = {k: t.numpy() for k, t in tensors.items()}
    for weights, rules in ((folder / f"index{n}.safetensors.index.json", RULES), (tensors, RULES), (arrays, RULES), (plain, None),
                           ({k: Sharded(t, split[k], n, r) if k in split else t for k, t in plain.items()}, None)):
        with hocket.load(LAYERS.format(n=n)) as m:
            unused = m.load(weights, rules=rules, dims=dims)
            assert unused == (["extra"] if rules else []), unused
            got = m(x, dims=dims)
            assert all(torch.equal(a, b) for a, b in zip(got, want)), (type(weights), got, want)
            m.load({"norm": 2 * tensors["norm"]}, dims=dims)  # others stay
            got = m(x, dims=dims)
            assert torch.equal(got[3], 2 * want[3]) and torch.equal(got[0], want[0])
    with hocket.load(LAYERS.format(n=n)) as m:
        path = folder / f"index{n}.safetensors.index.json"
        for source in (path, tensors):
            refuses(hocket.InputError, "extra", lambda: m.load(source, {"head": "nothing"}, dims=dims))
            refuses(hocket.InputError, "layers.0.", lambda: m.load(source, {"up": "layers.*.gates.weight"}, dims=dims))
            refuses(hocket.InputError, "haed", lambda: m.load(source, {"haed": "wide"}, dims=dims))
        refuses(hocket.InputError, "it is a name, a list of names", lambda: m.load(tensors, {"head": {"of": "wide"}}, dims=dims))
        refuses(hocket.InputError, "nothing is bound to", lambda: m.load(tensors, inputs=["x"], dims=dims))
        refuses(hocket.InputError, "its rule must cast it", lambda: m.load(path, {"head": {**RULES["head"], "cast": False}}))
        refuses(hocket.InputError, "no such file", lambda: m.load(folder / "none.safetensors"))


def member_order():
    """Each of four processes waits for the next: rows first on the diagonal, columns first elsewhere."""
    hocket.init()
    r = hocket.rank()
    rows, columns = [hocket.new_group(g, "tp") for g in ([0, 1], [2, 3])], [hocket.new_group(g, "dp") for g in ([0, 2], [1, 3])]
    first, second = rows[r // 2], columns[r % 2]
    if r in (1, 2):
        first, second = second, first
    deadlocks(lambda: (hocket.all_reduce(torch.ones(2), group=first), hocket.all_reduce(torch.ones(2), group=second)), "dp")


def member_torch_order():
    """The same while torch's groups are used for the first time."""
    dist = gloo()
    r = hocket.rank()
    rows, columns = [dist.new_group(g) for g in ([0, 1], [2, 3])], [dist.new_group(g) for g in ([0, 2], [1, 3])]
    first, second = rows[r // 2], columns[r % 2]
    if r in (1, 2):
        first, second = second, first
    deadlocks(lambda: (hocket.all_reduce(torch.ones(2), group=first), hocket.all_reduce(torch.ones(2), group=second)), "torch")


def deadlocks(call, name):
    try:
        call()
    except hocket.DisagreeError as e:
        assert set(e.values) == {0, 1, 2, 3}, e
        for rank in range(4):
            assert f"which waits for rank {rank}" in str(e), e
        assert f"of group {name}" in str(e) and "the order in which groups are called" in str(e), e
    else:
        raise AssertionError("a deadlock, and nothing was raised")


def member_died():
    hocket.init()
    r = hocket.rank()
    groups = [hocket.new_group(g) for g in ([0, 1], [2, 3])]
    hocket.barrier(groups[r // 2])
    if r == 3:
        os._exit(9)
    try:
        while True:
            hocket.barrier(groups[r // 2])
    except hocket.PeerError as e:
        print("PeerError", e.rank, flush=True)
        os._exit(0)


if __name__ == "__main__":
    processes.main(globals(), unittest)
