"""Tests of models that torch exported, and of what torch's objects say of them. HOCKET_LIBRARY names what is tested.

Archives are written by pt2.py, so torch is not needed. Where it is too old for torch.export, a stand-in takes its place,
and tests of torch.export and torch.compile themselves are skipped.
"""

import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import hocket  # noqa: E402
from hocket import _compile, _plans  # noqa: E402
import pt2  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
MODERN = torch is not None and hasattr(torch, "compile") and hasattr(torch, "export")
NO_TORCH_2 = "torch.export and torch.compile are of torch 2"
CORPUS = HERE.parents[2] / "shared" / "corpus" / "unpack"


def product(a, b):
    """a times the transpose of b."""
    return [[sum(x * y for x, y in zip(row, col)) for col in b] for row in a]


def eight(row):
    """A row rounded to f8e4m3 times its scale: 4 significant bits, or multiples of the smallest number."""
    scale = max(max(map(abs, row)) / 448, 1e-12)
    units = [2.0 ** max(math.frexp(v / scale)[1] - 4, -9) for v in row]
    return [round(v / scale / unit) * unit * scale for v, unit in zip(row, units)]


def quantized(x, w):
    """The product of rows that are rounded to f8e4m3, each with its scale."""
    return product([eight(row) for row in x], [eight(row) for row in w])


def expected(x, weights, totals=None, product=product):
    """The model's arithmetic on rows of numbers: the result, and the new state."""
    matrix = lambda name: [weights[name][1][i * weights[name][0][1]:][:weights[name][0][1]] for i in range(weights[name][0][0])]
    for layer in range(pt2.LAYERS):
        up = product(x, matrix(f"layers.{layer}.up.weight"))
        down = product([[v / (1 + math.exp(-v)) for v in row] for row in up], matrix(f"layers.{layer}.down.weight"))
        x = [[a + b for a, b in zip(*rows)] for rows in zip(x, down)]
    if totals is None:
        return x, None
    totals = [[a + b for a, b in zip(*rows)] for rows in zip(totals, x)]
    return [[a * b for a, b in zip(*rows)] for rows in zip(x, totals)], totals


X = [[0.5, -1, 2, 0.25], [1, 0, -0.75, 3]]
ONES = [[1.0] * pt2.HIDDEN] * pt2.TOKENS


