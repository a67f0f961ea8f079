"""Tests of gradients of programs through torch's autograd, on the CPU machine. HOCKET_LIBRARY names what is tested.

Run alone: python3 python/tests/test_training.py. Tests of several processes start this file again as their members.
"""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import hocket  # noqa: E402
import processes  # noqa: E402

try:
    import torch
    import llama
except ImportError:
    torch = llama = None

F64 = """mesh tp[2]
func f(%x: f64[4/tp, 6], %w: f64[8/tp, 6], %v: f64[3, 8/tp], %n: f64[6], %ids: i32[4], %table: f64[5, 6]) -> (f64[4, 3], f64[]) {
  %e = embedding %ids, %table
  %a = rms_norm (add %x, %e), %n
  %h = gelu (linear %a, %w)
  %y = softmax (linear %h, %v)
  %s = mean %h, axis=(0, 1)
  return %y, %s
}
"""


def f64(seed=1):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"x": (4, 6), "w": (8, 6), "v": (3, 8), "n": (6,), "table": (5, 6)}
    return {n: torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for n, s in shapes.items()}


def torchs(x, w, v, n, ids, table):
    """F64 by torch's operations."""
    a = x + table[ids.long()]
    a = a * torch.rsqrt(a.square().mean(-1, keepdim=True) + 1e-6) * n
    h = torch.nn.functional.gelu(a @ w.T)
    return torch.softmax(h @ v.T, -1), h.mean()


IDS = [1, 4, 1, 0]


@unittest.skipIf(torch is None, "torch is not installed")
class Gradients(unittest.TestCase):
    def test_gradcheck(self):
        ids = torch.tensor(IDS, dtype=torch.int32)
        for grad in (True, "auto", "inputs"):
            with hocket.load(F64, grad=grad) as m:
                t = f64()
                self.assertTrue(torch.autograd.gradcheck(lambda x, w, v, n, table: m(x, w, v, n, ids, table), tuple(t.values())))

    def test_equals(self):
        """Gradients are torch's, for those of the parameters that require some."""
        ids = torch.tensor(IDS, dtype=torch.int32)
        with hocket.load(F64, grad=True) as m:
            for wanted in (("x", "w", "v", "n", "table"), ("w",), ("n", "table")):
                ours, theirs = f64(), f64()
                for run, t in ((m, ours), (torchs, theirs)):
                    for n in t:
                        t[n].requires_grad_(n in wanted)
                    y, s = run(ids=ids, **t)
                    (3 * s + (y * torch.arange(3.0).double()).square().sum()).backward()
                for n in theirs:
                    self.assertEqual(ours[n].grad is None, n not in wanted)
                    if n in wanted:
                        self.assertTrue(torch.allclose(ours[n].grad, theirs[n].grad, rtol=1e-10, atol=1e-13), n)

    def test_second_derivative(self):
        """A gradient penalty is refused, which a program's gradient would leave out."""
        ids = torch.tensor(IDS, dtype=torch.int32)
        with hocket.load(F64, grad=True) as m:
            t = f64()
            y, s = m(ids=ids, **t)
            with self.assertRaisesRegex(hocket.UnsupportedError, "without create_graph=True"):
                torch.autograd.grad(y.sum() + s, t["x"], create_graph=True)
            torch.autograd.grad(m(ids=ids, **t)[1], t["x"])

    def test_accumulates(self):
        """Two calls before one backward, and one whose graph is gone through twice: what a call keeps is its own."""
        ids = torch.tensor(IDS, dtype=torch.int32)
        with hocket.load(F64, grad=True) as m:
            ours, theirs = f64(), f64()
            for run, t in ((m, ours), (torchs, theirs)):
                first = run(ids=ids, **t)[0]
                second = run(ids=ids, **{**t, "x": 2 * t["x"]})[0]
                first.square().sum().backward(retain_graph=True)
                second.square().sum().backward()
                first.sum(0)[1].backward()
            for n in theirs:
                self.assertTrue(torch.allclose(ours[n].grad, theirs[n].grad, rtol=1e-10, atol=1e-13), n)

    def test_bound(self):
        """Gradients of bound tensors are in their .grad; what is computed with them is what they are at the call."""
        ids = torch.tensor(IDS, dtype=torch.int32)
        t = f64()
        leaves = {n: t[n] for n in ("w", "n", "table")}
        with hocket.load(F64, grad=True, weights={**leaves, "v": t["v"].detach()}) as m:
            for step in range(3):
                for x in leaves.values():
                    x.grad = None
                y, _ = m(t["x"], ids=ids)
                want, _ = torchs(**t, ids=ids)
                self.assertTrue(torch.allclose(y, want, rtol=1e-10))
                grads = torch.autograd.grad(want.square().sum(), list(leaves.values()))
                y.square().sum().backward()
                for (n, x), g in zip(leaves.items(), grads):
                    self.assertTrue(torch.allclose(x.grad, g, rtol=1e-10, atol=1e-13), n)
                with torch.no_grad():
                    for x in leaves.values():
                        x -= 0.1 * x.grad
                    self.assertTrue(torch.allclose(m(t["x"], ids=ids)[0], torchs(**t, ids=ids)[0], rtol=1e-10))
            self.assertIsNone(t["v"].grad)
            m.bind("w", None)
            with self.assertRaisesRegex(hocket.InputError, "w"):
                m(t["x"], ids=ids)

    def test_refused(self):
        ids = torch.tensor(IDS, dtype=torch.int32)
        t = f64()
        with hocket.load(F64) as m, self.assertRaisesRegex(hocket.UnsupportedError, "load it with grad=True"):
            m(ids=ids, **t)
        with self.assertRaisesRegex(hocket.InputError, "grad is 'most'"):
            hocket.load(F64, grad="most")
        with hocket.load(F64, grad=True, gather=True) as m, self.assertRaisesRegex(hocket.InputError, "gather=True"):
            m(ids=ids, **t)
        state = "func f(%s: inout f32[4], %x: f32[4]) -> f32[4] {\n  %y = exp %x\n  copy %y into %s\n  return %y\n}\n"
        x = torch.ones(4, requires_grad=True)
        with hocket.load(state, grad=True) as m, self.assertRaisesRegex(hocket.ProgramError, "%s is inout"):
            m(torch.zeros(4), x)
        with hocket.load("func f(%x: f32[4]) -> f32[4] {\n  %b = alloc f32[4]\n  exp %x into %b\n  sin %b into %b\n  return %b\n}\n",
                         grad=True) as m, self.assertRaisesRegex(hocket.ProgramError, "3:.*overwritten"):
            m(x)
        with hocket.load(F64, grad=True) as m:
            y, _ = m(ids=ids, **t)
            with torch.no_grad():
                t["w"] += 1
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                y.sum().backward()

    def test_written(self):
        """Autograd is notified of state that calls update, given or bound."""
        with hocket.load("func f(%s: inout f32[2], %x: f32[2]) {\n  add %s, %x into %s\n}\n") as m:
            w = torch.ones(2, requires_grad=True)
            for bind in (False, True):
                s = torch.ones(2)
                y = (w * s).sum()  # saves s
                if bind:
                    m.bind("s", s)
                m(x=torch.ones(2), **({} if bind else {"s": s}))
                self.assertEqual(s.tolist(), [2, 2])
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    y.backward()
            with torch.inference_mode():
                m.bind("s", torch.ones(2))
                m(x=torch.ones(2))

    def test_numpy(self):
        """Arguments that are not torch's have no gradients, and can be among those that have."""
        ids = torch.tensor(IDS, dtype=torch.int32)
        ours, theirs = f64(), f64()
        with hocket.load(F64, grad=True) as m:
            args = {**ours, "ids": ids.numpy(), "v": ours["v"].detach().numpy()}
            m(**args)[0].square().sum().backward()
            torchs(ids=ids, **theirs)[0].square().sum().backward()
            self.assertTrue(torch.allclose(ours["w"].grad, theirs["w"].grad, rtol=1e-10, atol=1e-13))

    def test_buffers(self):
        """A program that computes in buffers: the backward program computes what is in them again."""
        src = """mesh tp[2]
func f(%x: f64[4/tp, 4], %w: f64[4, 4]) -> f64[4/tp, 4] {
  %b = alloc f64[4/tp, 4]
  linear %x, %w into %b
  %y: f64[4/tp, 4] = claim %b
  %z = mul %y, %y
  return %z
}
"""
        rng = torch.Generator().manual_seed(4)
        x, w = (torch.randn(4, 4, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2))
        with hocket.load(src, grad=True) as m:
            self.assertTrue(torch.autograd.gradcheck(m, (x, w)))


