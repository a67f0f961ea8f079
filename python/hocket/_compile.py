"""The backend "hocket" of torch.compile. The wheel registers it by an entry point; without the wheel:

    torch.compile(block, backend=hocket.compile_backend)
"""

import functools
import re
import warnings

from . import _autograd, _export, _plans, _weights
from ._errors import Error, UnsupportedError

_warned = set()


def compile_backend(graph, example_inputs, *, mode=None, options=None):
    """Compiles a torch graph at its first call. If hocket does not support the graph, torch runs it, and a warning
    gives the reason, once for each reason. ``options`` are the options of load, including ``plan``."""
    return Compiled(graph, dict(options or {}))


class Compiled:
    """A graph that hocket runs. torch passes the parameters of modules as inputs of each call. They are bound as weights
    of the model, and bound again after they have changed."""

    def __init__(self, graph, options):
        self.graph, self.options = graph, options
        self.paths, self.models = {}, {}  # of models, one for calls with gradients and one for others

    def __call__(self, *args):
        """Runs the graph with hocket, or with torch if hocket does not support the graph."""
        grad = _autograd.wanted(*args)
        if grad not in self.models:  # the first call; torch traces no longer, and arguments are real
            self.models[grad] = None
            try:
                self.models[grad] = self._compile(args, grad)
            except Exception as e:  # torch.export raises many kinds, and the graph can still run
                refused(e)
        if self.models[grad] is None:
            return self.graph.forward(*args)
        model, bound = self.models[grad]
        if (now := self._versions(args, grad)) != bound:
            _weights.bind(model, {path: args[i] for i, path in self.paths.items()}, True)
            self.models[grad] = model, now
        rest = (a for i, a in enumerate(args) if i not in self.paths)
        out = model(*((a if grad else a.detach()).contiguous() if hasattr(a, "detach") else a for a in rest))
        return out if isinstance(out, tuple) else (out,)

    def _compile(self, args, grad):
        if any(isinstance(a, (int, float)) for a in args):
            raise UnsupportedError("the shapes of inputs vary: torch.compile(…, dynamic=False) makes a graph for each")
        self.paths = paths(self.graph, args)
        module = holder(self.graph, args, self.paths) if self.paths else self.graph
        options = dict(self.options)
        if grad and not options.setdefault("grad", True):
            raise UnsupportedError("a gradient is wanted, and the option grad is off")
        options["grad"] = grad and options["grad"]
        plan = _plans.styles(options.pop("plan", None), module)
        inputs = [a.detach() if hasattr(a, "detach") else a for i, a in enumerate(args) if i not in self.paths]
        program = _export.exported(module, inputs)
        model = _export.load_exported(program, "graph.pt2", plan=plan, **options)
        if grad:
            given = [n for n, a in zip(model.inputs, (a for i, a in enumerate(args) if i not in self.paths)) if
                     getattr(a, "requires_grad", False)]
            model._gradient.check(given)
        return model, self._versions(args, grad)

    def _versions(self, args, grad):
        """Values that change when weights must be bound again: weights that require gradients are bound directly, other
        weights may be bound as copies."""
        return [id(w) if grad and w.requires_grad else (w.data_ptr(), None if w.is_inference() else w._version)
                for w in (args[i] for i in self.paths)]


def paths(graph, inputs):
    """The module paths of inputs that are parameters, by the inputs' positions. torch names a placeholder as
    l_self_modules_0_modules_up_parameters_weight_."""
    found = {}
    places = [n for n in graph.graph.nodes if n.op == "placeholder"] if hasattr(graph, "graph") else []
    for i, (place, x) in enumerate(zip(places, inputs)):
        if "Parameter" in [c.__name__ for c in type(x).__mro__]:
            _, *parts = re.split("_modules_|_parameters_", str(place.target))
            found[i] = ".".join(part.rstrip("_") for part in parts)
    known = list(found.values())
    if not all(known) or any(a != b and (b + ".").startswith(a + ".") for a in known for b in known) or len(set(known)) < len(known):
        return {i: f"weight{i}" for i in found}
    return found


def holder(graph, inputs, paths):
    """A module that holds those inputs of a graph that are parameters; its calls take the other inputs."""
    import torch

    class Holder(torch.nn.Module):
        def forward(self, *args):
            rest = iter(args)
            own = {i: functools.reduce(getattr, path.split("."), self) for i, path in paths.items()}
            return self._graph(*(own[i] if i in own else next(rest) for i in range(len(inputs))))

    top = Holder()
    top.add_module("_graph", graph)
    for i, path in paths.items():
        *modules, name = path.split(".")
        at = top
        for part in modules:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        at.register_parameter(name, inputs[i])
    return top


def refused(why):
    """Warns that torch runs a graph, once for each reason."""
    why = str(why) if isinstance(why, (str, Error)) else f"{type(why).__name__}: {why}"
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"torch runs this graph itself, since hocket refuses it: {why}", RuntimeWarning, stacklevel=3)
