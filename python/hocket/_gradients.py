"""Gradients of programs for torch's autograd: load(…, grad=True).

The gradient of a program is two programs. The first program computes the results and the values that the second program
needs; the second computes the gradients of parameters. Both programs are loaded at the first call that needs gradients
of the same parameters."""

import functools
import json
import sys
import weakref

from . import _lib
from ._errors import InputError, UnsupportedError

KEEPS = {True: "all", "all": "all", "auto": "auto", "inputs": "inputs"}


class Gradient:
    """The gradients of a model. The function ``load`` loads the text of a program with the options of the model."""

    def __init__(self, model, keep, load):
        if keep not in KEEPS:
            raise InputError(f"grad is {keep!r}: True, {', '.join(repr(k) for k in KEEPS if k is not True)} are taken")
        self._model, self._keep, self._load = weakref.proxy(model), KEEPS[keep], load
        self._leaves, self._parts = {}, {}

    def bind(self, name, leaf):
        """Makes calls use, for a parameter, the value that the function ``leaf`` returns; None undoes this. ``leaf`` is
        called for each call, so that it returns the current value and autograd records how the value is computed."""
        self._leaves.pop(name, None)
        if leaf is not None:
            self._leaves[name] = leaf

    def check(self, given):
        """Refuses a program that has no gradient for arguments of these names and bound tensors."""
        self.parts(tuple(n for n in self._model._parameters() if n in given or n in self._leaves))

    def arguments(self, given):
        """Returns the arguments of a call, including bound tensors that require gradients."""
        return {**{n: leaf() for n, leaf in self._leaves.items() if n not in given}, **given}

    def parts(self, wrt):
        """The two programs for gradients of some parameters."""
        if wrt not in self._parts:
            made = json.loads(_lib.call_text("hocket_gradient", self._model._handle, json.dumps(
                {"wrt": wrt, "keep": self._keep}).encode()))
            self._parts[wrt] = _Parts(self._load(made["forward"]), self._load(made["backward"]), made)
        return self._parts[wrt]

    def run(self, given, bound, dims):
        """Runs the program so that autograd can compute gradients. ``bound`` has the other parameters."""
        torch, model = sys.modules["torch"], self._model
        if model._gather:
            raise InputError("results that are gathered have no gradient: load without gather=True, and call "
                             "hocket.all_gather")
        given = {**{n: getattr(b, "tensor", b) for n, b in bound.items()}, **given}
        missing = [n for n in model._parameters() if n not in given]
        if missing and "weights" in model._about:
            raise UnsupportedError(f"{missing[0]} is the archive's own: for gradients give all weights to load, as "
                                   "weights=dict(module.named_parameters())")
        files = [n for n in missing if n in model._loaded]
        if files:
            raise UnsupportedError(f"{files[0]} is a weight of a file, and the programs of gradients have weights from their calls: "
                                   "give load its tensors by name, or bind it")
        names = [n for n, t in given.items() if isinstance(t, torch.Tensor)]
        wrt = tuple(n for n in model._parameters() if n in names and given[n].requires_grad)
        if not model._several():
            dims = {**model._dims_of({n: t.shape for n, t in given.items() if hasattr(t, "shape")}), **(dims or {})}
        call = _Call(self.parts(wrt), wrt, names, {n: t for n, t in given.items() if n not in names}, dims)
        return _function().apply(call, *(given[n] for n in names))

    def close(self):
        """Unloads the programs."""
        parts, self._parts, self._leaves = self._parts, {}, {}
        for p in parts.values():
            p.forward.close()
            p.backward.close()


class _Parts:
    def __init__(self, forward, backward, made):
        self.forward, self.backward, self.results = forward, backward, made["results"]
        self.takes = [(n, t["of"], t["index"]) for n, t in zip(backward._parameters(), made["takes"])]


class _Call:
    """A call: its programs, its arguments except torch tensors, and the names of the torch tensors."""

    def __init__(self, parts, wrt, names, rest, dims):
        self.parts, self.wrt, self.names, self.rest, self.dims = parts, wrt, names, rest, dims


@functools.lru_cache(maxsize=None)
def _function():
    torch = sys.modules["torch"]

    def several(out):
        return out if isinstance(out, tuple) else (out,)

    class Program(torch.autograd.Function):
        @staticmethod
        def forward(ctx, call, *tensors):
            parts, given = call.parts, dict(zip(call.names, tensors))
            inputs = parts.forward._parameters()
            out = several(parts.forward(dims=call.dims, **given, **call.rest))
            saved = []
            for _, of, index in parts.takes:
                t = given.get(inputs[index]) if of == "input" else out[index] if of == "output" else None
                saved.append(t)
            ctx.save_for_backward(*saved)
            ctx.call = call
            out = out[: parts.results]
            ctx.mark_non_differentiable(*(t for t in out if t is not None and not t.is_floating_point()))
            return out[0] if len(out) == 1 else out

        @staticmethod
        def backward(ctx, *grads):
            if torch.is_grad_enabled():  # with create_graph=True
                raise UnsupportedError("the gradient of a program has no gradient: call backward or torch.autograd.grad "
                                       "without create_graph=True")
            call, args, rest = ctx.call, {}, {}
            inputs = call.parts.forward._parameters()
            for (name, of, index), t in zip(call.parts.takes, ctx.saved_tensors):
                if of == "gradient":
                    t = None if grads[index] is None else grads[index].contiguous()
                elif t is None and of == "input":
                    rest[name] = call.rest[inputs[index]]
                if t is not None:
                    args[name] = t
            out = several(call.parts.backward(dims=call.dims, **args, **rest))  # torch's first: results are torch's, too
            found = dict(zip(call.wrt, out))
            return None, *(found.get(n) for n in call.names)

    return Program