@unittest.skipIf(torch is None, "torch is not installed")
class Training(unittest.TestCase):
    """Fifty steps of a llama of four layers: its losses are torch's, up to what rounding does to torch's."""

    def test_one_process(self):
        w = llama.weights()
        with hocket.load(llama.program(2), grad=True, weights=w) as m:
            check(self, "SGD", llama.train(m, w, llama.OPTIMIZERS["SGD"](w)))

    def test_processes(self):
        """Two processes of a rank each, which have blocks of the weights."""
        processes.right(self, __file__, 2, "training")


def check(test, name, ours, **where):
    theirs, exact = llama.theirs(name, **where), llama.theirs(name, torch.float64)
    far = lambda a: max(abs(x - y) for x, y in zip(a, exact))
    test.assertLess(theirs[-1], 0.8 * theirs[0])
    test.assertLess(far(ours), 4 * far(theirs) + 1e-6, f"{name}: {ours} and {theirs}")
    return f"{name}: losses of hocket are up to {far(ours):.2g} from those in f64, and torch's {far(theirs):.2g}"


def trained(name, keep, **where):
    """The losses of a process that has one rank, and blocks of the weights."""
    r, n = hocket.rank(), hocket.world_size()
    w = {k: t.detach().chunk(n, llama.SPLIT[k])[r].clone(memory_format=torch.contiguous_format).requires_grad_()
         if k in llama.SPLIT else t for k, t in llama.weights(**where).items()}
    dtype = {torch.float32: "f32", torch.bfloat16: "bf16"}[w["head"].dtype]
    with hocket.load(llama.program(n, dtype), grad=keep, weights=w) as m:
        return llama.train(m, w, llama.OPTIMIZERS[name](w))


def member_training():
    hocket.init()
    torch.set_num_threads(1)
    check(unittest.TestCase(), "AdamW", trained("AdamW", "auto"))


def cuda():
    """The same on GPUs: hocket launch -n 2 -- python3 python/tests/test_training.py cuda"""
    import os

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    hocket.init("cuda")
    for dtype in (torch.float32, torch.bfloat16):
        for name in llama.OPTIMIZERS:
            where = {"dtype": dtype, "device": "cuda"}
            for keep in (True, "auto"):
                print(hocket.rank(), dtype, keep, check(unittest.TestCase(), name, trained(name, keep, **where), **where), flush=True)


if __name__ == "__main__" and sys.argv[1:2] == ["cuda"]:
    cuda()
elif __name__ == "__main__":
    processes.main(globals(), unittest)
