"""Tests of bound and loaded weights, on the CPU machine. HOCKET_LIBRARY names what is tested.

Run alone: python3 python/tests/test_weights.py. Tests of several processes start this file again as their members.
"""

import os
import pathlib
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import hocket  # noqa: E402
import processes  # noqa: E402

try:
    import numpy  # noqa: F401
    import torch
except ImportError:
    torch = None
else:
    from test_torch import safetensors

LINEAR = "mesh tp[1]\nfunc f(%x: f32[2, 3], %w: f32[4, 3]) -> f32[2, 4] {\n  %y = linear %x, %w\n  return %y\n}\n"
COPY = "mesh tp[1]\nfunc f(%x: f32[A, B]) -> f32[A, B] {\n  %y = copy %x\n  return %y\n}\n"


@unittest.skipIf(torch is None, "torch or numpy is not installed")
class Weights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.sevens = pathlib.Path(folder.name) / "w.safetensors"
        safetensors(cls.sevens, {"w": torch.full((4, 3), 7.0)})
        cls.x = torch.ones(2, 3)

    def test_load_replaces_a_leaf(self):
        """A file replaces a bound tensor that requires a gradient."""
        with hocket.load(LINEAR, grad=True) as m, torch.no_grad():
            m.bind("w", torch.ones(4, 3, requires_grad=True))
            self.assertEqual(m(self.x)[0, 0].item(), 3)
            m.load(self.sevens)
            self.assertEqual(m(self.x)[0, 0].item(), 21)

    def test_bind_refuses(self):
        """A tensor that fits for no dims is refused when it is bound, and the earlier one stays."""
        text = LINEAR.replace("f32[2,", "f32[T,")
        with hocket.load(text) as m:
            m.bind("w", torch.full((4, 3), 7.0))
            for t, got in ((torch.ones(3, 4), r"f32\[3, 4\]"), (torch.ones(4), r"f32\[4\]"), (torch.ones(4, 3).double(), r"f64\[4, 3\]")):
                with self.assertRaisesRegex(hocket.InputError, r"the parameter w is f32\[4, 3\], and the tensor to bind is " + got):
                    m.bind("w", t)
                with self.assertRaisesRegex(hocket.InputError, "the parameter w is"):
                    m.load({"x": torch.ones(5, 3), "w": t})
            self.assertEqual(m(self.x)[0, 0].item(), 21)  # x was not bound
            m.bind("x", torch.ones(5, 3))
            self.assertEqual(m().shape, (5, 4))
        with hocket.load(text, dims={"T": 2}) as m:
            with self.assertRaisesRegex(hocket.InputError, r"the parameter x is f32\[T, 3\] with T=2, and the tensor to bind is f32\[5, 3\]"):
                m.bind("x", torch.ones(5, 3))

    def test_shapes_disagree(self):
        """The error names the arguments, and not the program."""
        with hocket.load(LINEAR.replace("f32[2,", "f32[T,").replace(", 3]", ", H]")) as m:
            with self.assertRaisesRegex(hocket.InputError, r"H is 3 by the shape of %x, \[2 3\], and 5 by that of %w, \[4 5\]"):
                m(self.x, torch.ones(4, 5))
        with hocket.load("mesh d[2]\nfunc f(%x: f32[T/d]) -> f32[T/d] {\n  %y = copy %x\n  return %y\n}\n") as m:
            with self.assertRaisesRegex(hocket.InputError, r"%x has T=3: program.hkt:2:15: T=3 is not a multiple of size\(d\)=2"):
                m(torch.ones(3))
            self.assertEqual(m(torch.ones(4)).tolist(), [1] * 4)

    def test_files_in_place_of_programs(self):
        """Files of weights given as a program or as weights of a text are named, with the way to load them."""
        odd = self.sevens.with_name("model.onnx")
        odd.write_bytes(b"\x08\x07\xff\xfe\x00")
        program = self.sevens.with_name("linear.hkt")
        program.write_text(LINEAR)
        for wrong, why in (((self.sevens,), r"w.safetensors is a safetensors file of weights: .*model.load reads weights"),
                           ((self.sevens.parent,), "is a folder: .*model.load"), ((odd,), "model.onnx is no text: load takes"),
                           ((LINEAR, self.sevens), r"w.safetensors.*dict of tensors .*model.load\(file\)"),
                           ((program, [str(self.sevens)]), r"w.safetensors.*dict of tensors .*model.load\(file\)")):
            with self.assertRaisesRegex(hocket.InputError, why):
                hocket.load(wrong[0], weights=wrong[1] if wrong[1:] else None)
        with hocket.load(program, weights={"w": torch.full((4, 3), 7.0)}) as m:
            self.assertEqual(m(self.x)[0, 0].item(), 21)

    def test_options_refused(self):
        with self.assertRaisesRegex(hocket.InputError, "ranks is 3, but the mesh of program.hkt has size 1: leave ranks out"):
            hocket.load(LINEAR, ranks=3)

        for wrong, why in (({"buckets": {"T": [0, -4]}}, r"buckets has \[0, -4\] for T: give a list of whole numbers from 1 on"),
                           ({"buckets": {"T": []}}, r"buckets has \[\] for T"), ({"buckets": {"T": "64"}}, "buckets has '64' for T"),
                           ({"buckets": {"T": [12.5]}}, "buckets has"), ({"buckets": {"T": [True]}}, "buckets has"),
                           ({"buckets": {"T": 4}}, "buckets has 4 for T"), ({"buckets": [1]}, r"buckets is \[1\]: give a dict"),
                           ({"ranks": 0}, "ranks is 0: it is a number from 1 on"), ({"ranks": 2.0}, "ranks is 2.0"),
                           ({"cache": -1}, 'cache is -1: it is a number of bytes from 1 on, or "off"'),
                           ({"arena": "1MiB"}, "arena is '1MiB': it is a number of bytes from 1 on"),
                           ({"lend": 3}, "lend is 3: it is True or False")):
            with self.assertRaisesRegex(hocket.InputError, why):
                hocket.load(LINEAR.replace("f32[2,", "f32[T,"), **wrong)

    def test_torch_save(self):
        """A file of torch.save is named as one."""
        with tempfile.TemporaryDirectory() as folder, hocket.load(LINEAR) as m:
            for new in (True, False):
                path = pathlib.Path(folder) / "w.pt"
                torch.save({"w": torch.ones(4, 3)}, path, _use_new_zipfile_serialization=new)
                with self.assertRaisesRegex(hocket.InputError, "w.pt: not a safetensors file: it begins as a file of torch.save; "
                                            "convert it in Python: safetensors.torch.save_file"):
                    m.load(path)

    def test_file_has_no_gradient(self):
        with hocket.load(LINEAR, grad=True) as m:
            m.load(self.sevens)
            with self.assertRaisesRegex(hocket.UnsupportedError, "w is a weight of a file.*give load its tensors by name"):
                m(self.x.clone().requires_grad_())
            with torch.no_grad():
                self.assertEqual(m(self.x)[0, 0].item(), 21)

    def test_load_of_leaves(self):
        """Gradients of tensors by name go through the rules that parameters are made by."""
        parts = {n: torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for n in "ab"}
        with hocket.load(LINEAR, grad=True) as m:
            m.load(parts, {"w": {"from": ["a", "b"], "transpose": True, "cast": True}})
            for _ in range(2):
                y = m(self.x)
                want = self.x @ torch.cat([parts["a"].T, parts["b"].T]).float().T
                self.assertTrue(torch.allclose(y, want, rtol=1e-5))
                grads = torch.autograd.grad(want.square().sum(), list(parts.values()))
                for g, h in zip(torch.autograd.grad(y.square().sum(), list(parts.values())), grads):
                    self.assertTrue(torch.allclose(g, h, rtol=1e-5))
                with torch.no_grad():
                    parts["b"] *= 2  # calls take the leaves as they are

    def test_refused_bind(self):
        with hocket.load(LINEAR, grad=True) as m:
            m.bind("w", torch.ones(4, 3))
            with self.assertRaisesRegex(hocket.InputError, "complex64"):
                m.bind("w", torch.ones(4, 3, dtype=torch.complex64, requires_grad=True))
            self.assertEqual(m(self.x)[0, 0].item(), 3)

    def test_bind_replaces_a_file(self):
        with hocket.load(LINEAR) as m:
            m.load(self.sevens)
            m.bind("w", None)
            with self.assertRaisesRegex(hocket.InputError, "w"):
                m(self.x)
            self.assertEqual(m(self.x, torch.ones(4, 3))[0, 0].item(), 3)
            m.load(self.sevens)
            self.assertEqual(m(self.x)[0, 0].item(), 21)
            m.bind("w", torch.ones(4, 3))
            self.assertEqual(m(self.x)[0, 0].item(), 3)
            m.bind("w", None)
            with self.assertRaisesRegex(hocket.InputError, "w"):
                m(self.x)
            m.load(self.sevens)
            self.assertEqual(m.load({"other": self.x}, {"x": "other"}, inputs=[]), [])  # w has the file's

    def test_incomplete(self):
        """A file without a weight is refused if inputs are named."""
        with hocket.load(LINEAR.replace("linear %x, %w", "linear %x, %w, %b").replace("%w: f32[4, 3]", "%w: f32[4, 3], %b: f32[4]")) as m:
            with self.assertRaisesRegex(hocket.InputError, "nothing is bound to b: give each a rule"):
                m.load(self.sevens, inputs=["x"])
            m.load(self.sevens, inputs=["x", "b"])

    def test_rules(self):
        """Rules of tensors by name are refused as those of files are."""
        t = torch.arange(16.0).view(4, 4)
        tensors = {"a": t, "b": t[:, :3].contiguous(), "one": t[0].clone(), "l.0": t, "l.1": t[:3].clone(), "d": t.double()}
        path = self.sevens.with_name("rules.safetensors")
        safetensors(path, tensors)
        for rule, why in (({"from": "a", "axis": -1, "lo": 0, "hi": 2}, "has no dimension -1"),
                          ({"from": "a", "axis": 2, "lo": 1}, "has no dimension 2"),
                          ({"from": "one", "transpose": True}, "cannot be transposed"),
                          (["a", "b"], "cannot be concatenated along dimension 0"), (["a", "one"], "cannot be concatenated"),
                          ({"from": ["a", "d"], "cast": True}, "cannot be concatenated"), ("l.*", "layers differ"),
                          ({"from": "a", "lo": 2, "hi": 5}, "which has no range 2..5 along dimension 0"),
                          ({"from": "a", "lo": -1, "hi": 2}, "has no range")):
            for weights in (path, tensors, {n: x.numpy() for n, x in tensors.items()}):
                with hocket.load(COPY) as m, self.assertRaisesRegex(hocket.InputError, why):
                    m.load(weights, {"x": rule})
        with hocket.load(COPY) as m:
            m.load(tensors, {"x": {"from": "a", "transpose": True, "axis": 1, "lo": 1}})
            self.assertTrue(torch.equal(m(), t.T[:, 1:]))

    def test_scales(self):
        """Tensors of 8 bits are not cast without their scales."""
        class F8:
            dtype, shape, detach = "torch.float8_e4m3fn", (2, 3), None

        with hocket.load(COPY) as m, self.assertRaisesRegex(hocket.InputError, "w is f8e4m3.* with the scales w_scale_inv"):
            m.load({"w": F8(), "w_scale_inv": torch.ones(1)}, {"x": {"from": "w", "cast": True}})

    @unittest.skipUnless(pathlib.Path("/proc/self/maps").exists(), "the system does not list what is mapped")
    def test_files_are_unmapped(self):
        """A file stays mapped while a weight of it is bound, and for calls that have begun."""
        mapped = lambda: pathlib.Path("/proc/self/maps").read_text().count(str(self.sevens))
        with hocket.load(LINEAR) as m:
            self.assertEqual(mapped(), 0)
            done, right = threading.Event(), []
            caller = threading.Thread(target=lambda: [right.append(m(self.x)[0, 0].item()) for _ in iter(done.is_set, True)])
            m.load(self.sevens)
            caller.start()
            for _ in range(50):
                m.load(self.sevens)
            done.set()
            caller.join()
            self.assertEqual(set(right), {21})
            self.assertEqual(mapped(), 1)
            m.load(self.sevens, {"w": {"from": "w", "lo": 0, "hi": 4}}, inputs=["x"])  # a copy
            self.assertEqual(mapped(), 1)
            m.bind("w", torch.ones(4, 3))
            self.assertEqual((mapped(), m(self.x)[0, 0].item()), (0, 3))
            m.load(self.sevens)
        self.assertEqual(mapped(), 0)

    def test_processes(self):
        processes.right(self, __file__, 2, "sizes")
        processes.right(self, __file__, 2, "blocks")

    def test_options_differ(self):
        for what in "shards", "strategies", "gathers", "copies":
            processes.right(self, __file__, 2, what)


