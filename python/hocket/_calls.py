"""Calls of models on GPUs. Calls with tensors of the same shapes and types share prepared data."""

import ctypes
import sys

from . import _autograd, _cuda, _lib, _tensors, _world


class Call:
    """The prepared data for calls of a model with given dims and with given shapes of arguments and bound tensors."""

    def __init__(self, model, given, bound, layouts, text):
        self.text, rank = text, model._world.rank
        blocks = {n: _cuda.Block(t, n) for n, t in given.items()}
        model._check(layouts, blocks)

        def struct(name, dtype, shape):
            t = _tensors.View(None, dtype, shape, None, "torch").struct(name, rank)
            t.bytes = 0  # only calls have data
            return t

        ins, outs, place = [struct(n, b.dtype, b.tensor.shape) for n, b in blocks.items()], [], list(given)
        inout = {p["name"] for p in layouts["in"] if p["inout"]}
        self._updated = []  # bound parameters that calls update
        # Of each result: its name, its place among the arguments if it is one of them, its place among the addresses,
        # its dtype, and its shape. The indices are None for a result of which this rank has no block.
        self._results = []
        for p in layouts["out"]:
            name = p["name"]
            if name in inout and (name in bound or model._keeps(name) and name not in given):
                if name in bound:
                    self._updated.append(name)
                continue  # it is updated where it is
            if name in inout:
                self._results.append((name, place.index(name), len(ins) + len(outs), None, None))
                outs.append(struct(name, blocks[name].dtype, blocks[name].tensor.shape))
                continue
            shape = next((b["shape"] for b in p["blocks"] if b["rank"] == rank), None)
            if shape is None:
                self._results.append((name, None, None, None, None))
                continue
            self._results.append((name, None, len(ins) + len(outs), p["dtype"], tuple(shape)))
            outs.append(struct(name, p["dtype"], shape))
        tensors = list(given.values()) or [b.tensor for b in bound.values()]
        self._device = tensors[0].device
        self._stream = _cuda.stream_of(self._device)
        self._names, self._addresses = place, ctypes.c_uint64 * (len(ins) + len(outs))
        self._site = None  # the caller's position that the library knows
        self._form = _lib.call("hocket_form", model._handle, *_lib.pack(ins), *_lib.pack(outs), text)

    def __call__(self, model, tensors, bound, lendable):
        """Enqueues a run on torch's current stream. tensors are the arguments, in the order of the first call."""
        for n, t in zip(self._names, tensors):
            if not (t.is_cuda and t.is_contiguous()) or t.is_neg():
                _cuda.Block(t, n)  # says what is wrong with it
        torch, at = sys.modules["torch"], [t.data_ptr() for t in tensors]
        changed = [bound[name].written().tensor for name in self._updated]
        results, lent = [], []
        for name, argument, address, dtype, shape in self._results:
            t = None
            if address is None:
                pass
            elif argument is not None:
                t = tensors[argument]
                if getattr(t, "hocket_readonly", ""):
                    _cuda.Block(t, name).written()  # says why it is
                at.append(t.data_ptr())
                changed.append(t)
            elif name in lendable:
                lent.append((len(results), address, dtype, shape))
                at.append(0)
            else:
                t = torch.empty(shape, dtype=_cuda.torch_dtype(dtype), device=self._device)
                at.append(t.data_ptr())
            results.append(t)
        addresses = self._addresses(*at)  # new ones, because other threads make calls, too
        site = place = None
        if model._several():
            frame = _world.caller()
            site = frame.f_code, frame.f_lasti
            if site != self._site:
                place = f"{_world.shown(frame.f_code.co_filename)}:{frame.f_lineno}".encode()
        _lib.call("hocket_enqueue", self._form.value, self._stream(), addresses, len(at), place)
        self._site = site
        for t in changed:
            _autograd.written(t)
        for i, address, dtype, shape in lent:
            results[i], memory = _cuda.lent(addresses[address], dtype, shape, self._device)
            memory.model = model
            model._lent.add(memory)
        return results[0] if len(results) == 1 else tuple(results)
