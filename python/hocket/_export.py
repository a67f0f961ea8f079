"""Exports of torch modules, and loading them."""

import contextlib
import importlib
import os
import tempfile
import warnings
import weakref

from . import _cuda, _plans, _world
from ._errors import Error, UnsupportedError


def export(module, args=(), kwargs=None, *, plan=None, dynamic=None, **options):
    """Exports a torch module with torch.export, and loads the result: a Model with the module's weights.

    ``args`` and ``kwargs`` are example inputs. ``plan`` and ``shard`` set the layouts of the weights: see load. Without
    them, weights that are DTensors keep their placements, and others are whole on each rank. ``dynamic`` is
    torch.export's dynamic_shapes, where a string may stand for a Dim of that name: ``{"input_ids": {1: "T"}}``. Options
    are those of load.

        m = hocket.export(model.eval(), (input_ids,), plan=model, ranks=2)
        logits = m(input_ids)

    A module on a GPU opens the CUDA machine. The module's weights are used in place on the GPU if each process has one
    rank, except layers that the program stacks, which are copied on the GPU. The model uses the weights as they are
    now: export the module again if they change.
    """
    styles = _plans.styles(plan, module)
    return load_exported(exported(module, args, kwargs, dynamic), name_of(module), plan=styles,
                         original=weakref.ref(module), **options)


def name_of(module):
    """Returns the name of a module's archive in messages."""
    return type(module).__name__.lower() + ".pt2"


def torch_export():
    """Returns the module torch.export. Raises an error if torch is too old."""
    torch = importlib.import_module("torch")
    try:
        return importlib.import_module("torch.export")
    except ImportError:
        raise UnsupportedError(f"this is torch {torch.__version__}, which has no torch.export: 2.9 or newer has it") from None


def exported(module, args, kwargs=None, dynamic=None):
    """Exports a module, whose DTensors are gathered meanwhile, and returns the ExportedProgram."""
    api = torch_export()
    with _whole(module):
        return api.export(module, tuple(args), kwargs, dynamic_shapes=_dims(dynamic, api.Dim))


def load_exported(program, name, weights=None, original=None, **options):
    """Loads an ExportedProgram. ``original`` returns the module that was exported. The module's weights are bound to
    the model directly: the archive that is written for the library does not contain them, unless files with other
    weights are passed."""
    from . import _model

    files = isinstance(weights, (str, os.PathLike, list, tuple))
    own = None if files else {**program.constants, **program.state_dict}
    if any(_cuda.is_cuda(t) for t in (own or {}).values()):
        _world.init("cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        with contextlib.nullcontext() if files else _hollow(program):
            torch_export().save(program, path)
        try:
            return _model.load_archive(path, own, weights=weights, original=original, **options)
        except Error as e:
            e.args = (str(e).replace(folder + os.sep, ""),)
            raise


def _dims(shapes, dim):
    """Dynamic shapes in which each name of a dim is replaced by a Dim, the same one for equal names."""
    known = {}

    def one(x, inside):
        if isinstance(x, dict):
            return {k: one(v, True) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return type(x)(one(v, True) for v in x)
        if isinstance(x, str) and inside:
            if x not in known:
                known[x] = dim(x)
            return known[x]
        return x

    return one(shapes, False)


class _whole:
    """Replaces a module's DTensors by whole tensors while the context is active."""

    def __init__(self, module):
        self._split = [(m, name, p) for m in (module.modules() if hasattr(module, "modules") else ())
                       for name, p in m._parameters.items() if hasattr(p, "full_tensor")]

    def __enter__(self):
        if self._split:
            from torch.nn import Parameter as parameter
        for m, name, p in self._split:
            m._parameters[name] = parameter(p.detach().full_tensor(), requires_grad=False)

    def __exit__(self, *_):
        for m, name, p in self._split:
            m._parameters[name] = p


@contextlib.contextmanager
def _hollow(program):
    """Replaces the weights in an ExportedProgram by tensors of the same shapes that occupy one element of memory, so
    that save writes them quickly. Tied weights still are. Buffers are not replaced, because the program may depend on
    their values."""
    import torch

    buffers, memory = set(program.graph_signature.buffers), {}
    weights = {name: t for name, t in program.state_dict.items() if name not in buffers}
    for name, t in weights.items():
        key = t.data_ptr() or id(t), t.shape, t.stride(), t.dtype
        one = memory.setdefault(key, torch.zeros(1, dtype=t.dtype)).as_strided(t.shape, (0,) * t.dim())
        if isinstance(t, torch.nn.Parameter):
            one = torch.nn.Parameter(one, requires_grad=False)
        program.state_dict[name] = one
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No complete tensor found")
            yield
    finally:
        program.state_dict.update(weights)
