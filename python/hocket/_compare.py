"""Results of comparisons."""

import collections

Error = collections.namedtuple("Error", "name error largest quotient")
Error.__doc__ = """The error of a result: its largest error, the largest value of the reference, and the quotient of both."""

Layer = collections.namedtuple("Layer", "name line verdict error largest quotient")
Layer.__doc__ = """The error of a layer whose inputs are those of the reference: the error of the layer's result with
the largest quotient. ``line`` is the line of Model.text at which the layer begins."""


class Difference(collections.namedtuple("Difference", "name mean largest rms same_largest rows")):
    """The difference between a result of a quantized model and that of the unquantized model: the mean and the largest
    absolute difference, the root mean square of the unquantized result, and the number of rows, out of ``rows``, whose
    largest element has the same position in both."""

    def __str__(self):
        return (f"%{self.name} differs from the unquantized model by {self.mean:.4g} on average, {self.largest:.4g} at "
                f"most; its root mean square is {self.rms:.4g}; the largest element is the same in {self.same_largest} of "
                f"{self.rows} rows")


class Comparison:
    """The comparison of a model with the reference evaluator and, if one was passed, with a torch module. ``verdict``
    is exact, within, undecided or differs. It is the verdict of the comparison with the reference evaluator, unless the
    module's results differ by more than ``module.tolerance``: then it is differs. ``detail`` describes the verdict in a
    sentence; ``results`` and ``layers`` are lists of Error and of Layer, and ``module`` a list of Error against a torch
    module, or None."""

    def __init__(self, found, module=None):
        self.verdict, self.detail, self.module = found["verdict"], found["detail"], module
        if module is not None:
            verdict, text = module.judged()
            if verdict == "differs" and self.verdict != "differs":
                self.verdict, self.detail = "differs", f"{text}; with the reference evaluator: {self.detail}"
            elif verdict == "undecided" and self.verdict != "differs":
                self.verdict, self.detail = "undecided", f"{text}; with the reference evaluator: {self.detail}"
            else:
                self.detail += "; " + text
        self.results = [_error(m) for m in found["results"]]
        self.layers = []
        for layer in found["layers"]:
            worst = max((_error(m) for m in layer["results"]), key=lambda e: e.quotient)
            self.layers.append(Layer(layer["name"], layer["line"], layer["verdict"], *worst[1:]))

    def __iter__(self):
        return iter(self.layers)

    def __len__(self):
        return len(self.layers)

    @property
    def worst(self):
        """Returns the layer with the largest quotient; None if the model has no layers."""
        return max(self.layers, key=lambda layer: layer.quotient, default=None)

    def __str__(self):
        lines = [self.detail]
        for what, errors in (("result", self.results), ("module", self.module or []), ("layer", self.layers)):
            for e in errors:
                lines.append(f"{what} {e.name}: largest error {e.error:.3g}, values up to {e.largest:.3g}, quotient {e.quotient:.3g}")
        return "\n".join(lines)


def _error(m):
    error = float("inf") if m["error"] is None else m["error"]
    return Error(m["name"], error, m["largest"], _quotient(error, m["largest"]))


def _quotient(error, largest):
    if error == 0:
        return 0.0
    return error / largest if largest else float("inf")


class Against(list):
    """A list of Error against a torch module. ``tolerance`` is the largest quotient that counts as rounding: the square root
    of the epsilon of the least precise type of the results and of the module's parameters. ``missing`` is the number of
    results that the module did not return."""

    tolerance, missing = 0.0, 0

    def judged(self):
        """Returns the verdict, within, undecided or differs, and a sentence."""
        if not self:
            return "undecided", "not compared with the module, which returned no tensors"
        worst = max(self, key=lambda e: e.quotient)
        sizes = f"{worst.name}: largest error {worst.error:.3g}, values up to {worst.largest:.3g}, quotient {worst.quotient:.3g}"
        if worst.quotient > self.tolerance:
            return "differs", f"differs from the module ({sizes}, more than {self.tolerance:.2g})"
        rest = f", which did not return the last {self.missing} results" if self.missing else ""
        return "within", f"matches the module within rounding ({sizes}, at most {self.tolerance:.2g}){rest}"


def of_module(module, args, kwargs):
    """Returns the results of a torch module."""
    import torch

    with torch.no_grad():
        return module(*args, **kwargs)


def copies(out):
    """Returns the results of a model as arrays of doubles that do not depend on the model; None for integers."""
    return [_doubles(t) for t in tensors(out)]


def _doubles(t):
    """Returns a torch tensor or a numpy array as doubles on the host, or None if it is of integers."""
    if hasattr(t, "detach"):
        return t.detach().double().cpu() if t.is_floating_point() else None
    return None if t.dtype.kind in "iub" else t.astype("float64")


def differences(got, want):
    """Returns the differences between the results of a quantized model and copies of those of the unquantized one."""
    found = []
    for i, (g, w) in enumerate(zip(copies(got), want)):
        if g is None or w is None or 0 in tuple(g.shape):
            continue
        columns = g.shape[-1] if len(g.shape) else 1
        g, w = g.reshape(-1, columns), w.reshape(-1, columns)
        off = abs(g - w)
        found.append(Difference(f"out{i}", float(off.mean()), float(off.max()), float((w * w).mean()) ** 0.5,
                                int((g.argmax(-1) == w.argmax(-1)).sum()), g.shape[0]))
    return found


def against_module(got, module, args, kwargs):
    """Returns the differences between results and those of a torch module for the same arguments, as Against."""
    import torch

    with torch.no_grad():
        want = tensors(module(*args, **kwargs))
    got = tensors(got)
    errors = Against()
    errors.missing = max(len(got) - len(want), 0)
    types = [t.dtype for t in list(want) + list(getattr(module, "parameters", list)()) if t.dtype.is_floating_point]
    errors.tolerance = max((torch.finfo(t).eps for t in types), default=0.0) ** 0.5
    for i, (g, w) in enumerate(zip(got, want)):
        if tuple(g.shape) != tuple(w.shape):
            errors.append(Error(f"out{i} {list(g.shape)}, {list(w.shape)} in the module", float("inf"), 0.0, float("inf")))
            continue
        g, w = g.detach().double().cpu(), w.detach().double().cpu()
        same = (g == w) | (g.isnan() & w.isnan())
        error = torch.where(same, torch.zeros_like(g), (g - w).abs()).nan_to_num(nan=float("inf"))
        most = w.abs()[w.isfinite()]
        largest = float(most.max()) if most.numel() else 0.0
        error = float(error.max()) if error.numel() else 0.0
        errors.append(Error(f"out{i}", error, largest, _quotient(error, largest)))
    return errors


def tensors(out):
    """Returns the tensors in the value that a module has returned, in order."""
    if hasattr(out, "to_tuple"):  # transformers' outputs
        out = out.to_tuple()
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, (list, tuple)):
        return [t for part in out for t in tensors(part)]
    return [out] if hasattr(out, "shape") else []
