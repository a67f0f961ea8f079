"""Implementations for DDLB (github.com/samnordmann/ddlb), the benchmark of distributed matrix products: all-gather then
matmul (tp_columnwise) and matmul then reduce-scatter (tp_rowwise).

DDLB's runner finds implementations in a table in ddlb/benchmark.py. Add to it

    'hocket': ('hocket.ddlb', 'HocketTPColumnwise'),    # under tp_columnwise
    'hocket': ('hocket.ddlb', 'HocketTPRowwise'),       # under tp_rowwise

and start it by mpirun or srun, as its README says. Options: ``strategy`` (of ``hocket.load``: sequential, chunked,
chunked(4), exchange, ahead, delayed, auto) and ``graph`` (a run is a replay of a torch CUDA graph). Of tp_columnwise ``gather`` is
"operand", as of DDLB's own implementations: A is gathered, and each rank computes all rows; or "result": each rank
computes its rows, which are gathered.
"""

import sys

import hocket
from hocket import _cuda

try:
    from ddlb.primitives.TPColumnwise import TPColumnwise
    from ddlb.primitives.TPRowwise import TPRowwise
except ImportError as e:
    raise ImportError("hocket.ddlb extends the package ddlb: install it from github.com/samnordmann/ddlb") from e

_DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
_HEAD = "dim M = {m}\ndim N = {n}\ndim K = {k}\ndim R = {size}\nmesh tp[R]\n"
_COLUMNWISE = _HEAD + """func columnwise(%a: {t}[M/tp, K], %b: {t}[K, N]) -> {t}[M, N] {{
  %y = matmul %a, %b
  return %y
}}
"""
_GATHERED = _HEAD + """func columnwise(%a: {t}[M/tp, K], %b: {t}[K, N]) -> {t}[M, N] {{
  %g: {t}[M, K] = reshard %a
  %y = matmul %g, %b
  return %y
}}
"""
_ROWWISE = _HEAD + """func rowwise(%a: {t}[M, K/tp], %b: {t}[K/tp, N]) -> {t}[M/tp, N] {{
  %y = matmul %a, %b
  return %y
}}
"""


class _Hocket:
    """The common part of both implementations: a program whose second operand is used in place on a GPU."""

    DEFAULT_OPTIONS = {"strategy": "auto", "graph": False}
    ALLOWED_VALUES = {"graph": [True, False]}
    def program(self):
        """The text, without sizes and type."""
        raise NotImplementedError

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        t = _DTYPES.get(self.dtype)
        if t is None:
            raise ValueError(f"hocket's matmul takes {', '.join(_DTYPES)}, not {self.dtype}")
        size = self.communicator.world_size
        hocket.init("cuda" if _cuda.is_cuda(self.A) else None)
        if hocket.world_size() != size:
            raise RuntimeError(f"DDLB has {size} processes, and hocket {hocket.world_size()}: start both by one launcher")
        self.operands = {"a": self.A.contiguous(), "b": self.B.contiguous()}
        text = self.program().format(m=self.m, n=self.n, k=self.k, size=size, t=t)
        self.model = hocket.load(text, strategy=self.options["strategy"])
        if _cuda.is_cuda(self.B):
            self.model.bind("b", self.operands.pop("b"))
        self.replay = None
        if self.options["graph"]:
            self._capture()

    def _capture(self):
        torch = sys.modules["torch"]
        self.model(**self.operands)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.result = self.model(**self.operands)
        self.replay = graph.replay

    def run(self):
        """Enqueues one product; later work on torch's current stream can use the result."""
        if self.replay is None:
            return self.model(**self.operands)
        self.replay()
        return self.result


class HocketTPColumnwise(_Hocket, TPColumnwise):
    """All-gather and matmul: A[m / ranks, k] of each rank by B[k, n]; all ranks get [m, n]."""

    DEFAULT_OPTIONS = {**_Hocket.DEFAULT_OPTIONS, "gather": "operand"}
    ALLOWED_VALUES = {**_Hocket.ALLOWED_VALUES, "gather": ["operand", "result"]}

    def program(self):
        return _GATHERED if self.options["gather"] == "operand" else _COLUMNWISE


class HocketTPRowwise(_Hocket, TPRowwise):
    """Matmul and reduce-scatter: A[m, k / ranks] by B[k / ranks, n]; each rank gets [m / ranks, n]."""

    def program(self):
        return _ROWWISE