def member_sizes():
    """Weights of other sizes replace loaded ones."""
    hocket.init()
    with hocket.load("mesh d[2]\nfunc f(%x: f32[T], %w: f32[T], %v: f32[T]) -> f32[T] {\n  %u = mul %x, %w\n"
                     "  %y = add %u, %v\n  return %y\n}\n") as m:
        for n in (4, 6, 2):
            m.load({"w": torch.full((n,), 2.0)})
            m.load({"v": torch.ones(n)})
            assert m(torch.ones(n)).tolist() == [3] * n
        m.bind("w", None)
        m.bind("v", None)
        for n in (3, 5):
            assert m(*[torch.ones(n)] * 3, dims={"T": n}).tolist() == [2] * n


def member_blocks():
    """A process's block in place of the whole tensor is refused; loading the whole tensor is right."""
    hocket.init()
    rank = int(os.environ["HOCKET_RANK"])
    text = ("dim F = 8\nmesh tp[2]\nfunc f(%x: f32[2, 3], %w: f32[F/tp, 3]) -> f32[2, F/tp] {\n  %y = linear %x, %w\n"
            "  return %y\n}\n")
    whole = torch.arange(24.0).reshape(8, 3)
    block = whole[4 * rank : 4 * rank + 4].clone()
    with tempfile.TemporaryDirectory() as folder, hocket.load(text) as m:
        file = pathlib.Path(folder) / "w.safetensors"
        safetensors(file, {"w": block})
        for weights, rules in (({"w": block}, {}), (file, {}), ({"part": block}, {"w": "part"})):
            try:
                m.load(weights, rules)
            except hocket.InputError as e:
                for part in (r"%w has the shape [4, 3]", "the whole tensor is [8, 3], split along dimension 0 over 2",
                             "give whole tensors, or bind() this process's block", 'dims={"F": 4}'):
                    assert part in str(e), e
            else:
                raise AssertionError("the block of a process is accepted")
        safetensors(file, {"w": whole})
        for give in (lambda: m.load({"w": whole}), lambda: m.load(file), lambda: m.bind("w", block)):
            give()
            assert torch.equal(m(torch.ones(2, 3)), block.sum(1).expand(2, 4))
        m.load({"w": block}, dims={"F": 4})  # the caller says that it is whole
        assert m(torch.ones(2, 3), dims={"F": 4}).shape == (2, 2)


