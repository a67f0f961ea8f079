"""Tests of whose memory hocket reads and writes, and for how long. HOCKET_LIBRARY names the library under test.

HOCKET_TEST_INTERRUPTS is the number of interrupted calls, and HOCKET_TEST_BINDS of calls during which another thread binds.
"""

import array
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import hocket  # noqa: E402

try:
    import numpy
    import memory
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


def alone(code, *args):
    """Runs code in a process of its own, which must end."""
    code = "import sys; sys.path.insert(0, sys.argv[1])\nimport hocket\n" + code
    return subprocess.run([sys.executable, "-c", code, str(ROOT / "python"), *args], capture_output=True, text=True, timeout=100)


@unittest.skipIf(numpy is None, "numpy is not installed")
class Memory(unittest.TestCase):
    def test_interrupted(self):
        count = int(os.environ.get("HOCKET_TEST_INTERRUPTS", "600"))
        early = memory.interrupted(hocket, count, 2)
        self.assertGreater(early, count // 20, "interrupts come when calls are over")

    def test_cancelled(self):
        """An interrupt ends a run that would take long, and no result is written after that."""
        guarded, lib, tensors = memory.Canaries(None), hocket._lib, hocket._tensors
        run, kept = lib.run, tensors.empty

        def empty(like, dtype, shape):
            a = guarded.array(shape)
            return a, tensors.view(a)

        def begun(*args):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            run(*args)

        m = hocket.load("mesh d[2]\nfunc f(%x: f32[4096/d, 4096], %w: f32[4096, 4096]) -> f32[4096/d, 4096] {\n"
                        "  %y = linear %x, %w\n  return %y\n}\n", grace=0.01)
        x = guarded.array((4096, 4096), 0.0)
        lib.run, tensors.empty = begun, empty
        try:
            with memory.Interrupts() as interrupts:
                self.assertIsNone(interrupts.during(lambda: m(x, x), 1, 1000, 0))
        finally:
            lib.run, tensors.empty = run, kept
        self.assertEqual(len(guarded.made), 2)
        self.assertTrue((guarded.made[-1] == memory.CANARY).all())
        guarded.stopped()
        del x, empty
        guarded.check()
        self.assertEqual(len(guarded.alive), 0)

    def test_bound(self):
        def filled(shape, value):
            return numpy.full(shape, value, "f4")
        calls, binds = memory.bound(hocket, int(os.environ.get("HOCKET_TEST_BINDS", "4000")), filled, ranks=2)
        self.assertGreater(binds, calls // 100)

    def test_given_up(self):
        """A bound tensor is kept until it is replaced or the model is closed."""
        m = hocket.load(memory.PROGRAM.format(ranks=2))
        gone = memory.Canaries(None)
        m.bind("w", gone.array((64, 64), 1.0))
        with self.assertRaises(hocket.InputError):
            m(gone.array((3, 63), 1.0))
        gone.check()
        self.assertEqual(len(gone.alive), 1)
        m.bind("w", None)
        self.assertEqual(len(gone.alive), 0)
        m.bind("w", gone.array((64, 64), 1.0))
        gone.check()
        m.close()
        del m
        hocket.load(memory.PROGRAM.format(ranks=2)).close()
        self.assertEqual(len(gone.alive), 0)

    def test_read_only(self):
        """Read-only memory receives no result."""
        literal = b"\x00\x00\x80\x3f" * 8
        fixed = numpy.ones(8, "f4")
        fixed.flags.writeable = False
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "data"
            path.write_bytes(literal)
            mapped = numpy.memmap(path, dtype="f4", mode="r")
            all_fixed = (mapped, fixed, numpy.frombuffer(literal, "f4"), memoryview(literal).cast("f"),
                         numpy.broadcast_to(numpy.float32(1), (8,)))
            for t in all_fixed:
                other = numpy.full(8, 5, "f4")
                for call in (lambda: hocket.all_reduce(t), lambda: hocket.all_reduce(other, out=t), lambda: hocket.broadcast(t),
                             lambda: hocket.all_gather(other, out=t), lambda: hocket.reduce_scatter(other, out=t),
                             lambda: hocket.all_to_all(other, out=t), lambda: hocket.all_gather_v(other, [8], out=t)):
                    with self.assertRaisesRegex(hocket.InputError, "read-only|contiguous"):
                        call()
                self.assertEqual(memoryview(t).tolist(), [1.0] * 8)
            for t in all_fixed[:-1]:  # they can be arguments
                self.assertEqual(memoryview(hocket.all_gather(t)).tolist(), [1.0] * 8)
            del mapped, all_fixed, t, call
        m = hocket.load("func f(%x: f32[2, 4]) -> f32[2, 4] {\n  %y = add %x, %x\n  return %y\n}\n")
        self.assertEqual(m(memoryview(literal).cast("f", (2, 4))).tolist(), [[2.0] * 4] * 2)
        for t in (numpy.ones(8, ">f4"), numpy.ones((8, 8), "f4")[:, 0], numpy.ones((4, 2), "f4").T):
            with self.assertRaisesRegex(hocket.InputError, "byte order|contiguous"):
                hocket.all_reduce(t)

    def test_masked(self):
        m = hocket.load("func f(%x: f32[4]) -> f32[4] {\n  %y = add %x, %x\n  return %y\n}\n")
        t = numpy.ma.array([1, 2, 3, 4], mask=[0, 0, 1, 0], dtype="f4")
        for call in (lambda: m(t), lambda: hocket.all_reduce(t), lambda: hocket.all_gather(numpy.ones(4, "f4"), out=t)):
            with self.assertRaisesRegex(hocket.InputError, "masked"):
                call()
        t.mask = False
        self.assertEqual(m(t).tolist(), [2, 4, 6, 8])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_negative(self):
        t = torch.view_as_real(torch.tensor([1 + 2j, 3 - 4j])).contiguous()
        z = torch.complex(t[:, 0], t[:, 1]).conj().imag.contiguous()
        negative = torch._neg_view(torch.tensor([2.0, -4.0]))
        self.assertTrue(negative.is_neg() and negative.is_contiguous() and not z.is_neg())
        with self.assertRaisesRegex(hocket.InputError, "resolve_neg"):
            hocket.all_reduce(negative)
        with self.assertRaisesRegex(hocket.InputError, "resolve_neg"):
            hocket.all_gather(torch.ones(2), out=negative)
        self.assertEqual(hocket.all_reduce(negative.resolve_neg()).tolist(), [-2, 4])
        with self.assertRaisesRegex(hocket.InputError, "to_dense"):
            hocket.all_reduce(torch.ones(2).to_sparse())

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_dlpack(self):
        """A tensor that DLPack does not mark as writable receives no result."""
        class Other:
            def __init__(self, t):
                self.t = t

            def __dlpack__(self):
                return self.t.__dlpack__()

        t = torch.ones(4)
        self.assertEqual(hocket.all_gather(Other(t)).tolist(), [1] * 4)
        for call in (lambda: hocket.all_reduce(Other(t)), lambda: hocket.all_gather(t, out=Other(t))):
            with self.assertRaisesRegex(hocket.InputError, "DLPack"):
                call()
        t.hocket_readonly = hocket._tensors.foreign(Other(t))  # as of one on a GPU that a program updates
        block = object.__new__(hocket._cuda.Block)
        block.tensor, block.name = t, "n"
        self.assertRaisesRegex(hocket.InputError, "n is a Other, which DLPack", block.written)


class Kept(unittest.TestCase):
    """What is kept, and for how long."""

    def closes(self, do):
        """How many objects of the library were closed while do is called."""
        lib, held, n = hocket._lib, hocket._lib.held, [0]

        def counted(name, *args):
            n[0] += name == "hocket_call_close"
            return held(name, *args)

        lib.held = counted
        try:
            do()
        finally:
            lib.held = held
        return n[0]

    def test_dropped(self):
        """A model that was collected is unloaded."""
        text = "func f(%x: f32[4]) -> f32[4] {\n  %y = add %x, %x\n  return %y\n}\n"
        gc.collect()
        hocket.load(text).close()

        def load():
            for _ in range(20):
                hocket.load(text)
        self.assertGreaterEqual(self.closes(load), 19)

    def test_sizes(self):
        """The programs of collectives are bounded."""
        def reduce():
            for n in range(1, 300):
                self.assertEqual(hocket.all_reduce(memoryview(array.array("i", [n] * n))).tolist(), [n] * n)
        closed = self.closes(reduce)
        self.assertLessEqual(len(hocket._world.state().models), 256)
        self.assertGreaterEqual(closed, 299 - 256 - 1)

    def test_timeout(self):
        for option in ("timeout=-1", "stall_timeout=-2.5", "timeout=float('nan')", "timeout=1e300"):
            p = alone(f"try: hocket.init({option})\nexcept hocket.InputError as e: print('refused', e)\n")
            self.assertRegex(p.stdout, "^refused", p.stderr)

    def test_fork_in_init(self):
        """A process that was forked during init exits."""
        with tempfile.TemporaryDirectory() as folder:
            p = alone("import os, threading, time\n"
                      "def init():\n"
                      "    try: hocket.init(rank=1, size=2, id='nobody', dir=sys.argv[2], timeout=2)\n"
                      "    except hocket.Error: pass\n"
                      "t = threading.Thread(target=init)\n"
                      "t.start()\n"
                      "while not os.listdir(sys.argv[2]): time.sleep(0.01)\n"
                      "pid = os.fork()\n"
                      "if pid == 0:\n"
                      "    try: hocket.init()\n"
                      "    except hocket.UnsupportedError: sys.exit(7)\n"
                      "t.join()\n"
                      "for _ in range(500):\n"
                      "    done, status = os.waitpid(pid, os.WNOHANG)\n"
                      "    if done: print('child', os.waitstatus_to_exitcode(status)); break\n"
                      "    time.sleep(0.01)\n"
                      "else:\n"
                      "    os.kill(pid, 9)\n", folder)
        self.assertEqual((p.returncode, p.stdout), (0, "child 7\n"), p.stderr)


if __name__ == "__main__":
    unittest.main()
