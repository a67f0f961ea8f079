"""Tests of bound and loaded weights, on the CPU machine. HOCKET_LIBRARY names what is tested.

Run alone: python3 python/tests/test_weights.py. Tests of several processes start this file again as their members.
"""

import pathlib
import sys
import tempfile
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


if __name__ == "__main__":
    processes.main(globals(), unittest)