def differ(text, words, *args, **options):
    """Loads a program with other options on each of two ranks. The error of the first call names them."""
    hocket.init()
    with hocket.load(text, **options) as m:
        try:
            m(*args)
        except hocket.DisagreeError as e:
            for part in ("ranks disagree on the plan to load", *words):
                assert part in str(e), e
        else:
            raise AssertionError("ranks loaded with other options, and nothing was raised")


def member_shards():
    shard = "layers.*.up=colwise", "layers.*.down=rowwise"
    differ(ROOT / "testdata/layers.pt2", ("rank 0 has shard map[layers.*.up:colwise]", "rank 1 has shard map[layers.*.down:rowwise"),
           torch.ones(2, 4), shard=[shard[0]] if os.environ["HOCKET_RANK"] == "0" else shard)


def member_strategies():
    text = "mesh tp[2]\nfunc f(%x: f32[8/tp, 8], %w: f32[8/tp, 8]) -> f32[8, 8/tp] {\n  %y = linear %x, %w\n  return %y\n}\n"
    differ(text, ("rank 0 has strategy sequential", "rank 1 has strategy exchange"), torch.ones(4, 8), torch.ones(4, 8),
           strategy=["sequential", "exchange"][int(os.environ["HOCKET_RANK"])])


def member_gathers():
    text = COPY.replace("tp[1]", "tp[2]")
    differ(text, ("rank 0 has f A=4 B=2 on 2 ranks, machine cpu, called", "machine cpu, gather"), torch.ones(4, 2),
           dims={"A": 4, "B": 2}, gather=os.environ["HOCKET_RANK"] == "1")


def member_copies():
    """With gather=True, an argument that should be equal on all ranks and is not shows in the results."""
    hocket.init()
    with hocket.load(COPY.replace("tp[1]", "tp[2]"), dims={"A": 2, "B": 2}, gather=True) as m:
        assert m(torch.ones(2, 2)).tolist() == [[1, 1], [1, 1]]
        try:
            m(torch.full((2, 2), float(hocket.rank())))
        except hocket.MachineError as e:
            assert "ranks 0 and 1 should hold the same elements, but 4 differ" in str(e), e
        else:
            raise AssertionError("arguments differ, and nothing was raised")


if __name__ == "__main__":
    processes.main(globals(), unittest)
