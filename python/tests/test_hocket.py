"""Tests of the Python package on the CPU machine. HOCKET_LIBRARY and HOCKET_COMMAND name what is tested.

Run alone: python3 -m unittest. Tests of several processes start this file again as their members.
"""

import array
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import hocket  # noqa: E402
import processes  # noqa: E402
import steps_want  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

LINEAR = """dim T
mesh tp[2]
func f(%x: f32[T, 4], %w: f32[6/tp, 4]) -> (f32[T, 6], f32[T, 4]) {
  %y = linear %x, %w
  %z = add %x, %x
  return %y, %z
}
"""


STATE = """dim T = 2
mesh tp[2]
func f(%x: f32[T, 4], %w: f32[4/tp, 4], %s: inout f32[4/tp], %n: inout i32[1], %one: i32[1]) -> f32[T, 4/tp] {
  %y = linear %x, %w
  %t = sum %y, axis=0
  %u = add %s, %t
  copy %u into %s
  %m = add %n, %one
  copy %m into %n
  return %y
}
"""


LOOKUP = """dim T = 4
mesh tp[2]
func f(%ids: i32[T/tp], %at: i64[1], %e: f32[1000, 2], %s: inout f32[8, 2], %r: f32[1, 2]) -> f32[T/tp, 2] {
  %y = embedding %ids, %e
  index_copy %r, %at into %s
  return %y
}
"""


def launch(n, what, **env):
    return processes.launch(__file__, n, what, **env)



