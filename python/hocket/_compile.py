"""The backend "hocket" of torch.compile. The wheel registers it by an entry point; without the wheel:

    torch.compile(block, backend=hocket.compile_backend)
"""

import os
import tempfile
import warnings

from . import _export, _plans
from ._errors import Error

_warned = set()


def compile_backend(graph, example_inputs, *, mode=None, options=None):
    """Compiles a graph of torch's. One that hocket refuses runs as torch runs it; a warning says why, once for each
    reason. ``options`` are those of load, with ``plan``."""
    try:
        model = _compiled(graph, example_inputs, dict(options or {}))
    except Exception as e:  # torch.export raises many kinds, and the graph can still run
        refused(e)
        return graph.forward
    return lambda *args: run(model, graph, args)


def _compiled(graph, example_inputs, options):
    options["plan"] = _plans.styles(options.get("plan"), graph)
    program = _export.exported(graph, example_inputs)
    with tempfile.TemporaryDirectory() as folder:
        return _export.load_exported(program, os.path.join(folder, "graph.pt2"), **options)


def run(model, graph, args):
    """Runs a graph by hocket; by torch where gradients are wanted."""
    import torch

    if torch.is_grad_enabled() and any(getattr(a, "requires_grad", False) for a in args):
        refused("gradients are wanted, and hocket computes none: call it under torch.no_grad()")
        return graph.forward(*args)
    out = model(*(a.detach().contiguous() if hasattr(a, "detach") else a for a in args))
    return out if isinstance(out, tuple) else (out,)


def refused(why):
    """Warns that torch runs a graph, once for each reason."""
    why = str(why) if isinstance(why, (str, Error)) else f"{type(why).__name__}: {why}"
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"torch runs this graph itself, since hocket refuses it: {why}", RuntimeWarning, stacklevel=3)