def launch(n, what, path):
    """Runs a function of this file in n processes."""
    env = {**os.environ, "HOCKET_RUN_ID": f"{what} {os.getpid()} {time.time()}", "HOCKET_WORLD_SIZE": str(n)}
    procs = [subprocess.Popen([sys.executable, __file__, "member", what, path], env={**env, "HOCKET_RANK": str(r)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(n)]
    return [(p.communicate(timeout=300)[0], p.returncode) for p in procs]


class DTensor:
    """Stands in for torch's: a tensor of which each process has a block."""

    def __init__(self, whole, dim, rank, size):
        self.whole, self.shape = whole, whole.shape
        self.placements = (Shard(dim) if dim is not None else Replicate(),)
        self._local = whole if dim is None else numpy.ascontiguousarray(numpy.split(whole, size, axis=dim)[rank])
        self.gathered = False

    def to_local(self):
        return self._local

    def full_tensor(self):
        self.gathered = True
        return self.whole


class Shard:
    def __init__(self, dim):
        self.dim = dim


class Replicate:
    pass


class Partial:
    pass


class ColwiseParallel:
    def __init__(self, input_layouts=None, output_layouts=None):
        self.input_layouts, self.output_layouts = (input_layouts or Replicate(),), (output_layouts or Shard(-1),)


class RowwiseParallel:
    def __init__(self, input_layouts=None, output_layouts=None):
        self.input_layouts, self.output_layouts = (input_layouts or Shard(-1),), (output_layouts or Replicate(),)


class SequenceParallel:
    pass


class Embedding:
    pass


class Module:
    """Stands in for a torch module with an embedding."""

    def __init__(self, parameters=()):
        self._named = dict(parameters)

    def named_parameters(self):
        return self._named.items()

    def named_modules(self):
        return [("", self), ("embed", Embedding()), ("layers.0.up", object())]

    def forward(self, x):
        return x


def member_blocks(path):
    """Weights are this process's blocks of DTensors; one of them has another layout than the program."""
    hocket.init()
    whole = {n: numpy.array(v, "float32").reshape(s) * 2 for n, (s, v) in pt2.weights().items()}
    split = {n: DTensor(w, None if n.startswith("layers.1.") else 0 if ".up." in n else 1, hocket.rank(), hocket.world_size())
             for n, w in whole.items()}
    m = hocket.load(path, plan=PLAN, weights=split)
    y = m(numpy.array(X, "float32"))
    doubled = {n: (s, [2 * f for f in v]) for n, (s, v) in pt2.weights().items()}
    want, _ = expected(X, doubled)
    assert numpy.allclose(y, want, rtol=1e-5), (y, want)
    try:
        m.compare(numpy.array(X, "float32"))
    except hocket.InputError as e:
        assert "one process" in str(e), e
    else:
        raise AssertionError("several processes compare")
    print("well")


def member_wrong(path):
    """An id is wrong in the process of rank 1 only, although ids must be equal: the error names rank 1."""
    hocket.init()
    text = "dim P\nmesh tp[P]\nfunc f(%ids: i64[2], %w: f32[4/tp, 3]) -> f32[2, 3] {\n  %y = embedding %ids, %w\n  return %y\n}\n"
    m = hocket.load(text, ranks=2)
    w = numpy.ones((2, 3), "float32")
    try:
        m(numpy.array([0, 300 * hocket.rank()], "int64"), w)
    except hocket.InputError as e:
        assert hocket.rank() == 1 and (e.parameter, e.rank, e.value) == ("ids", 1, 300), e
        assert "invalid on rank 1" in str(e), e
    except hocket.Error:
        assert hocket.rank() == 0  # it waits for rank 1, which leaves
    else:
        raise AssertionError("a wrong id is accepted")
    print("well")


def member_quantized(path):
    """Each process reads and quantizes the rows of its rank."""
    hocket.init()
    want, _ = expected(X, pt2.weights(), product=quantized)
    with hocket.load(path, plan=PLAN, quantize="fp8-row", gather=True) as m:
        y = m(numpy.array(X, "float32"))
        assert numpy.allclose(y, want, rtol=1e-5), (y, want)
        assert "up: f8e4m3" in m.text, m.text
    print("well")


@unittest.skipIf(numpy is None, "numpy is not installed")
class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path, cls.plain = os.path.join(cls.folder.name, "m.pt2"), os.path.join(cls.folder.name, "plain.pt2")
        pt2.write(cls.path)
        pt2.write(cls.plain, state=False)
        cls.x = numpy.array(X, "float32")

    def close(self, got, want):
        """Compares f32 with this file's arithmetic in f64, another program's floating point."""
        self.assertTrue(numpy.allclose(got, want, rtol=1e-5), f"{got} is not {want}")

    def test_load(self):
        want, _ = expected(X, pt2.weights())
        for options in ({}, {"ranks": 2, "plan": PLAN}, {"ranks": 2, "plan": PLAN, "strategy": "exchange"},
                        {"ranks": 4, "plan": {"layers.*.up": "rowwise"}, "shard": ["layers.*.up=colwise", "down=rowwise"]}):
            with hocket.load(self.plain, **options) as m:
                self.close(m(self.x), want)
                self.close(m(x=self.x), want)
                self.assertEqual(m.proof, "proved")
                self.assertEqual("/tp" in m.text, "ranks" in options)
        plan = os.path.join(self.folder.name, "plan.json")
        with open(plan, "w") as f:
            json.dump(PLAN, f)
        with hocket.load(pathlib.Path(self.plain), ranks=2, plan=plan) as m:
            self.assertIn(f"up: f32[{pt2.LAYERS - 1}, 8/tp, 4]", m.text)
            self.close(m(self.x), want)

    def test_state(self):
        first, totals = expected(X, pt2.weights(), ONES)
        second, _ = expected(X, pt2.weights(), totals)
        with hocket.load(self.path, ranks=2, plan=PLAN) as m:
            for _ in range(2):
                self.close(m(self.x), first)
                self.assertEqual(m.compare(self.x).verdict, "within")  # leaves the state as it is
                self.close(m(self.x), second)
                m.reset()
            mine = numpy.array(ONES, "float32")
            out = m(self.x, total=mine)  # a state of the caller's, which comes back among the results
            self.close(out[0], first)
            self.close(mine, totals)
            self.close(m(self.x), first)

    def test_shared_memory(self):
        """States must not share memory with each other, given or bound. What a call only reads may share a state's."""
        text = ("func f(%x: f32[4], %s: inout f32[4], %t: inout f32[4]) -> f32[4] {\n  %y = add %x, %s\n  copy %y into %s\n"
                "  copy %x into %t\n  return %y\n}\n")
        both, x = numpy.arange(6, dtype="float32"), numpy.ones(4, "float32")
        with hocket.load(text) as m:
            for s, t in ((both[:4], both[:4]), (both[:4], both[2:])):
                with self.assertRaisesRegex(hocket.InputError, "s and t share memory, and the run writes s: pass a separate tensor"):
                    m(x=x, s=s, t=t)
                m.bind("t", t)
                with self.assertRaisesRegex(hocket.InputError, "share memory"):
                    m(x=x, s=s)
                m.bind("t", None)
            self.assertEqual(both.tolist(), [0, 1, 2, 3, 4, 5])
            self.assertEqual(m(x=both[:4], s=both[2:], t=x)[0].tolist(), [2, 4, 6, 8])
            self.assertEqual((both.tolist(), x.tolist()), ([0, 1, 2, 4, 6, 8], [0, 1, 2, 3]))

    def test_reset_of_bound_state(self):
        with hocket.load("func f(%x: f32[4], %s: inout f32[4]) -> f32[4] {\n  %y = add %x, %s\n  copy %y into %s\n  return %y\n}\n") as m:
            s = numpy.ones(4, "float32")
            m.bind("s", s)
            for _ in range(2):
                self.assertEqual(m(x=numpy.full(4, 2, "float32")).tolist(), [3] * 4)
                self.assertEqual(m(x=numpy.full(4, 2, "float32")).tolist(), [5] * 4)
                m.reset()
                self.assertEqual(s.tolist(), [1] * 4)
            self.assertEqual(m.compare(x=numpy.full(4, 2, "float32")).verdict, "exact")
            self.assertEqual(s.tolist(), [1] * 4)

    def test_compare(self):
        with hocket.load(self.plain, ranks=2, plan=PLAN) as m:
            c = m.compare(self.x)
            self.assertIn(c.verdict, ("exact", "within"))
            self.assertEqual([e.name for e in c.results], ["out0"])
            self.assertEqual(len(c), 3)  # the first layer, and a loop of two
            for layer in c:
                self.assertLess(layer.quotient, 1e-6)
                self.assertGreater(layer.largest, 0)
                self.assertIn(layer.name.replace(",", " ").split()[0], m.text.splitlines()[layer.line - 1])
            self.assertIn(c.worst, c.layers)
            self.assertIn("layer " + c.worst.name, str(c))
            with self.assertRaisesRegex(hocket.InputError, "no parameter z"):
                m.compare(z=self.x)

    def measured(self, m, want, unquantized):
        """Checks the measured difference of a model's results from those of the unquantized model."""
        found, = m.quantization(self.x)
        off = numpy.abs(numpy.array(want) - unquantized)
        same = sum(max(range(len(a)), key=a.__getitem__) == max(range(len(b)), key=b.__getitem__)
                   for a, b in zip(want, unquantized))
        self.assertTrue(numpy.allclose(found[1:4], (off.mean(), off.max(), numpy.square(unquantized).mean() ** 0.5),
                                       rtol=1e-3), found)
        self.assertEqual((found.same_largest, found.rows), (same, len(X)))
        self.assertIn("differs from the unquantized model by", str(found))

    def test_quantize(self):
        want, _ = expected(X, pt2.weights(), product=quantized)
        unquantized, _ = expected(X, pt2.weights())
        self.assertGreater(numpy.abs(numpy.array(want) - unquantized).max(), 1e-2)
        for options in ({}, {"ranks": 2, "plan": PLAN}, {"ranks": 2, "plan": PLAN, "strategy": "exchange"}):
            with hocket.load(self.plain, quantize="fp8-row", **options) as m:
                self.close(m(self.x), want)
                self.assertIn("up: f8e4m3", m.text)
                self.assertEqual(m.proof, "proved")
                self.measured(m, want, unquantized)
        with hocket.load(self.path, quantize="fp8-row") as m:  # with state, which stays as it is
            m(self.x)
            before = hocket.load(self.path, quantize="fp8-row")
            self.measured(m, expected(X, pt2.weights(), ONES, quantized)[0], expected(X, pt2.weights(), ONES)[0])
            before(self.x)
            self.close(m(self.x), numpy.array(before(self.x)).tolist())
            before.close()
        with hocket.load(self.plain) as m:
            with self.assertRaisesRegex(hocket.InputError, "is not quantized"):
                m.quantization(self.x)
        for call, why in ((lambda: hocket.load(self.plain, quantize="fp4"), "it can be fp8-tensor, fp8-row, fp8-block"),
                          (lambda: hocket.load("func f(%x: f32[4]) -> f32[4] {\n  return %x\n}\n", quantize="fp8-row"),
                           "plan, shard, weights and quantize apply only to models that torch exported"),
                          (lambda: hocket.load(self.plain, quantize="fp8-row", weights={
                              n: numpy.array(v, "float32").reshape(s) for n, (s, v) in pt2.weights().items()}),
                           "layers.*weight is a ndarray, and is to be quantized: give tensors of torch, or a file")):
            with self.assertRaisesRegex(hocket.InputError, why):
                call()

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_quantize_tensors(self):
        """Scales and values of a matrix whose edges fill no block."""
        rows, cols = 130, 300
        w = torch.randn(rows, cols).bfloat16()
        for form, groups in (("fp8-tensor", [(slice(None), slice(None))]), ("fp8-row", [(i, slice(None)) for i in range(rows)]),
                             ("fp8-block", [(slice(i, i + 128), slice(j, j + 128)) for i in (0, 128) for j in (0, 128, 256)])):
            scales = hocket._weights._quantized("w", w, form, True)
            self.assertEqual(scales.flatten().tolist(), [(w[g].abs().max().float() / 448).item() for g in groups])
            if not hasattr(torch, "float8_e4m3fn"):
                with self.assertRaisesRegex(hocket.UnsupportedError, "has no float8_e4m3fn"):
                    hocket._weights._quantized("w", w, form, False)
                continue
            values = hocket._weights._quantized("w", w, form, False)
            for g, s in zip(groups, scales.flatten()):
                self.assertTrue(torch.equal(values[g].float(), (w[g].float() / s).clamp(-448, 448).to(values.dtype).float()), form)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_compare_with_module(self):
        class Mlp(torch.nn.Module):
            def forward(self, x):
                for layer in range(pt2.LAYERS):
                    up, down = (torch.tensor(v).reshape(s) for n, (s, v) in pt2.weights().items() if f".{layer}." in n)
                    x = x + torch.nn.functional.silu(x @ up.T) @ down.T
                return {"logits": x + self.off}

        class Half(torch.nn.Module):
            def __init__(self, whole):
                super().__init__()
                self.whole = whole

            def forward(self, x):
                return self.whole(x)["logits"][:1]

        class Nothing(torch.nn.Module):
            def forward(self, x):
                return None

        with hocket.load(self.plain, ranks=2, plan=PLAN) as m:
            module = Mlp()
            module.off = 0
            c = m.compare(module, (torch.tensor(X),))
            error, = c.module
            self.assertLess(error.quotient, 1e-5)
            self.assertIn(c.verdict, ("exact", "within"))
            first = str(c).splitlines()[0]
            self.assertIn("matches the module within rounding (out0: largest error ", first)
            self.assertIn(", at most 0.00035)", first)  # the square root of 2^-23
            module.off = 1
            c = m.compare(module, (torch.tensor(X),))
            error, = c.module
            self.assertAlmostEqual(error.error, 1, places=4)
            self.assertEqual(c.verdict, "differs")
            first = str(c).splitlines()[0]
            self.assertTrue(first.startswith("differs from the module (out0: largest error 1, "), first)
            self.assertIn("with the reference evaluator: %out0 matches forward within rounding", first)
            # half of the values: the shape differs, and nothing is broadcast
            c = m.compare(Half(module), (torch.tensor(X),))
            self.assertEqual(c.verdict, "differs")
            self.assertIn("in the module: largest error inf", str(c).splitlines()[0])
            c = m.compare(Nothing(), (torch.tensor(X),))
            self.assertEqual(c.verdict, "undecided")
            self.assertIn("not compared with the module, which returned no tensors", str(c).splitlines()[0])

    def test_weights(self):
        doubled = {n: (s, [2 * f for f in v]) for n, (s, v) in pt2.weights().items()}
        arrays = {n: numpy.array(v, "float32").reshape(s) for n, (s, v) in doubled.items()}
        want, _ = expected(X, doubled)
        path = os.path.join(self.folder.name, "w.safetensors")
        header, data = {}, b""
        for n, a in arrays.items():
            header[n] = {"dtype": "F32", "shape": a.shape, "data_offsets": [len(data), len(data) + a.nbytes]}
            data += a.tobytes()
        header = json.dumps(header).encode()
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + data)
        given = [arrays, path, [path]]
        if torch is not None:
            given.append({n: torch.nn.Parameter(torch.from_numpy(a)) for n, a in arrays.items()})
        for weights in given:
            with hocket.load(self.plain, ranks=2, plan=PLAN, weights=weights) as m:
                self.close(m(self.x), want)
        some = {n: a for n, a in arrays.items() if ".up." in n}
        mixed = {**pt2.weights(), **{n: doubled[n] for n in some}}
        with hocket.load(self.plain, weights=some) as m:
            self.close(m(self.x), expected(X, mixed)[0])
        for wrong, why in (({"layers.1.up.weight": arrays["layers.1.up.weight"]}, "no weight layers.2.up.weight"),
                           ({"transformer.h.0.w": self.x}, "names are as layers.0.down.weight"),
                           ({**arrays, "layers.0.inv_freq": self.x}, "the model has no weight layers.0.inv_freq; did you mean"),
                           ({**arrays, "layers.0.down.wieght": self.x}, "did you mean layers.0.down.weight?"),
                           ({**arrays, "0.down.weight": self.x}, "0.down.weight and layers.0.down.weight name one weight: give only one"),
                           ({**arrays, "layers.0.up.weight": None}, "the weight layers.0.up.weight is None: give a tensor"),
                           (Module(), r"weights is a Module: give module.state_dict\(\)"),
                           ([self.x], "weights is a list: give paths of files, or a dict of tensors by name"), (3, "weights is a int: give"),
                           ({"up.weight": arrays["layers.1.up.weight"]}, "the name up.weight is ambiguous: it is the end of "
                            "layers.0.up.weight, layers.1.up.weight, layers.2.up.weight"),
                           ({n: a.astype("float64") for n, a in arrays.items()}, "have the type f64$"),
                           ({n: a[:2] for n, a in arrays.items()}, "is f32.2, 8., and the model's weight layers.[0-9].down.weight has "
                            "the shape .4, 8."),
                           ({n: a.T.copy() for n, a in arrays.items()}, "is f32.8, 4., and"),
                           ({n: a.reshape(-1) for n, a in arrays.items()}, "is f32.32., and"),
                           ({n: a[None] for n, a in arrays.items()}, "is f32.1, 4, 8., and")):
            with self.assertRaisesRegex(hocket.InputError, why):
                hocket.load(self.plain, weights=wrong)
        one = {"0.up.weight": doubled["layers.0.up.weight"]}
        with hocket.load(self.plain, weights={n: arrays["layers." + n] for n in one}) as m:
            self.close(m(self.x), expected(X, {**pt2.weights(), **{"layers." + n: w for n, w in one.items()}})[0])
        with self.assertWarnsRegex(UserWarning, "the model has 1 rank: pass ranks=N"):
            hocket.load(self.plain, plan=PLAN).close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            hocket.load(self.plain, plan=PLAN, ranks=2).close()
            hocket.load(self.plain, plan={}).close()
        more = os.path.join(self.folder.name, "more.safetensors")
        with open(path, "rb") as f, open(more, "wb") as to:
            text = f.read()[8:]
            named = header[:-1] + b', "layers.0.down.bias": {"dtype": "F32", "shape": [0], "data_offsets": [%d, %d]}}' % (
                len(data), len(data))
            to.write(struct.pack("<Q", len(named)) + named + text[len(header):])
        with self.assertWarnsRegex(UserWarning, "no weights for these tensors, which are ignored: layers.0.down.bias"):
            hocket.load(self.plain, weights=more).close()
        foreign = os.path.join(self.folder.name, "foreign.safetensors")
        with open(path, "rb") as f:
            text = f.read()
        with open(foreign, "wb") as f:
            f.write(text.replace(b'"layers.', b'"blocks.'))
        for weights in (foreign, [path, foreign]):
            with self.assertRaisesRegex(hocket.InputError, "no tensor of .*foreign.safetensors has the name of a weight: its "
                                        "tensors are blocks.*; the model's weights are layers"):
                hocket.load(self.plain, weights=weights)

    def test_weights_are_copied(self):
        """Changes in place do not reach the model, whether a weight is used as it is, split or stacked with others."""
        want, _ = expected(X, pt2.weights())
        arrays = {n: numpy.array(v, "float32").reshape(s) for n, (s, v) in pt2.weights().items()}
        tensors = [arrays] + [{n: torch.from_numpy(a.copy()) for n, a in arrays.items()}] * (torch is not None)
        for weights in tensors:
            for options in {}, {"ranks": 2, "plan": PLAN}:
                given = {n: t.clone() if hasattr(t, "clone") else t.copy() for n, t in weights.items()}
                with hocket.load(self.plain, weights=given, **options) as m:
                    for t in given.values():
                        t[:] = 7
                    self.close(m(self.x), want)

    def test_blocks(self):
        for what in "blocks", "quantized", "wrong":
            for out, code in launch(2, what, self.plain):
                self.assertEqual(code, 0, out)
                self.assertIn("well", out)

    def test_refused(self):
        config = os.path.join(self.folder.name, "config.json")
        with open(config, "w") as f:
            f.write('{"architectures": ["Llama"]}')
        for wrong, kind, why in (
                ({"program": Module()}, hocket.InputError, "Module is a module: hocket.export"),
                ({"program": self.plain, "plan": {"up": "sideways"}}, hocket.InputError, "sideways"),
                ({"program": self.plain, "plan": 7}, hocket.InputError, "plan is a int"),
                ({"program": self.plain, "plan": config}, hocket.InputError, "config.json is not a plan, which is a JSON object of styles"),
                ({"program": self.plain, "plan": pt2.__file__}, hocket.InputError, "pt2.py is not a plan.*line 1 column"),
                ({"program": self.plain, "shard": "up"}, hocket.InputError, "PATTERN=STYLE"),
                ({"program": self.plain, "shard": "upp=colwise"}, hocket.InputError, "no weight matches upp"),
                ({"program": self.plain, "ranks": 2, "plan": PLAN, "shard": "upp=colwise"}, hocket.InputError,
                 "shard: no weight matches upp; the model's weights are .*layers"),
                ({"program": self.plain, "plan": {"h.0.up": "colwise"}}, hocket.InputError, "no weight matches h.0.up"),
                ({"program": "func f(%x: f32[1]) -> f32[1] {\n  return %x\n}\n", "plan": {}}, hocket.InputError, "is none"),
                ({"program": self.plain, "ranks": 2, "shard": ["up=colwise", "up=rowwise"]}, hocket.InputError,
                 "shard has two styles for up, colwise and rowwise"),
                ({"program": self.plain, "weights": "none.safetensors"}, hocket.Error, "none.safetensors")):
            with self.assertRaisesRegex(kind, why):
                hocket.load(**wrong)
        m = hocket.load(self.plain)
        with self.assertRaisesRegex(hocket.InputError, "there is no parameter inputs; there are x$"):
            m(inputs=self.x)
        with self.assertRaisesRegex(hocket.InputError, "^x is given both by position and by name"):
            m(self.x, x=self.x)
        with self.assertRaisesRegex(hocket.InputError, "has the name of a parameter.*hocket.load.program, weights=…. takes the names of modules"):
            m.load({"layers.7.up.weight": self.x})
        m.close()
        with self.assertRaisesRegex(hocket.Error, "the model is closed"):
            m(self.x)
        cut = os.path.join(self.folder.name, "cut.pt2")
        with open(self.plain, "rb") as f, open(cut, "wb") as to:
            to.write(f.read()[:500])
        with self.assertRaises(hocket.InputError):
            hocket.load(cut)

    @unittest.skipUnless(CORPUS.exists(), "there is no corpus beside the repository")
    def test_decode_of_torchs_models(self):
        """Logits token by token are torch's of the whole prompt, within a tolerance for another program's floating point."""
        models = pathlib.Path(subprocess.check_output([CORPUS, os.path.join(tempfile.gettempdir(), "hocket-corpus")],
                                                      text=True).strip()) / "models"
        for name in ("llama", "qwen3"):
            with open(models / name / "expected.safetensors", "rb") as f:
                header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
                data = f.read()
            read = lambda n, kind: numpy.frombuffer(data[slice(*header[n]["data_offsets"])], kind).reshape(header[n]["shape"])
            ids, logits = read("input_ids", "int64"), read("logits", "float32")
            with hocket.load(models / name / "decode.pt2", plan=models / name / "tp_plan.json", ranks=2) as m:
                for t in range(ids.shape[1]):
                    y = m(input_ids=ids[:, t:t + 1].copy(), cache_position=numpy.array([t]))
                    self.assertLess(abs(y[:, 0] - logits[:, t]).max(), 2e-5 * abs(logits).max())
        page = (HERE.parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
        rules = page[page.index('layer = "model.layers.*."'):page.index('m.load("model.safetensors", rules)')]
        found = {}
        exec(rules, found)
        with hocket.load(models / "llama" / "static.pt2", plan=models / "llama" / "tp_plan.json", ranks=2) as m:
            ids = numpy.arange(12).reshape(1, 12)
            want, text = m(ids), m.text
        with hocket.load(text) as m:  # the text that import prints
            self.assertEqual(m.load(models / "llama" / "model.safetensors", found["rules"]), [])
            self.assertTrue((m(ids) == want).all())
        dynamic = models / "gpt_neox" / "dynamic.pt2"
        with hocket.load(dynamic, ranks=2) as m:
            m(numpy.ones((1, 128), "int64"))
            with self.assertRaisesRegex(ValueError, "T is 129; the export allows at most 128"):
                m(numpy.ones((1, 129), "int64"))
        with self.assertRaisesRegex(ValueError, "T is 400; the export allows at most 128"):
            hocket.load(dynamic, dims={"T": 400})
        with self.assertRaisesRegex(hocket.InputError, "4 heads cannot be split over 3 ranks: use 1, 2 or 4"):
            hocket.load(models / "llama" / "static.pt2", plan=models / "llama" / "tp_plan.json", ranks=3)


class Plans(unittest.TestCase):
    def test_parallelize_module(self):
        plan = {"embed": RowwiseParallel(input_layouts=Replicate()), "layers.*.up": ColwiseParallel(),
                "layers.*.down": RowwiseParallel(output_layouts=Shard(1)), "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
                "out": RowwiseParallel(input_layouts=Replicate()), "other": "packed_colwise"}
        self.assertEqual(_plans.styles(plan, Module()), {
            "embed": "embedding_rowwise", "layers.*.up": "colwise", "layers.*.down": "rowwise", "head": "colwise_gather_output",
            "out": "rowwise_split_input", "other": "packed_colwise"})
        for wrong, why in (({"a": Shard(0)}, "Shard is none of the styles"), ({"embed": ColwiseParallel()}, "RowwiseParallel"),
                           ({"layers.[01].up": ColwiseParallel()}, "no other wildcards")):
            with self.assertRaisesRegex(hocket.InputError, why):
                _plans.styles(wrong, Module())

    def test_transformers(self):
        config = types.SimpleNamespace(base_model_tp_plan={"layers.*.q_proj": "colwise"})
        model = types.SimpleNamespace(config=config, base_model_prefix="model", model=object(), _tp_plan={"lm_head": "colwise_gather_output"})
        self.assertEqual(_plans.styles(model), {"model.layers.*.q_proj": "colwise", "lm_head": "colwise_gather_output"})
        self.assertEqual(_plans.styles(config), {"layers.*.q_proj": "colwise"})

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_placements(self):
        w = numpy.zeros((4, 4), "float32")
        state = {"layers.0.up.weight": DTensor(w, 0, 0, 2), "layers.0.up.bias": DTensor(w[0], 0, 0, 2),
                 "layers.0.down.weight": DTensor(w, -1, 0, 2), "embed.weight": DTensor(w, 0, 0, 2),
                 "norm.weight": DTensor(w[0], None, 0, 2), "buffer": w}
        want = {"layers.0.up.weight": "colwise", "layers.0.up.bias": "colwise", "layers.0.down.weight": "rowwise",
                "embed.weight": "embedding_rowwise"}
        module = Module(state)
        self.assertEqual(_plans.styles(state, module), want)
        self.assertEqual(_plans.styles(None, module), want)
        self.assertEqual(_plans.styles(module), want)
        self.assertEqual(_plans.styles(None), {})
        for placements, why in (((Shard(0), Shard(1)), "2 dimensions"), ((Partial(),), "sharded or replicated")):
            t = DTensor(w, 0, 0, 2)
            t.placements = placements
            with self.assertRaisesRegex(hocket.InputError, why):
                _plans.styles({"w": t})


def program_of(weights):
    """Stands in for torch's ExportedProgram."""
    return types.SimpleNamespace(constants={}, state_dict=dict(weights), graph_signature=types.SimpleNamespace(buffers=["total"]))


def parameters():
    """The model's weights as torch has them."""
    return {n: torch.nn.Parameter(torch.tensor(v).reshape(s)) for n, (s, v) in pt2.weights().items()}


def stand_in(export):
    """A stand-in for torch.export, whose archives are pt2.py's. Those that hocket has it save have no weights."""
    def save(program, path):
        for name, t in program.state_dict.items():
            assert t.storage().size() == 1 and isinstance(t, torch.nn.Parameter), name
        pt2.write(path, state=False, blank=True)

    api = types.ModuleType("torch.export")
    api.export, api.Dim, api.save = export, lambda name: ("Dim", name), save
    return unittest.mock.patch.dict(sys.modules, {"torch": torch or types.ModuleType("torch"), "torch.export": api})


def graph_of_dynamo():
    """The model as torch.compile gives it to a backend: parameters are inputs. Also what it is called with."""
    g = torch.fx.Graph()
    weights = parameters()
    name = lambda n: "l_self_modules_" + n.removesuffix(".weight").replace(".", "_modules_") + "_parameters_weight_"
    places = {n: g.placeholder(name(n)) for n in list(weights)[:3]}
    x = g.placeholder("l_x_")
    places |= {n: g.placeholder(name(n)) for n in list(weights)[3:]}
    out = x
    for layer in range(pt2.LAYERS):
        up = g.call_function(torch.nn.functional.linear, (out, places[f"layers.{layer}.up.weight"]))
        act = g.call_function(torch.nn.functional.silu, (up,))
        out = g.call_function(torch.add, (out, g.call_function(torch.nn.functional.linear, (act, places[f"layers.{layer}.down.weight"]))))
    g.output((out,))
    inputs = list(weights.values())
    return torch.fx.GraphModule(torch.nn.Module(), g), inputs[:3] + [torch.tensor(X)] + inputs[3:]


@unittest.skipIf(numpy is None, "numpy is not installed")
class Export(unittest.TestCase):
    def setUp(self):
        self.x = numpy.array(X, "float32")
        self.want, _ = expected(X, pt2.weights())

    def gradients(self, weights, x=None):
        """Holds the gradients of the sum of squares of the model's results to torch's."""
        ours = [x, *weights.values()] if x is not None else list(weights.values())
        theirs = [t.detach().clone().requires_grad_() for t in ours]
        w = dict(zip(weights, theirs[x is not None:]))
        y = theirs[0] if x is not None else torch.tensor(X)
        for i in range(pt2.LAYERS):
            y = y + torch.nn.functional.silu(y @ w[f"layers.{i}.up.weight"].T) @ w[f"layers.{i}.down.weight"].T
        for mine, g in zip(ours, torch.autograd.grad(y.square().sum(), theirs)):
            self.assertTrue(torch.allclose(mine.grad, g, rtol=1e-4, atol=1e-4 * g.abs().max().item()))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_export(self):
        calls, weights = [], parameters()

        def export(module, args, kwargs, dynamic_shapes=None):
            calls.append((module, args, kwargs, dynamic_shapes))
            return program_of(weights)

        module = Module()
        with stand_in(export):
            m = hocket.export(module, (self.x,), plan={"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()},
                              dynamic={"x": {0: "T", 1: None}, "y": ("T",)}, ranks=2)
        self.assertEqual(calls, [(module, (self.x,), None, {"x": {0: ("Dim", "T"), 1: None}, "y": (("Dim", "T"),)})])
        self.assertTrue(numpy.allclose(m(self.x), self.want, rtol=1e-5))
        self.assertIn(f"up: f32[{pt2.LAYERS - 1}, 8/tp, 4]", m.text)
        self.assertIn(m.compare(self.x).verdict, ("exact", "within"))
        with stand_in(export):  # gradients are in .grad of the module's own parameters, though the program stacks them
            m = hocket.export(module, (self.x,), plan=PLAN, ranks=2, grad=True)
        m(self.x).square().sum().backward()
        self.gradients(weights)
        program = type("ExportedProgram", (types.SimpleNamespace,), {})(**vars(program_of(weights)))
        doubled = {n: (s, [2 * f for f in v]) for n, (s, v) in pt2.weights().items()}
        with stand_in(export):
            self.assertTrue(numpy.allclose(hocket.load(program)(self.x), self.want, rtol=1e-5))
            m = hocket.load(program, weights={n: numpy.array(v, "float32").reshape(s) for n, (s, v) in doubled.items()})
            self.assertTrue(numpy.allclose(m(self.x), expected(X, doubled)[0], rtol=1e-5))
            self.assertEqual({n: id(t) for n, t in program.state_dict.items()}, {n: id(t) for n, t in weights.items()})
            del program.state_dict["layers.1.up.weight"]
            with self.assertRaisesRegex(hocket.InputError, "there is no weight layers.1.up.weight"):
                hocket.load(program)

    @unittest.skipIf(torch is None or MODERN, "torch is not too old")
    def test_old_torch(self):
        with self.assertRaisesRegex(hocket.UnsupportedError, f"torch {torch.__version__}"):
            hocket.export(Module(), (self.x,))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_backend(self):
        def export(module, args, kwargs, dynamic_shapes=None):
            self.assertEqual(len(args), 1)
            self.assertTrue(torch.allclose(module(*args)[0].detach(), torch.tensor(self.want), rtol=1e-5))
            return program_of({n: p for n, p in module.named_parameters()})

        _compile._warned.clear()
        graph, inputs = graph_of_dynamo()
        f = hocket.compile_backend(graph, inputs, options={"ranks": 2, "plan": PLAN})
        with stand_in(export), torch.no_grad():
            f(*inputs)
        self.assertIn(f"up: f32[{pt2.LAYERS - 1}, 8/tp, 4]", f.models[False][0].text)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.no_grad():
                self.assertTrue(numpy.allclose(f(*inputs)[0], self.want, rtol=1e-5))
                for w in (w for w in inputs if w is not inputs[3]):
                    w *= 2  # in place, as an optimizer does
                doubled = {n: (s, [2 * f for f in v]) for n, (s, v) in pt2.weights().items()}
                self.assertTrue(numpy.allclose(f(*inputs)[0], expected(X, doubled)[0], rtol=1e-5))
            with stand_in(export):  # a model of its own, that goes to torch's parameters
                inputs[3].requires_grad_()
                self.want, _ = expected(X, doubled)
                f(*inputs)[0].square().sum().backward()
        self.assertEqual(caught, [])
        self.assertIn(f"up: f32[{pt2.LAYERS - 1}, 8/tp, 4]", f.models[True][0].text)
        weights = dict(zip(pt2.weights(), (p for p in inputs if p is not inputs[3])))
        self.gradients(weights, inputs[3])
        with torch.no_grad():
            for w in weights.values():
                w.grad = None
                w /= 2
        inputs[3].grad = None
        f(*inputs)[0].square().sum().backward()
        self.gradients(weights, inputs[3])

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_backend_frozen(self):
        """With gradients, weights that require none are bound again when they have changed, also stacked ones."""
        graph, inputs = graph_of_dynamo()
        weights = [w for w in inputs if w is not inputs[3]]
        for w in weights[1:]:
            w.requires_grad_(False)
        inputs[3].requires_grad_()
        f = hocket.compile_backend(graph, inputs, options={"ranks": 2, "plan": PLAN})
        with stand_in(lambda module, args, kwargs, dynamic_shapes=None: program_of(dict(module.named_parameters()))):
            for _ in range(2):
                self.assertTrue(torch.allclose(f(*inputs)[0], graph(*inputs)[0], rtol=1e-5))
                with torch.no_grad():
                    for w in weights:
                        w *= 2
        self.assertIsNotNone(f.models[True])
        f = hocket.compile_backend(graph, inputs, options={"grad": False})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.assertTrue(torch.equal(f(*inputs)[0], graph(*inputs)[0]))
        self.assertIn("a gradient is wanted, and the option grad is off", str(caught[0].message))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_names_of_parameters(self):
        graph, inputs = graph_of_dynamo()
        self.assertEqual(list(_compile.paths(graph, inputs).values()), list(pt2.weights()))
        g = torch.fx.Graph()
        for name in ("l_a_modules_up_parameters_weight_", "l_b_modules_up_parameters_weight_"):
            g.placeholder(name)
        g.output(())
        w = torch.nn.Parameter(torch.ones(1))
        self.assertEqual(_compile.paths(torch.fx.GraphModule(torch.nn.Module(), g), [w, w]), {0: "weight0", 1: "weight1"})

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_backend_falls_back(self):
        def refuse(*args, **kwargs):
            raise RuntimeError("data-dependent branch")

        _compile._warned.clear()
        graph = Module()
        with stand_in(refuse), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                f = hocket.compile_backend(graph, [self.x])
                self.assertIs(f(self.x), self.x)
            for args, options in (((self.x,), {"plan": 7}), ((self.x, 3), {})):
                hocket.compile_backend(types.SimpleNamespace(forward=lambda *args: args), args, options=options)(*args)
        self.assertEqual([str(w.message).partition(": ")[2] for w in caught],
                         ["RuntimeError: data-dependent branch", "plan is a int: give a dict of styles, the path of one in JSON, "
                          "a plan of parallelize_module, a transformers model, or a state_dict of DTensors", "the shapes of inputs vary: "
                          "torch.compile(…, dynamic=False) makes a graph for each"])

    @unittest.skipUnless(MODERN, NO_TORCH_2)
    def test_torch(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 4, bias=False)

            def forward(self, x):
                return x + self.down(torch.nn.functional.silu(self.up(x)))

        block, x = Block().eval(), torch.randn(2, 4)
        want = block(x).detach()
        m = hocket.export(block, (x,), plan={"up": "colwise", "down": "rowwise"}, ranks=2)
        self.assertTrue(torch.allclose(m(x), want, rtol=1e-5, atol=1e-6))
        grads = torch.autograd.grad(block(x).square().sum(), list(block.parameters()))
        m = hocket.export(block, (x,), plan={"up": "colwise", "down": "rowwise"}, ranks=2, grad=True)
        compiled = torch.compile(block, backend=hocket.compile_backend)
        for f in (m, compiled):
            block.zero_grad()
            f(x).square().sum().backward()
            for p, g in zip(block.parameters(), grads):
                self.assertTrue(torch.allclose(p.grad, g, rtol=1e-4, atol=1e-5))
        _compile._warned.clear()
        with torch.no_grad():
            compiled = torch.compile(block, backend=hocket.compile_backend)
            self.assertTrue(torch.allclose(compiled(x), want, rtol=1e-5, atol=1e-6))
        self.assertEqual(_compile._warned, set())

class OnGPU:
    """Stands in for a tensor of torch's on a GPU."""

    is_cuda, requires_grad, device = True, False, "cuda:0"

    def __init__(self, at, shape, dtype="torch.float32", dense=True, place=None):
        self.at, self.shape, self.dtype, self.dense = at, shape, dtype, dense
        if place:
            self.is_cuda, self.device = False, place

    def data_ptr(self):
        return self.at

    def is_contiguous(self):
        return self.dense

    def is_neg(self):
        return False

    def is_inference(self):
        return False


class Calls(unittest.TestCase):
    """Calls on GPUs, with stand-ins for torch and for the library's function that enqueues."""

    def setUp(self):
        from hocket import _cuda, _lib

        self.runs, self.forms, self.numbers = [], [], {}
        real, fresh = _lib.call, iter(range(7000, 8000))

        def call(name, *args):
            if name == "hocket_form":
                handle, ins, n, outs, k, dims = args
                ins = [(x.name, x.dtype, list(x.shape[: x.dims])) for x in ins[:n]]
                self.forms.append((ins, [x.name for x in outs[:k]], json.loads(dims)))
                return real(name, *args)
            if name != "hocket_enqueue":
                return real(name, *args)
            form, stream, at, n, place = args
            k = self.numbers.setdefault(form, len(self.numbers))
            ins, outs, dims = self.forms[k]
            self.assertEqual(n, len(ins) + len(outs))
            self.runs.append((stream, {x[0]: (at[i], *x[1:]) for i, x in enumerate(ins)},
                              {x: at[len(ins) + i] for i, x in enumerate(outs)}, dims))
            for i in range(n):
                at[i] = at[i] or 9000
            return 1

        self.written = []
        torch = types.SimpleNamespace(
            Tensor=OnGPU, is_grad_enabled=lambda: False, float32="f32",
            autograd=types.SimpleNamespace(graph=types.SimpleNamespace(increment_version=self.written.append)),
            empty=lambda shape, dtype, device: OnGPU(next(fresh), shape),
            cuda=types.SimpleNamespace(current_stream=lambda d: types.SimpleNamespace(cuda_stream=5),
                                       is_current_stream_capturing=lambda: False))
        for patch in (unittest.mock.patch.dict(sys.modules, {"torch": torch}),
                      unittest.mock.patch.object(_lib, "call", call),
                      unittest.mock.patch.object(_cuda, "is_cuda", lambda t: getattr(t, "is_cuda", False))):
            patch.start()
            self.addCleanup(patch.stop)

    def test_again(self):
        """A call like one before has its own addresses, and is checked as the first was."""
        m = hocket.load("mesh tp[1]\nfunc f(%x: f32[T], %s: inout f32[T]) -> f32[T] {\n  %y = relu %x\n"
                        "  add %s, %x into %s\n  return %y\n}\n")
        self.addCleanup(m.close)
        for at, n in ((100, 4), (200, 4), (300, 6), (400, 4)):
            state = OnGPU(at + 1, (n,))
            out = m(OnGPU(at, (n,)), state)
            stream, ins, outs, dims = self.runs.pop()
            self.assertEqual((stream, dims), (5, {"T": n}))
            self.assertEqual(ins, {b"x": (at, b"f32", [n]), b"s": (at + 1, b"f32", [n])})
            self.assertEqual([t.at for t in out], [outs[b"y"], outs[b"s"]])
            self.assertIs(out[1], state)
            self.assertEqual(self.written.pop(), state)
            self.assertEqual(out[0].shape, (n,))
        for bad, why in ((OnGPU(1, (4,), dense=False), "not contiguous"), (OnGPU(1, (4,), place="cpu"), "move it there"),
                         (OnGPU(1, (4,), "torch.complex64"), "complex64")):
            with self.assertRaisesRegex(hocket.InputError, why):
                m(bad, OnGPU(2, (4,)))
        frozen = OnGPU(2, (4,))
        frozen.hocket_readonly = "is frozen"
        with self.assertRaisesRegex(hocket.InputError, "is frozen, and the program updates it"):
            m(OnGPU(1, (4,)), frozen)
        self.assertEqual(self.runs, [])

    def test_alike(self):
        """A call like an earlier one is made without looking at names and dims, until something is bound or captured."""
        m = hocket.load("mesh tp[1]\nfunc f(%x: f32[T]) -> f32[T] {\n  %y = relu %x\n  return %y\n}\n")
        self.addCleanup(m.close)
        looked, named = [], m._named
        m._named = lambda *args: looked.append(1) or named(*args)
        for at, n, looks in ((1, 4, 1), (2, 4, 0), (3, 6, 1), (4, 6, 0), (5, 4, 0)):
            m(OnGPU(at, (n,)))
            stream, ins, outs, dims = self.runs.pop()
            self.assertEqual((len(looked), ins, dims), (looks, {b"x": (at, b"f32", [n])}, {"T": n}))
            looked.clear()
        m(x=OnGPU(6, (4,)))
        m(OnGPU(7, (4,)), dims={"T": 4})
        m._changed()  # as bind does
        m(OnGPU(8, (4,)))
        self.assertEqual((len(looked), len(self.runs)), (3, 3))
        wants = OnGPU(9, (4,))
        wants.requires_grad = True
        with unittest.mock.patch.object(sys.modules["torch"], "is_grad_enabled", lambda: True):
            with self.assertRaisesRegex(hocket.UnsupportedError, "has no gradient"):
                m(wants)
        with unittest.mock.patch.object(sys.modules["torch"].cuda, "is_current_stream_capturing", lambda: True):
            m(OnGPU(10, (4,)))
        self.assertEqual(m._world.captured, {m})
        self.assertEqual(len(self.runs), 4)

    def test_arguments_are_not_kept(self):
        import gc
        import weakref

        m = hocket.load("mesh tp[1]\nfunc f(%x: f32[T], %s: inout f32[T]) -> f32[T] {\n  %y = relu %x\n"
                        "  add %s, %x into %s\n  return %y\n}\n")
        self.addCleanup(m.close)
        args = [OnGPU(100, (4,)), OnGPU(200, (4,))]
        m(*args)
        self.written.clear()
        refs = [weakref.ref(t) for t in args]
        del args
        gc.collect()
        self.assertEqual([r() for r in refs], [None, None])

    def test_threads(self):
        """Threads that call alike have addresses of their own."""
        import threading

        m = hocket.load("mesh tp[1]\nfunc f(%x: f32[4]) -> f32[4] {\n  %y = relu %x\n  return %y\n}\n")
        self.addCleanup(m.close)
        threads = [threading.Thread(target=lambda k=k: [m(OnGPU(k, (4,))) for _ in range(50)]) for k in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(sorted(ins[b"x"][0] for _, ins, _, _ in self.runs), sorted([1, 2, 3, 4] * 50))


MLIR = """module @jit_f attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["tp"=2]>
  func.func public @main(%arg0: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %arg1: tensor<i1>, %arg2: tensor<4xf32>) -> (tensor<2x4xf32> {jax.result_info = "['y']"}, tensor<f32> {jax.result_info = "['z']"}) {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2x4xf32>
    %cst = stablehlo.constant dense<1.0> : tensor<f32>
    %cst_0 = stablehlo.constant dense<2.0> : tensor<f32>
    %1 = stablehlo.select %arg1, %cst, %cst_0 : tensor<i1>, tensor<f32>
    return %0, %1 : tensor<2x4xf32>, tensor<f32>
  }
}
"""


@unittest.skipIf(numpy is None, "numpy is not installed")
class Jax(unittest.TestCase):
    def function(self, **options):
        import fakejax

        self.seen, info = [], lambda dtype: types.SimpleNamespace(dtype=numpy.dtype(dtype))
        f = types.SimpleNamespace(text=MLIR, results={"y": info("float32"), "z": info("float32")})
        with unittest.mock.patch.dict(sys.modules, {"jax": fakejax.module(self.seen)}):
            return hocket.jax(f, **options)

    def test_call(self):
        import fakejax

        spec = fakejax.PartitionSpec(None, "tp")
        f = self.function(mesh="m", in_shardings=(spec, None, ("own",)))
        self.assertEqual(self.seen, [{"keep_unused": True, "in_shardings": (("on", "m", spec), None, ("own",))}])
        x = numpy.array(X, "float32")
        for flag, z in ((True, 1), (False, 2)):
            out = f({"x": x, "y": [numpy.array(flag)]}, numpy.zeros(4, "float32"))
            self.assertEqual((out["y"].tolist(), out["z"].tolist(), out["z"].shape), ((x + x).tolist(), z, ()))
        m = f.model({"x": x, "y": [numpy.array(flag)]}, numpy.zeros(4, "float32"))
        self.assertEqual(m.proof, "proved")
        self.assertIn("%arg0: f32[2, 4/tp]", m.text)
        self.assertIs(m, f.model({"x": x, "y": [numpy.array(True)]}, numpy.zeros(4, "float32")))
        with self.assertRaisesRegex(hocket.InputError, "names axes: give hocket.jax their mesh"):
            self.function(in_shardings=(spec,))

    def test_foreign(self):
        """On GPUs JAX calls hocket by XLA, for each rank with its blocks."""
        import fakejax
        from hocket import _jax

        calls, info = [], lambda dtype: types.SimpleNamespace(dtype=numpy.dtype(dtype))
        text = MLIR.replace("stablehlo.add %arg0, %arg0 :", "stablehlo.add %arg0, %table :").replace(  # a constant is a parameter
            "%0 = stablehlo.add", "%table = stablehlo.constant dense<[[1.0, 2.0, 3.0, "
            "4.0], [5.0, 6.0, 7.0, 8.0]]> : tensor<2x4xf32>\n    %0 = stablehlo.add")
        f = types.SimpleNamespace(text=text, results={"y": info("float32"), "z": info("float32")})
        api = fakejax.gpus(fakejax.module([]), calls)
        args = numpy.array(X, "float32"), numpy.array(True), numpy.zeros(4, "float32")
        with unittest.mock.patch.dict(sys.modules, {"jax": api}), unittest.mock.patch.object(_jax._world, "init"), \
                unittest.mock.patch.object(_jax, "_registered", []):
            g = hocket.jax(f, mesh=fakejax.Mesh(dp=1, tp=2), graph=False)
            self.assertEqual(sorted(g(*args)), ["y", "z"])
            spec = fakejax.PartitionSpec
            self.assertEqual(calls[:2], [("hocket", "CUDA"), (("dp", "tp"), (spec(None, ("tp",)), spec(), spec(None)),
                                                              (spec(None, None), spec()))])
            name, results, shapes, attributes = calls[2]
            self.assertEqual((name, results, shapes), ("hocket", [((2, 4), "float32"), ((), "float32")], [(2, 4), (), (4,)]))
            self.assertEqual(attributes["foreign"].dtype, "int64")
            with self.assertRaisesRegex(hocket.InputError, "2 ranks: give hocket.jax a mesh of as many devices"):
                hocket.jax(f, graph=False)(*args)

    def test_xla(self):
        """The foreign function, called as XLA does in version 0.1 of its interface: sizes and places are of its header."""
        import ctypes as c

        word = lambda *values: (c.c_int64 * len(values))(*values)
        at = lambda x: c.addressof(x) if x is not None else 0
        lib, messages = hocket._lib.lib(), []
        xla = lib.hocket_xla
        xla.restype, xla.argtypes = c.c_void_p, [c.c_void_p]

        @c.CFUNCTYPE(c.c_void_p, c.c_void_p)
        def create_error(args):  # size, extensions, message, code
            self.assertEqual(c.c_int64.from_address(args).value, 32)
            messages.append((c.c_char_p.from_address(args + 16).value.decode(), c.c_int.from_address(args + 24).value))
            return 77

        @c.CFUNCTYPE(c.c_void_p, c.c_void_p)
        def get_stream(args):  # size, extensions, context, stream
            self.assertEqual(c.c_int64.from_address(args + 16).value, 55)
            c.c_int64.from_address(args + 24).value = 4321
            return None

        address = lambda f: c.cast(f, c.c_void_p).value
        api = word(0, 0, 24, 0, 1, 0, address(create_error), 0, 0, 0, address(get_stream))

        def frame(stage, ins, outs, foreign, extensions=None):
            """Words of a call frame, and what they point to."""
            keep = []

            def hold(x):
                keep.append(x)
                return at(x)

            def buffers(all):
                items = [hold(word(48, 0, 11, hold(b), 1, hold(word(len(b) // 4)))) for b in all]
                return [40, 0, len(all), hold((c.c_int * len(all))(*[1] * len(all))), hold(word(*items))]

            name = c.create_string_buffer(b"foreign")
            attribute = word(5, hold(word(foreign)))  # S64
            attributes = [48, 0, 1, hold((c.c_int * 1)(3)), hold(word(hold(word(hold(name), 7)))), hold(word(hold(attribute)))]
            keep.append(word(128, at(extensions), at(api), 55, stage, *buffers(ins), *buffers(outs), *attributes))
            return keep

        def call(*args):
            keep = frame(*args)  # until the call is over
            return xla(at(keep[-1]))

        version = word(24, 0, -1)  # size, extensions, major and minor
        metadata = word(40, *version, 9)
        extension = word(32, 1, 0, at(metadata))
        self.assertIsNone(call(3, [], [], 0, extension))
        self.assertEqual((metadata[3], metadata[4] & 0xFFFFFFFF), (1 << 32, 0))  # version 0.1, no traits

        m = hocket.load("mesh tp[1]\nfunc f(%x: f32[2]) -> f32[2] {\n  %y = relu %x\n  return %y\n}\n")
        options = lambda **o: json.dumps({"ranks": 1, "in": ["x"], "out": ["y"], **o}).encode()
        number = hocket._lib.call("hocket_foreign", m._handle, options())
        x, y = c.create_string_buffer(8), c.create_string_buffer(8)
        self.assertIsNone(call(1, [x], [y], number.value))  # it only prepares
        for ins, foreign, why in (([x], number.value, "unsupported"), ([x, x], number.value, "2 parameters and 1 results"),
                                  ([x], 1 << 40, "handle")):
            self.assertEqual(call(3, ins, [y], foreign), 77)
            message, code = messages.pop()
            self.assertIn(why, message)
            self.assertEqual(code, 13)
        with self.assertRaises(hocket.InputError):
            hocket._lib.call("hocket_foreign", m._handle, options(ranks=0))
        m.close()

    def test_text(self):
        with hocket.load(MLIR.replace("tp\"=2", "tp\"=1"), ranks=1) as m:
            self.assertEqual(m.inputs, ["arg0", "arg1", "arg2"])
        with self.assertRaisesRegex(hocket.UnsupportedError, "^program.hkt:4: stablehlo.fft"):
            hocket.load(MLIR.replace("stablehlo.add %arg0, %arg0", "stablehlo.fft %arg0"))
        with self.assertRaisesRegex(hocket.InputError, "malformed"):
            hocket.load(MLIR.replace("%arg0, %arg0", "%arg0, %arg9"))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "member":
        globals()["member_" + sys.argv[2]](sys.argv[3])
        sys.exit()
    unittest.main()