class Alone(unittest.TestCase):
    """One process runs all ranks."""

    def test_buffers(self):
        m = hocket.load(LINEAR, dims={"T": 2})
        x = memoryview(array.array("f", range(8))).cast("B").cast("f", (2, 4))
        w = memoryview(array.array("f", [i % 5 - 2 for i in range(24)])).cast("B").cast("f", (6, 4))
        y, z = m(x, w=w)
        want = [[sum(x[t, k] * w[n, k] for k in range(4)) for n in range(6)] for t in range(2)]
        self.assertEqual(y.tolist(), want)
        self.assertEqual(z.tolist(), [[2.0 * x[t, k] for k in range(4)] for t in range(2)])

    def test_state(self):
        """Inout parameters that are bound or given are updated in place, by runs that end well."""
        x, w = floats([1.0] * 12, 3, 4), floats([float(i % 5) for i in range(16)], 4, 4)
        s, n, one = floats([0.0] * 4), ints([5]), ints([1])
        sums = [3 * sum(row) for row in w.tolist()]
        with hocket.load(STATE) as m:
            for key, t in (("w", w), ("s", s), ("one", one)):
                m.bind(key, t)
            for i in range(1, 4):
                y, given = m(x, n=n)
                self.assertEqual(y.tolist(), [[sum(row) for row in w.tolist()]] * 3)
                self.assertIs(given, n)
                self.assertEqual((s.tolist(), n.tolist()), ([i * v for v in sums], [5 + i]))
            m.bind("n", n)
            w[0, 0] = 100.0  # what is bound is read as it is then, as on GPUs
            y = m(x)
            self.assertEqual((y[0, 0], n.tolist(), s[0]), (106.0, [9], 3 * sums[0] + 3 * 106.0))
            before = s.tolist()
            self.assertRaises(hocket.InputError, m, x, one=ints([1, 2]))
            self.assertRaises(hocket.InputError, m, x, dims={"T": 2})
            self.assertEqual((s.tolist(), n.tolist()), (before, [9]))
            with self.assertRaisesRegex(hocket.InputError, "updates n in place, which is read-only"):
                m(x, n=memoryview(bytes(4)).cast("i"))
            self.assertRaises(hocket.InputError, m.bind, "q", s)
            wanted, threads = [v + 40 * (t or 1) for v, t in zip(n.tolist(), [1])], []
            for _ in range(4):
                threads.append(threading.Thread(target=lambda: [m(x) for _ in range(10)]))
                threads[-1].start()
            for t in threads:
                t.join()
            self.assertEqual(n.tolist(), wanted)

    def test_older_library(self):
        """The version of the library is reported, also if it lacks a function."""
        from hocket import _lib

        with unittest.mock.patch.object(_lib, "ABI", 99), \
                unittest.mock.patch.dict(_lib._signatures, {"hocket_of_version_99": (None, [])}), \
                self.assertRaisesRegex(hocket.UnsupportedError, "of the interface, and this package is for version 99"):
            _lib._load.__wrapped__()

    def test_version(self):
        """A checkout's package has the version of the library that it loads, which is the command's, too."""
        versions = hocket.info()["versions"]
        self.assertIsNone(versions["package"])
        self.assertRegex(hocket.__version__, r"^\d+\.\d+\.\d+$")
        for part in ("library", "command"):
            self.assertEqual(versions[part].partition("+")[0], hocket.__version__)
        with self.assertRaisesRegex(AttributeError, "module 'hocket' has no attribute '__versoin__'"):
            hocket.__versoin__

    def test_bad_id(self):
        """A wrong id or position is an InputError that says which, and changes nothing."""
        e, r, s = floats([float(i) for i in range(2000)], 1000, 2), floats([5.0, 6.0], 1, 2), floats([0.0] * 16, 8, 2)
        with hocket.load(LOOKUP) as m:
            for key, t in (("e", e), ("s", s), ("r", r)):
                m.bind(key, t)
            for i, (ids, at, want) in enumerate((([1, 2, 3, 5000], 0, ("ids", 1, (3,), 5000, 0, 1000)),
                                                 ([1, 2, 3, 999], 8, ("at", 0, (0,), 8, -1, 8)))):
                y = m(ints([1, 2, 3, 999]), longs([i]))
                self.assertEqual(y[3, 1], 1999.0)
                with self.assertRaises(hocket.InputError) as caught:
                    m(ints(ids), longs([at]))
                x = caught.exception
                self.assertEqual((x.parameter, x.rank, x.index, x.value, x.low, x.high, x.begun), (*want, False), x)
                self.assertEqual(s.tolist(), [[5.0, 6.0]] * (i + 1) + [[0.0, 0.0]] * (7 - i))

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        m = hocket.load(LINEAR)
        for rows in (1, 3, 64):
            x = numpy.arange(rows * 4, dtype="f4").reshape(rows, 4) % 7
            w = numpy.arange(24, dtype="f4").reshape(6, 4) % 3
            y, z = m(w=w, x=x)
            numpy.testing.assert_array_equal(y, x @ w.T)
            numpy.testing.assert_array_equal(z, 2 * x)
        m.bind("w", w)
        numpy.testing.assert_array_equal(m(x)[0], x @ w.T)
        for bad, kind in ((x.T, "contiguous"), (x.astype("c8"), "dtype"), (x.astype(">f4"), "order"), ("x", "not a tensor")):
            with self.assertRaisesRegex(hocket.InputError, kind):
                m(bad)
        with self.assertRaises(hocket.InputError):
            m(x[:, :3].copy())
        with self.assertRaisesRegex(hocket.InputError, "no parameter q"):
            m(x, q=x)
        with self.assertRaisesRegex(hocket.InputError, "by position"):
            m(x, x)
        m.bind("w", None)
        with self.assertRaisesRegex(hocket.InputError, "w is missing"):
            m(x)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_first(self):
        """The README's example."""
        out = subprocess.run([sys.executable, "examples/first/first.py"], cwd=ROOT, text=True, capture_output=True,
                             env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=300)
        self.assertEqual((out.returncode, out.stdout), (0, "(256, 128) torch.bfloat16\n"), out.stderr)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torch(self):
        m = hocket.load(LINEAR.replace("f32", "bf16"))
        x = (torch.arange(12).reshape(3, 4) % 5).to(torch.bfloat16)
        w = (torch.arange(24).reshape(6, 4) % 3).to(torch.bfloat16)
        y, z = m(x, w)
        self.assertTrue(torch.equal(y, (x.float() @ w.float().T).to(torch.bfloat16)))
        self.assertTrue(torch.equal(z, x + x))
        with self.assertRaisesRegex(hocket.InputError, "contiguous"):
            m(x, w.T.contiguous().T)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_dlpack(self):
        class Other:
            """A tensor of a library that hocket does not know."""

            def __init__(self, t):
                self.t = t

            def __dlpack__(self, stream=None):
                return self.t.__dlpack__()

            def __dlpack_device__(self):
                return self.t.__dlpack_device__()

        m = hocket.load(LINEAR)
        x, w = torch.arange(8.0).reshape(2, 4), torch.arange(24.0).reshape(6, 4)
        y, _ = m(Other(x), Other(w))
        self.assertEqual(y.tolist(), (x @ w.T).tolist())
        with self.assertRaisesRegex(hocket.InputError, "not dense"):
            m(Other(x.T), Other(w))

    def test_errors(self):
        with self.assertRaisesRegex(hocket.ProgramError, r"program.hkt:2"):
            hocket.load("func f(%x: f32[4]) -> f32[4] {\n  return %nothing\n}\n")
        with self.assertRaises(FileNotFoundError):
            hocket.load("none.hkt")
        with self.assertRaisesRegex(hocket.InputError, r'unknown option "speed"; the options are .*strategy'):
            hocket.load(LINEAR, speed="more")
        with self.assertRaisesRegex(hocket.InputError, "option dims.* is a string, but must be a whole number"):
            hocket.load(LINEAR, dims={"T": "2"})
        with self.assertRaisesRegex(hocket.InputError, 'unknown strategy "fast"; the strategies are sequential'):
            hocket.load(LINEAR, strategy="fast")
        with self.assertRaisesRegex(hocket.InputError, "'cpu' is open already"):
            hocket.init("cuda")
        p = subprocess.run([sys.executable, "-c", "import hocket; hocket.init('gpu')"], text=True, capture_output=True, check=False,
                           env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=300)
        self.assertIn("InputError: there is no machine 'gpu'; the machines are cpu, cuda", p.stderr)
        hocket.init("cpu")
        hocket.synchronize()  # nothing to wait for
        with self.assertRaisesRegex(hocket.ProgramError, r"^program.hkt:\d"):
            hocket.check(LINEAR.replace("return %y, %z", "return %nothing"))
        with self.assertRaisesRegex(hocket.InputError, "dict: load takes a path"):
            hocket.load({})
        m = hocket.load(LINEAR)
        m.close()
        with self.assertRaises(hocket.ClosedError):
            m.layouts({"T": 2})
        if torch and not hasattr(torch.library, "custom_op"):
            with self.assertRaisesRegex(hocket.UnsupportedError, "needs torch 2.4 or newer, and this is torch 1"):
                importlib.import_module("hocket.ops")

    def test_commands(self):
        self.assertEqual(hocket.check(ROOT / "examples" / "mlp.hkt")["proof"]["verdict"], "proved")
        race = """mesh tp[2]
func f(%x: f32[4/tp]) -> f32[4] {
  %s = stream
  %y = alloc f32[4]
  on %s { all_gather %x into %y, over=tp, axis=0 }
  return %y
}
"""
        with self.assertRaisesRegex(hocket.ProgramError, "program.hkt:[56]"):
            hocket.check(race)
        self.assertIn("pairs", str(hocket.explain(ROOT / "examples" / "mlp.hkt")))

    def test_collectives(self):
        """A world of one."""
        t = floats([1.0, 2.0, 3.0, 4.0], 2, 2)
        self.assertEqual(hocket.all_reduce(t).tolist(), [[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(hocket.all_gather(t).tolist(), [[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(hocket.all_gather_v(t, [2]).tolist(), [[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(hocket.reduce_scatter(t).tolist(), [[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(hocket.all_to_all(t).tolist(), [[1.0, 2.0], [3.0, 4.0]])
        hocket.broadcast(t)
        hocket.barrier()
        with self.assertRaisesRegex(hocket.InputError, "has not counts"):
            hocket.all_gather_v(t, [1])

    def test_threads(self):
        m = hocket.load(LINEAR)
        w = memoryview(array.array("f", [1] * 24)).cast("B").cast("f", (6, 4))
        wrong = []

        def work(v):
            x = memoryview(array.array("f", [v] * 8)).cast("B").cast("f", (2, 4))
            for _ in range(50):
                if m(x, w)[0].tolist() != [[4.0 * v] * 6] * 2:
                    wrong.append(v)

        threads = [threading.Thread(target=work, args=(v,)) for v in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_fork(self):
        hocket.init()
        pid = os.fork()
        if pid == 0:
            try:
                hocket.load(LINEAR)
            except hocket.UnsupportedError:
                os._exit(7)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
        hocket.load(LINEAR).close()

    def test_interrupt(self):
        code = ("import sys, os, signal, threading; sys.path.insert(0, sys.argv[1])\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what runs in the background inherits none
                "import hocket, array\n"
                "m = hocket.load(open(sys.argv[2]).read())\n"
                "x = memoryview(array.array('f', [1]) * 2**22)\n"
                "threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
                "print('running', flush=True)\n"
                "while True: m(x)\n")
        program = pathlib.Path(self.id() + ".hkt")
        program.write_text("mesh d[2]\nfunc f(%x: f32[4194304/d]) -> f32[4194304] { return %x }\n", encoding="utf-8")
        self.addCleanup(program.unlink)
        p = subprocess.run([sys.executable, "-c", code, str(ROOT / "python"), str(program)], capture_output=True, text=True, timeout=300)
        self.assertEqual(p.stderr.strip().splitlines()[-1:], ["KeyboardInterrupt"], p.stderr)
        self.assertNotIn("fatal", p.stderr)
        self.assertIn(p.returncode, (1, 130, -signal.SIGINT))


    def test_lend(self):
        """It does nothing on the CPU machine. A closed model is unloaded when the results that it lent are gone."""
        from hocket import _cuda, _model
        x, w = (memoryview(array.array("f", [1] * n)).cast("B").cast("f", s) for n, s in ((8, (2, 4)), (24, (6, 4))))
        with hocket.load(LINEAR, lend=True) as m:
            self.assertEqual(m(x, w)[0].tolist(), [[4.0] * 6] * 2)
        closed, held = [], _model._lib.held

        def counted(name, *args):
            if name == "hocket_call_close":
                closed.append(args[0])
            return held(name, *args)

        _model._lib.held = counted
        try:
            m = hocket.load(LINEAR, lend=True)
            lent = _cuda._Lent(4096, 4)
            m._lent.add(lent)
            m.close()
            self.assertRaises(hocket.Error, m, x, w)
            self.assertEqual(closed, [])
            del lent
            hocket.load(LINEAR).close()
            self.assertEqual(closed[0], m._open)
            self.assertEqual(len(closed), 2)
        finally:
            _model._lib.held = held

    def test_usual_all_reduce(self):
        """The usual all_reduce on a GPU goes to the library at once, and another one does not."""
        from hocket import _cuda, _lib, _world

        class OnGPU:
            is_cuda, requires_grad, dtype = True, False, "bf16"

            def __init__(self, at, n=6, device=1, dense=True, inference=False, **other):
                self.data_ptr, self.numel, self.get_device = lambda: at, lambda: n, lambda: device
                self.is_contiguous, self.is_inference, self.is_neg = lambda: dense, lambda: inference, lambda: False
                self.__dict__.update(other)

        calls, bumped, places = [], [], []
        g = object.__new__(_cuda.Group)
        g.number, g.device, g.dtypes, g.stream, g.bump, g.site = 7, 1, {"bf16": 3}, lambda: 5, bumped.append, None
        g.call, g._calling = lambda *args: calls.append(args), lambda name, place: places.append(place.decode())
        s, t, other = types.SimpleNamespace(group=g), OnGPU(64), OnGPU(128)

        def all_reduce(*args):  # as hocket.all_reduce, whose caller's line is that of the call
            return _cuda.reduced(*args)

        for _ in range(2):
            self.assertTrue(all_reduce(s, t, "max", t))
        self.assertTrue(all_reduce(s, t, "sum", other))
        self.assertEqual(calls, [(7, 0, 2, 3, 0, 6, 5, 64, 64)] * 2 + [(7, 0, 0, 3, 0, 6, 5, 64, 128)])
        self.assertEqual(bumped, [t, t, other])
        self.assertEqual([p.rpartition(":")[0] for p in places], [_world.shown(__file__)] * 2)  # once for each line
        for bad in (OnGPU(64, requires_grad=True), OnGPU(64, dense=False), OnGPU(64, device=0), OnGPU(64, is_cuda=False),
                    OnGPU(64, dtype="u8"), OnGPU(64, inference=True), [1.0]):
            self.assertFalse(all_reduce(s, bad, "sum", bad))
            self.assertFalse(all_reduce(s, t, "sum", bad))
        self.assertFalse(all_reduce(s, t, "sum", OnGPU(64, 7)))
        self.assertFalse(all_reduce(s, t, "product", t))
        self.assertFalse(all_reduce(s, t, 0, t))
        self.assertFalse(all_reduce(types.SimpleNamespace(group=None), t, "sum", t))
        self.assertFalse(all_reduce(None, t, "sum", t))
        with unittest.mock.patch.object(_world, "known", lambda group: s):
            self.assertRaisesRegex(hocket.UnsupportedError, "async_op", hocket.all_reduce, t, async_op=True)
        self.assertEqual(len(calls), 3)

        g.call = _lib.lib().do  # the library has no such collectives: the error is raised, and autograd is not notified
        self.assertRaisesRegex(hocket.Error, "handle 7: it names no object", all_reduce, s, t, "sum", t)
        self.assertRaisesRegex(hocket.Error, "handle 7: it names no object", g.do, 0, 0, 3, 0, 6, 64, 64)
        self.assertEqual(len(bumped), 3)

    def test_fast_function(self):
        """The library's function with Python's own calling convention checks its arguments, and several threads can call it."""
        from hocket import _lib
        do = _lib.lib().do
        for few in ((), (7,) * 8, (7,) * 10):
            self.assertIn("9 arguments", _lib.taken(do(*few)))
        for wrong in ("7", None, 7.0):
            self.assertRaises(TypeError, do, 7, 0, 0, 3, 0, 6, 5, wrong, 64)
        for other in (-1, 1 << 70):  # cut to a word, as by ctypes
            self.assertIn("names no object", _lib.taken(do(other, 0, 0, 3, 0, 6, 5, 64, 64)))
        done = []
        threads = [threading.Thread(target=lambda: done.extend(
            "names no object" in _lib.taken(do(7, 0, 0, 3, 0, 6, 5, 64, 64)) for _ in range(200))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(done, [True] * 800)

    def test_lent_results(self):
        """What a call on a GPU is given and returns, by a library that is not there."""
        from hocket import _cuda, _model
        lib, given = _model._lib, []

        class OnGPU:
            """Stands in for a tensor of torch's."""

            is_cuda, device, dtype, shape = True, "cuda:0", "torch.float32", (2, 4)
            is_contiguous, is_neg, data_ptr = lambda self: True, lambda self: False, lambda self: 64

        class Block(_cuda.Block):
            capturing = staticmethod(lambda: False)

        def lent(address, dtype, shape, device):
            memory = _cuda._Lent(address, 4)
            return (address, dtype, shape, memory), memory

        new, x, w = OnGPU(), OnGPU(), OnGPU()
        stream = types.SimpleNamespace(cuda_stream=0)
        torch_ = types.SimpleNamespace(Tensor=OnGPU, float32="f32", empty=lambda shape, dtype, device: new,
                                       cuda=types.SimpleNamespace(current_stream=lambda device: stream))

        def call(name, *args):
            if name == "hocket_form":
                given.append([t.name for t in args[3][:args[4]]])
                return types.SimpleNamespace(value=3)
            if name == "hocket_enqueue":
                at = args[2]
                given.append(at[:])
                at[2] = 0x7000
            return 1

        m = hocket.load(LINEAR, dims={"T": 2}, lend=True)
        c = hocket.load(LINEAR, dims={"T": 2})
        m._dims_of = c._dims_of = lambda given: {}
        m.layouts(None)
        c.layouts(None)
        kept = lib.call, lib.call_text, lib.held, _cuda.Block, _cuda.rest, _cuda.lent, _cuda.is_cuda
        real = sys.modules.get("torch")
        sys.modules["torch"] = torch_
        lib.call, lib.call_text, lib.held = call, lambda *_: '["y"]', lambda *_: None
        _cuda.Block, _cuda.rest, _cuda.lent, _cuda.is_cuda = Block, lambda: None, lent, lambda t: isinstance(t, OnGPU)
        try:
            y, z = m._enqueue({"x": x, "w": w}, {}, None, 0)
            self.assertEqual((y[:3], z), ((0x7000, "f32", (2, 6)), new))
            self.assertEqual(given, [[b"y", b"z"], [64, 64, 0, 64]])
            self.assertEqual(len(m._lent), 1)
            m.close()
            self.assertEqual(m._world.closing, [m])
            Block.capturing = staticmethod(lambda: True)  # a captured run keeps its model, and what is bound
            c._bound["w"] = w = Block(w, "w")
            c._enqueue({"x": x}, {"w": w}, None, 0)
            self.assertEqual((c._captured, c._world.captured), ({w}, {c}))
            c._bound["w"] = None
            lib.held = kept[2]
            c.close()
            self.assertEqual((c._captured, c._world.captured), (set(), set()))
            Block.capturing = staticmethod(lambda: False)
            del y
            lib.call, lib.held = kept[0], kept[2]
            hocket.load(LINEAR).close()
            self.assertEqual(m._world.closing, [])
        finally:
            lib.call, lib.call_text, lib.held, _cuda.Block, _cuda.rest, _cuda.lent, _cuda.is_cuda = kept
            if real is None:
                del sys.modules["torch"]
            else:
                sys.modules["torch"] = real

    def test_sites(self):
        """A collective on a GPU names the line that calls it, once while the line is the same."""
        from hocket import _cuda, _lib, _world

        g, named = _cuda.Group.__new__(_cuda.Group), []
        g.site, g._calling = None, lambda call, place: named.append(place.decode())
        line = sys._getframe().f_lineno
        for _ in range(3):
            g.at(sys._getframe())
        g.at(sys._getframe())
        self.assertEqual(named, [f"{_world.shown(__file__)}:{line + 2}", f"{_world.shown(__file__)}:{line + 3}"])


class Several(unittest.TestCase):
    """Processes, one rank each."""

    def right(self, n, what, **env):
        processes.right(self, __file__, n, what, **env)

    def launched(self, *argv):
        """Two processes of a Python program, started by hocket launch, to their end."""
        folder, name = os.path.split(sys.executable)
        return subprocess.run([os.environ.get("HOCKET_COMMAND", "hocket"), "launch", "-n", "2", "--", name, *map(str, argv)],
                              capture_output=True, text=True, timeout=300, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python"),
                                   "PATH": folder + os.pathsep + os.environ["PATH"]})

    def test_collectives(self):
        for n in (2, 3):
            self.right(n, "collectives")

    def test_programs(self):
        self.right(2, "programs")

    @unittest.skipUnless(torch, "no torch")
    def test_steps(self):
        """The script that test_cuda.py runs on GPUs."""
        p = self.launched(ROOT / "python/tests/steps.py")       # the second's output is on stderr
        lines = sorted(line.removeprefix("[1] ") for line in (p.stdout + p.stderr).splitlines())
        self.assertEqual((p.returncode, lines), (0, steps_want.lines()), p.stderr)

    @unittest.skipUnless(torch, "no torch")
    def test_reduce(self):
        """The commands of docs/start-all-reduce.md print what the page shows."""
        shown = (ROOT / "docs/start-all-reduce.md").read_text(encoding="utf-8").splitlines()
        for arguments, code in ((), 0), (("1025",), 1):
            p = self.launched(ROOT / "examples/first/reduce.py", *arguments)
            lines = [line.replace(f"{ROOT}/", "") for line in (p.stdout + p.stderr).splitlines()
                     if not re.match(r"(\[1\] )?(Traceback| )", line)]
            self.assertEqual((p.returncode, len(lines)), (code, 2 + code), p.stdout + p.stderr)
            for line in lines:
                self.assertIn(line, shown)

    @unittest.skipUnless(torch, "no torch")
    def test_ddp(self):
        """The hook in docs/pytorch.md: ranks have equal weights, which converge to the solution."""
        p = self.launched(ROOT / "examples/first/ddp.py")
        for rank, prefix in ((0, ""), (1, "[1] ")):
            self.assertIn(f"{prefix}rank {rank}: weights differ by 0 from the mean, by 0.0 from 1", (p.stdout + p.stderr).splitlines())
        self.assertEqual(p.returncode, 0)

    def test_state(self):
        self.right(2, "state")

    def test_bad_id(self):
        self.right(2, "bad_id")

    def test_other_ids(self):
        self.right(2, "other_ids", HOCKET_STALL_TIMEOUT="20s")

    def test_submesh(self):
        self.right(2, "submesh")

    @unittest.skipUnless(torch, "no torch")
    def test_ddlb(self):
        self.right(2, "ddlb")

    def test_diverging(self):
        """What diverges between ranks in others' libraries raises here, on all of them."""
        self.right(2, "diverging", HOCKET_STALL_TIMEOUT="20s")

    def test_killed(self):
        out = launch(3, "killed")
        self.assertEqual(out[1][0], -signal.SIGKILL)
        for r in (0, 2):
            self.assertEqual(out[r][0], 0, out[r][1])
            self.assertIn("PeerError 1", out[r][1])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_beside_torch(self):
        """Collectives of torch's gloo and ours in turns, DataLoader workers by fork and by spawn, allocations between."""
        self.right(2, "beside_torch", MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port())


# A fault in rank 1 of 3: patterns of what ranks 0 and 2 print, what rank 1 prints ("" where it prints nothing), and what
# hocket launch prints last.
_ONE = r"rank 1 \(pid \d+ on \S+\)"
_AT = r"at \S*test_hocket\.py:\d+"
_ODD = rf"DisagreeError: .*ranks disagree on the next call: {_ONE} called CALL {_AT}, the others \(ranks 0, 2\) called all_reduce\(f32\[8\], sum\) {_AT}$"
_NEXT = rf"all_reduce\(f32\[8\], sum\) {_AT}"
_LAST = rf"all_reduce\(f32\[8\], sum\) {_AT}"
_RAISED = rf"PeerError: .*{_ONE}: left the world before {_NEXT}: ERROR \(\S*test_hocket\.py:\d+\)$"
_ENDED = rf"PeerError: .*{_ONE}: left the world before {_NEXT}: its program ended; its last call was {_LAST}$"
_MESH = (r"InputError: wrong inputs: the mesh of program.hkt has size 4, and there are 3 processes, which have one rank each: start 4 processes, "
         r"as by hocket launch -n 4$")
_BLAMED = "the failure began in process 1 of 3: "


def _odd(call):
    text = _ODD.replace("CALL", call)
    return text, text, rf"{_BLAMED}it differs from the others on the next call: {call} {_AT}"


FAULTS = {
    "dtype": _odd(r"all_reduce\(f64\[8\], sum\)"),
    "shape": _odd(r"all_reduce\(f32\[9\], sum\)"),
    "op": _odd(r"all_reduce\(f32\[8\], max\)"),
    "collective": _odd(r"all_gather\(f32\[8\]\)"),
    "program": _odd(r"doubles\(x f32\[8\]\)"),
    "skip": (_ENDED, "^1 right$", f"{_BLAMED}left the world before {_NEXT}"),
    "input": (_RAISED.replace("ERROR", ".*InputError: out is f32\\[3\\], and the result is f32\\[8\\]"),
              r"InputError: out is f32\[3\], and the result is f32\[8\]$", rf"process 1 of 3 failed first, with exit code 1$|{_BLAMED}left the world"),
    "exception": (_RAISED.replace("ERROR", "ZeroDivisionError: .*zero"), r"ZeroDivisionError: .*zero$",
                  rf"process 1 of 3 failed first, with exit code 1$|{_BLAMED}left the world"),
    "exit": (_ENDED, "", f"{_BLAMED}left the world before {_NEXT}"),
    "_exit": (rf"PeerError: .*{_ONE}: its process ended, after {_LAST}$", "",
              rf"process 1 of 3 failed first, with exit code 5$|{_BLAMED}its process ended"),
    "kill": (rf"PeerError: .*{_ONE}: its process ended, after {_LAST}$", "",
             rf"process 1 of 3 was ended: signal: killed$|{_BLAMED}its process ended"),
    "stop": (rf"PeerError: .*{_ONE}: stalled: no progress and no reaction for \S+, after {_LAST}", "",
             f"{_BLAMED}stalled: no progress and no reaction"),
    "sleep": (rf"PeerError: .*{_ONE}: did not begin {_NEXT} within 5s, after {_LAST}; the limit is HOCKET_STALL_TIMEOUT, or stall_timeout$", "",
              f"{_BLAMED}did not begin {_NEXT}"),
    "before": (rf"PeerError: .*{_ONE}: ended \(exit status 0\) before it joined the others$", "",
               rf"{_BLAMED}ended \(exit status 0\) before it joined"),
    "mesh": (_MESH, _MESH, r"process \d of 3 failed first, with exit code 1"),
}


@unittest.skipUnless(os.environ.get("HOCKET_COMMAND"), "HOCKET_COMMAND names no command")
class Faults(unittest.TestCase):
    """One of three processes goes wrong: all of them, and the launcher, name it, its call and the line."""

    def test_table(self):
        for fault, (others, own, launch) in FAULTS.items():
            with self.subTest(fault):
                got = subprocess.run([os.environ["HOCKET_COMMAND"], "launch", "-n", "3", "--", sys.executable, __file__,
                                      "member", "fault", fault], text=True, capture_output=True, timeout=300,
                                     env={**os.environ, "HOCKET_STALL_TIMEOUT": "5s", "HOCKET_JOIN_TIMEOUT": "4m"})
                said = {0: [], 1: [], 2: []}
                for line in got.stderr.splitlines():
                    rank = int(line[1]) if line[:1] == "[" and line[2:4] == "] " else 0
                    said[rank].append(line.partition("] ")[2] if rank else line)
                verdict = [line for line in said[0] if line.startswith("error: ")]
                self.assertEqual(len(verdict), 1, got.stderr)
                self.assertRegex(verdict[0], f"^error: (?:{launch})")
                self.assertNotEqual(got.returncode, 0)
                said[0].remove(verdict[0])
                for rank in (0, 2):
                    self.assertRegex("\n".join(said[rank]), "(?m)" + others, f"rank {rank}")
                self.assertRegex("\n".join(said[1]), "(?m)" + own if own else "^$", "rank 1")


def member_fault():
    fault, bad = sys.argv[3], os.environ["HOCKET_RANK"] == "1"
    if fault == "before" and bad:
        sys.exit(0)
    hocket.init()
    x = floats([1.0] * 8)
    happens = {
        "dtype": lambda: hocket.all_reduce(memoryview(array.array("d", [1.0] * 8))),
        "shape": lambda: hocket.all_reduce(floats([1.0] * 9)),
        "op": lambda: hocket.all_reduce(x, op="max"),
        "collective": lambda: hocket.all_gather(x),
        "program": lambda: hocket.load("mesh d[3]\nfunc doubles(%x: f32[24/d]) -> f32[24/d] {\n  %y = add %x, %x\n"
                                       "  return %y\n}\n", func="doubles")(x),
        "skip": lambda: None,
        "input": lambda: hocket.all_reduce(x, out=floats([1.0] * 3)),
        "exception": lambda: 1 // 0,
        "exit": lambda: sys.exit(0),
        "_exit": lambda: os._exit(5),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "sleep": lambda: time.sleep(1000),
    }
    if fault == "mesh":
        hocket.load("mesh d[4]\nfunc f(%x: f32[32/d]) -> f32[32/d] {\n  %y = add %x, %x\n  return %y\n}\n")(x)
    for n in range(4):
        if bad and n == 2:
            happens[fault]()
        else:
            hocket.all_reduce(x)


def floats(values, *shape):
    return memoryview(array.array("f", values)).cast("B").cast("f", shape or (len(values),))


def ints(values):
    return memoryview(array.array("i", values))


def longs(values):
    return memoryview(array.array("q", values))


def refused(call, *words):
    try:
        call()
    except hocket.InputError as e:
        assert all(w in str(e) for w in words), e
    else:
        raise AssertionError(f"not refused: {words}")


def member_state():
    """Blocks of the rank: arguments, weights and state, for dims of the call."""
    r = hocket.rank()
    for gather in (False, True):
        with hocket.load(STATE, gather=gather) as m:
            w, s, n = floats([float(i + 8 * r) for i in range(8)], 2, 4), floats([0.0] * 2), ints([0])
            sums = [sum(row) for row in w.tolist()]
            m.bind("w", w)
            m.bind("s", s)
            m.bind("one", ints([1]))
            for i, rows in enumerate((2, 3, 7)):
                y, given = m(floats([1.0] * 4 * rows, rows, 4), n=n, dims={"T": rows})
                want = [sum(range(4 * k, 4 * k + 4)) for k in range(4)] if gather else sums
                assert y.tolist() == [want] * rows and given is n and n.tolist() == [i + 1], (y.tolist(), n.tolist())
            assert s.tolist() == [12 * v for v in sums], s.tolist()
            x, whole = floats([1.0] * 12, 3, 4), floats([0.0] * 16, 4, 4)
            refused(lambda: m(x, n=n), "the block of x for rank", "f32[3, 4], want f32[2, 4]", "T=2", "dims")
            refused(lambda: m(x, n=n, w=whole, dims={"T": 3}), f"the block of w for rank {r} is f32[4, 4], want f32[2, 4]",
                    "w as a whole is", "each process must pass the block of its rank")
            assert s.tolist() == [12 * v for v in sums] and n.tolist() == [3]


def member_bad_id():
    """All ranks raise the error about what one was given, and go on."""
    r = hocket.rank()
    with hocket.load(LOOKUP) as m:
        s = floats([0.0] * 16, 8, 2)
        m.bind("e", floats([float(i) for i in range(2000)], 1000, 2))
        m.bind("s", s)
        m.bind("r", floats([5.0, 6.0], 1, 2))
        for i in range(6):
            assert m(ints([1, 2 + r]), longs([i])).tolist() == [[2.0, 3.0], [4.0 + 2 * r, 5.0 + 2 * r]]
            bad = i % 3  # 2: both ranks
            try:
                m(ints([3, 1000 + r if bad in (r, 2) else 4]), longs([i + 1]))
            except hocket.InputError as e:
                of = bad % 2
                assert (e.parameter, e.rank, e.index, e.value, e.begun) == ("ids", of, (1,), 1000 + of, False), e
            else:
                raise AssertionError("not refused")
            assert s.tolist() == [[5.0, 6.0]] * (i + 1) + [[0.0, 0.0]] * (7 - i), s.tolist()


def member_other_ids():
    """Ids that all ranks have: a wrong one is an error of each, and ids that differ are one of both."""
    r = hocket.rank()
    m = hocket.load("mesh tp[2]\nfunc f(%ids: i32[2], %e: f32[1000/tp, 2]) -> f32[2, 2] {\n  %y: f32[2, 2] = embedding %ids, %e\n"
                    "  return %y\n}\n")
    e = floats([float(i + 1000 * r) for i in range(1000)], 500, 2)
    for _ in range(2):
        refused(lambda: m(ints([1, 1000]), e), "%ids[1] is 1000", "from 0 to 999")
        assert m(ints([1, 999]), e).tolist() == [[2.0, 3.0], [1998.0, 1999.0]]
    if r == 1:
        refused(lambda: m(ints([1, -1]), e), "-1")
    try:
        m(ints([1, 2 + r]), e)
    except hocket.DisagreeError as e:
        assert "integer inputs" in str(e), e
    else:
        raise AssertionError("ids differ, and nothing was raised")


def member_submesh():
    """A parameter and a result of which one rank has a block."""
    r = hocket.rank()
    m = hocket.load("mesh tp[2]\nmesh d[1] = {1}\nfunc f(%x: f32[4/tp], %k: f32[2] @d) -> (f32[4/tp], f32[2] @d) {\n"
                    "  %y = add %x, %x\n  %z = add %k, %k\n  return %y, %z\n}\n")
    x, k = floats([1.0 + r] * 2), floats([3.0, 4.0])
    y, z = m(x, k) if r == 1 else m(x)
    assert y.tolist() == [2.0 + 2 * r] * 2 and (z.tolist() == [6.0, 8.0] if r else z is None), (y, z)
    if r == 0:
        refused(lambda: m(x, k), "rank 0 has no block of k")


def member_collectives():
    hocket.init()
    r, n = hocket.rank(), hocket.world_size()
    for size in (1, 5, 1000):
        for op, of in (("sum", sum), ("max", max), ("min", min)):
            t = floats([float((q * 7 + r * 3) % 11) for q in range(size)])
            got = hocket.all_reduce(t, op=op)
            assert got is t
            assert t.tolist() == [of(float((q * 7 + s * 3) % 11) for s in range(n)) for q in range(size)], op
    t, out = floats([r + 1.0] * 4), floats([0.0] * 4)
    hocket.all_reduce(t, out=out)
    assert t.tolist() == [r + 1.0] * 4 and out.tolist() == [n * (n + 1) / 2] * 4
    assert hocket.all_gather(floats([r * 2.0, 1, 2, 3], 2, 2)).tolist() == [row for s in range(n) for row in ([s * 2.0, 1.0], [2.0, 3.0])]
    x = floats([float(r * 100 + q) for q in range(2 * n)])
    assert hocket.reduce_scatter(x).tolist() == [sum(s * 100.0 + 2 * r + k for s in range(n)) for k in range(2)]
    assert hocket.all_to_all(x).tolist() == [s * 100.0 + 2 * r + k for s in range(n) for k in range(2)]
    counts = [s % 2 * 3 + s for s in range(n)]
    v = floats([float(r * 10 + q) for q in range(counts[r] * 2)], counts[r], 2) if counts[r] else memoryview(bytearray(4)).cast("f", (1,))[:0]
    if counts[r]:
        got = hocket.all_gather_v(v, counts)
    else:
        import numpy
        got = hocket.all_gather_v(numpy.zeros((0, 2), "f4"), counts)
    want = [[float(s * 10 + 2 * q), float(s * 10 + 2 * q + 1)] for s in range(n) for q in range(counts[s])]
    assert got.tolist() == want, (got.tolist(), want)
    b = floats([float(r), 5.0])
    hocket.broadcast(b, root=n - 1)
    assert b.tolist() == [n - 1.0, 5.0]
    hocket._collectives._MOST = 3
    for size in (*range(2000, 2008), *range(2000, 2008)):  # programs go and come again
        assert hocket.all_reduce(floats([r + 1.0] * size)).tolist() == [n * (n + 1) / 2] * size
    assert len(hocket._world.state().models) == 3
    hocket.barrier()
    for bad, call in ((hocket.InputError, lambda: hocket.all_reduce(t, op="mean")), (hocket.InputError, lambda: hocket.broadcast(b, root=n)),
                      (hocket.InputError, lambda: hocket.all_reduce(t, out=floats([1.0])))):
        try:
            call()
        except bad:
            continue
        raise AssertionError("no error")


def member_programs():
    r = hocket.rank()
    w = floats([float((q + 12 * r) % 5 - 2) for q in range(12)], 3, 4)
    x = floats([float(q % 7) for q in range(8)], 2, 4)
    m = hocket.load(LINEAR, dims={"T": 2}, gather=True)
    y, z = m(x, w)
    full = [[float((q + 4 * row) % 5 - 2) for q in range(4)] for row in range(6)]
    assert y.tolist() == [[sum(x[t, k] * full[o][k] for k in range(4)) for o in range(6)] for t in range(2)], y.tolist()
    part = hocket.load("mesh d[2]\nfunc g(%x: f32[8/d]) -> f32[8/d] {\n  %y = add %x, %x\n  return %y\n}\n")
    assert part(floats([r + 1.0] * 4)).tolist() == [2 * r + 2.0] * 4


def member_ddlb():
    """Implementations for DDLB, on base classes like its own."""
    import types

    rank, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_WORLD_SIZE"])
    m, n, k = 4 * size, 3, 2 * size
    g = torch.Generator()
    g.manual_seed(3)
    whole_a, whole_b = (torch.randint(-4, 5, s, generator=g).float() for s in ((m, k), (k, n)))

    class Base:
        DEFAULT_OPTIONS = {}

        def __init__(self, m, n, k, dtype, **options):
            assert set(options) <= set(self.DEFAULT_OPTIONS), options
            self.m, self.n, self.k, self.dtype = m, n, k, dtype
            self.options = {**self.DEFAULT_OPTIONS, **options}
            self.communicator = types.SimpleNamespace(rank=rank, world_size=size)
            self.place()

    class TPColumnwise(Base):
        def place(self):
            self.A, self.B = whole_a[rank * m // size : (rank + 1) * m // size], whole_b

    class TPRowwise(Base):
        def place(self):
            mine = slice(rank * k // size, (rank + 1) * k // size)
            self.A, self.B = whole_a[:, mine], whole_b[mine]

    for name, kind in (("TPColumnwise", TPColumnwise), ("TPRowwise", TPRowwise)):
        module = types.ModuleType(f"ddlb.primitives.{name}")
        setattr(module, name, kind)
        sys.modules[module.__name__] = module
    sys.modules["ddlb"], sys.modules["ddlb.primitives"] = types.ModuleType("ddlb"), types.ModuleType("ddlb.primitives")
    from hocket import ddlb

    want = whole_a @ whole_b
    for strategy in ("sequential", "exchange", "auto"):
        for gather in ("operand", "result"):
            c = ddlb.HocketTPColumnwise(m=m, n=n, k=k, dtype="float32", strategy=strategy, gather=gather)
            assert torch.equal(c.run(), want) and torch.equal(c.run(), want)
        r = ddlb.HocketTPRowwise(m=m, n=n, k=k, dtype="float32", strategy=strategy)
        assert torch.equal(r.run(), want[rank * m // size : (rank + 1) * m // size])
    try:
        ddlb.HocketTPRowwise(m=m, n=n, k=k, dtype="int64")
    except ValueError as e:
        assert "int64" in str(e)
    else:
        raise AssertionError("not refused")


def member_diverging():
    hocket.init()
    r = hocket.rank()
    assert hocket.all_reduce(floats([1.0] * 8)).tolist() == [2.0] * 8
    try:  # a shape that differs: torch's symmetric buffers diverge without a word
        hocket.all_reduce(floats([1.0] * (8 + 8 * r)))
    except hocket.DisagreeError as e:
        assert set(e.values) == {0, 1}, e.values
    else:
        raise AssertionError("shapes differ, and nothing was raised")
    try:
        hocket.all_reduce(floats([1.0] * 8))
    except hocket.Error:
        pass
    else:
        raise AssertionError("the world has ended, and runs")


def member_killed():
    hocket.init()
    t = floats([1.0] * 64)
    began = time.time()
    try:  # the first time, too: a rank that is through may be gone before the others are
        while True:
            hocket.all_reduce(t)
            if hocket.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    except hocket.PeerError as e:
        assert time.time() - began < 50
        print("PeerError", e.rank)


class Rows:
    """A dataset."""

    def __len__(self):
        return 32

    def __init__(self, forked):
        self.forked = forked

    def __getitem__(self, i):
        if self.forked:
            for call in (lambda: hocket.all_reduce(torch.ones(512)), lambda: hocket.load(LINEAR), hocket.barrier):
                try:
                    call()
                except hocket.UnsupportedError as e:
                    assert "forked" in str(e), e
                else:
                    raise AssertionError("hocket can be used in a forked child")
        return torch.full((4,), float(i))


def member_beside_torch():
    import torch.distributed as dist
    import torch.utils.data as data
    hocket.init()
    r, n = hocket.rank(), hocket.world_size()
    dist.init_process_group("gloo", rank=r, world_size=n)
    fork, spawn = (data.DataLoader(Rows(c == "fork"), batch_size=4, num_workers=2, multiprocessing_context=c) for c in ("fork", "spawn"))
    rng = torch.Generator().manual_seed(3)
    for step, batch in enumerate(b for loader in (fork, fork, spawn, fork) for b in loader):
        assert batch.sum() == sum(4.0 * i for i in range(4 * (step % 8), 4 * (step % 8) + 4))
        size = int(torch.randint(1, 3, (1,), generator=rng)) * 512
        a = torch.full((size,), float(r + step))
        b = a.clone()
        hocket.all_reduce(a)
        dist.all_reduce(b)
        assert torch.equal(a, b)
        del a, b
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    processes.main(globals(), unittest)
