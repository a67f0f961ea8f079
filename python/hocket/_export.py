"""torch.export, and loading what it gives."""

import importlib
import os
import tempfile

from . import _plans
from ._errors import UnsupportedError


def export(module, args=(), kwargs=None, *, plan=None, dynamic=None, **options):
    """Exports a torch module with torch.export, and loads the result: a Model with the module's weights.

    ``args`` and ``kwargs`` are example inputs. ``plan`` lays out the weights: see load. Without one, weights that are
    DTensors keep their placements, and others are whole on each rank. ``dynamic`` is torch.export's dynamic_shapes,
    where a string may stand for a Dim of that name: ``{"input_ids": {1: "T"}}``. Options are those of load.

        m = hocket.export(model.eval(), (input_ids,), plan=model, ranks=2)
        logits = m(input_ids)
    """
    styles = _plans.styles(plan, module)
    with tempfile.TemporaryDirectory() as folder:
        return load_exported(exported(module, args, kwargs, dynamic), os.path.join(folder, name_of(module)), plan=styles, **options)


def name_of(module):
    """The file of a module's archive, which is in messages."""
    return type(module).__name__.lower() + ".pt2"


def torch_export():
    """The module torch.export; an error if torch is too old."""
    torch = importlib.import_module("torch")
    try:
        return importlib.import_module("torch.export")
    except ImportError:
        raise UnsupportedError(f"this is torch {torch.__version__}, which has no torch.export: 2.5 or newer has it") from None


def exported(module, args, kwargs=None, dynamic=None):
    """torch's ExportedProgram of a module, whose DTensors are gathered for that."""
    api = torch_export()
    with _whole(module):
        return api.export(module, tuple(args), kwargs, dynamic_shapes=_dims(dynamic, api.Dim))


def load_exported(program, path, **options):
    """Saves an ExportedProgram and loads it."""
    from . import _model

    torch_export().save(program, path)
    return _model.load(path, **options)


def _dims(shapes, dim):
    """Dynamic shapes in which names of dims are made Dims, one for each name."""
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
    """Has a module's DTensors replaced by whole tensors."""

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
