"""hocket for Python: programs and collectives on tensors, in one process or several.

    import hocket

    mlp = hocket.load("mlp.hkt", dims={"T": 256})
    y = mlp(x=x, w1=w1, w2=w2)              # whole tensors where this process is alone

Under torchrun, mpirun, srun or "hocket launch" every process calls ``hocket.init()`` and makes the same calls from
there on. Arguments and results of programs are then this rank's blocks, and collectives are

    hocket.all_reduce(t, op="sum")          # in place
    y = hocket.all_gather(t)

Tensors are those of torch or numpy, or objects with ``__dlpack__`` or the buffer protocol, dense and in host memory;
torch and numpy are not required. Results are tensors of the library that the first argument belongs to. Errors are
raised as subclasses of ``hocket.Error`` with hocket's message.
"""

from ._collectives import (
    adopt, all_gather, all_gather_v, all_reduce, all_reduce_rms_norm, all_to_all, all_to_all_v, barrier, broadcast, empty,
    reduce_scatter, reduce_scatter_v, replicate, synchronize,
)
from ._commands import check, explain, info
from ._errors import (
    Cancelled, ClosedError, DeviceLostError, DisagreeError, Error, InputError, MachineError, OutOfMemoryError,
    PeerError, ProgramError, UnsupportedError,
)
from ._compare import Comparison
from ._compile import compile_backend
from ._export import export
from ._jax import jax
from ._model import Model, load
from ._world import Group, init, is_initialized, new_group, rank, shutdown, world_size

__all__ = [
    "Cancelled", "ClosedError", "Comparison", "DeviceLostError", "DisagreeError", "Error", "Group", "InputError", "MachineError", "Model",
    "OutOfMemoryError", "PeerError", "ProgramError", "UnsupportedError", "adopt", "all_gather", "all_gather_v", "all_reduce",
    "all_reduce_rms_norm", "all_to_all", "all_to_all_v", "barrier", "broadcast", "check", "compile_backend", "empty", "explain", "export", "info", "init",
    "is_initialized", "jax", "load", "new_group", "rank", "reduce_scatter", "reduce_scatter_v", "replicate", "shutdown", "synchronize", "world_size",
]

try:
    from ._build import VERSION as __version__  # of a wheel: python/build_wheel.py writes the module
except ImportError:
    def __getattr__(name):
        """``__version__`` in a checkout is that of the library, which is loaded for it."""
        if name == "__version__":
            from ._lib import build
            return build().partition("+")[0]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
