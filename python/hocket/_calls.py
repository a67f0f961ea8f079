"""Calls of models on GPUs. Calls with tensors of the same shapes and types share prepared data."""

import ctypes
import sys

from . import _autograd, _cuda, _lib, _tensors, _world


class Call:
    """The prepared data for calls of a model with given dims and with given shapes of arguments and bound tensors."""

    def __init__(self, model, given, bound, layouts, text):
        self.text, self._rank = text, model._world.rank
        blocks = {n: _cuda.Block(t, n) for n, t in given.items()}
        model._check(layouts, blocks)
        struct = lambda name, dtype, shape: _tensors.View(None, dtype, shape, None, "torch").struct(name, self._rank)
        self._ins = _Structs([struct(n, b.dtype, b.tensor.shape) for n, b in blocks.items()])
        inout = {p["name"] for p in layouts["in"] if p["inout"]}
        self._updated = []  # bound parameters that calls update
        self._results, outs = [], []  # of each result: its name, and its place among outs, dtype and shape if it is there
        for p in layouts["out"]:
            name = p["name"]
            if name in inout and (name in bound or model._keeps(name) and name not in given):
                if name in bound:
                    self._updated.append(name)
                continue  # it is updated where it is
            if name in inout:
                self._results.append((name, len(outs), None, None))
                outs.append(struct(name, blocks[name].dtype, blocks[name].tensor.shape))
                continue
            shape = next((b["shape"] for b in p["blocks"] if b["rank"] == self._rank), None)
            if shape is None:
                self._results.append((name, None, None, None))
                continue
            self._results.append((name, len(outs), p["dtype"], tuple(shape)))
            outs.append(struct(name, p["dtype"], shape))
        self._outs = _Structs(outs)

    def __call__(self, model, given, bound, lendable):
        """Enqueues a run on torch's current stream."""
        torch, tensors = sys.modules["torch"], list(given.values())
        for n, t in given.items():
            if not (t.is_cuda and t.is_contiguous()) or t.is_neg():
                _cuda.Block(t, n)  # says what is wrong with it
        changed = [bound[name].written().tensor for name in self._updated]
        ins = self._ins.at([t.data_ptr() for t in tensors])
        first = tensors[0] if tensors else next(iter(bound.values())).tensor
        results, addresses, lent = [], [], []
        for name, out, dtype, shape in self._results:
            t = None
            if out is None:
                pass
            elif dtype is None:
                t = _cuda.Block(given[name], name).written().tensor
                addresses.append(t.data_ptr())
                changed.append(t)
            elif name in lendable:
                lent.append((len(results), out, dtype, shape))
                addresses.append(None)
            else:
                t = torch.empty(shape, dtype=_cuda.torch_dtype(dtype), device=first.device)
                addresses.append(t.data_ptr())
            results.append(t)
        outs = self._outs.at(addresses)
        for _, out, _, _ in lent:
            outs[out].bytes = 0
        _world.calling(model._func)
        stream = torch.cuda.current_stream(first.device).cuda_stream
        _lib.call("hocket_enqueue", model._handle, stream, ins, len(ins), outs, len(outs), self.text)
        for t in changed:
            _autograd.written(t)
        for i, out, dtype, shape in lent:
            results[i], memory = _cuda.lent(outs[out].data, dtype, shape, first.device)
            memory.model = model
            model._lent.add(memory)
        return results[0] if len(results) == 1 else tuple(results)


class _Structs:
    """Tensors in the library's format, without their addresses."""

    def __init__(self, structs):
        self._array, _ = _lib.pack(structs)
        self._keep = structs  # their names and shapes

    def at(self, addresses):
        """Returns a copy of the tensors with the given addresses. It is a copy because other threads make calls, too."""
        array = type(self._array)()
        ctypes.memmove(array, self._array, ctypes.sizeof(array))
        for t, address in zip(array, addresses):
            t.data = address
        return array
