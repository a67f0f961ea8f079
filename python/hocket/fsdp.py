"""All-gather and reduce-scatter of torch's FSDP2, fully_shard, by hocket.

    import hocket.fsdp

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    hocket.fsdp.use(model)

torch 2.9 or newer is needed. Collectives run on the streams on which FSDP calls them. Other communication, such as the
all-reduce of a mesh of two dimensions, remains torch's."""

import functools
import sys

from . import _collectives, _cuda, _world
from ._errors import InputError, UnsupportedError


def use(module):
    """Makes all modules in ``module`` on which fully_shard was called gather parameters and reduce gradients by hocket.
    Returns ``module``. All ranks make the same call, before or between steps."""
    import torch

    try:
        from torch.distributed.fsdp import FSDPModule as kind
    except (ImportError, ValueError):  # ValueError by torch 1 with a newer Python
        kind = None
    if not hasattr(kind, "set_custom_all_gather"):
        raise UnsupportedError(f"this is torch {torch.__version__}, whose FSDP2 has no hooks for communication: 2.9 or newer "
                               "has them")
    sharded = [m for m in module.modules() if isinstance(m, kind)]
    if not sharded:
        raise InputError(f"{type(module).__name__} has no module of FSDP2: call torch.distributed.fsdp.fully_shard first")
    gather, scatter = _kinds()
    for m in sharded:
        processes = _processes(m)
        m.set_custom_all_gather(gather(processes))
        m.set_custom_reduce_scatter(scatter(processes))
    return module


def _processes(m):
    """Returns the processes over which a module of FSDP2 is split; None if torch does not return them, or if it has no
    parameters."""
    of = getattr(m, "_get_fsdp_state", lambda: None)()
    params = getattr(of, "_fsdp_param_group", None)
    group = getattr(getattr(params, "mesh_info", None), "shard_process_group", None)
    return None if group is None else _world.of(group, params.device.type)


class _Memory:
    """Buffers of one FSDP module. ``state`` is the set of processes that share the tensors; None if it is unknown until
    the first call."""

    def __init__(self, state):
        self.state = state

    def take(self, size, dtype, device):
        """Returns a tensor in memory that collectives use without copies, or in torch's memory before the first call."""
        s = self.state
        if s is None or s.size == 1 or device.type != "cuda":
            return _torch().empty(*size, dtype=dtype, device=device)
        return _cuda.borrowed(s, size, dtype)

    def of(self, group, t):
        """Returns the processes of torch's process group for a collective of t."""
        self.state = _world.of(group, t.device.type)
        return self.state


def _torch():
    return sys.modules["torch"]


@functools.lru_cache(maxsize=None)
def _kinds():
    """Returns the classes of an all-gather and of a reduce-scatter for FSDP. Their bases exist only in newer torch."""
    torch = _torch()
    from torch.distributed.fsdp._fully_shard import _fsdp_api as api

    class Work(torch.distributed.distributed_c10d.Work):
        """A collective on a separate stream. FSDP waits only for instances of torch's class."""

        def __init__(self, event, *tensors):
            super().__init__()
            self.event, self.tensors = event, tensors  # the tensors' memory is in use until the event

        def wait(self, timeout=None):
            if self.event is not None:
                torch.cuda.current_stream().wait_event(self.event)
            self.tensors = ()
            return True

        def is_completed(self):
            return self.event is None or self.event.query()

    @functools.lru_cache(maxsize=None)
    def separate(device):
        return torch.cuda.Stream(device, priority=-1)

    def issued(call, async_op, *tensors):
        """Makes a call on the current stream. If it is asynchronous, the call runs on a separate stream, and the result
        has a method by which the current stream waits for it; otherwise the result is None."""
        if not async_op:
            return call()
        if not tensors[0].is_cuda:
            call()
            return Work(None)
        stream = separate(tensors[0].device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
            return Work(stream.record_event(), *tensors)

    class AllGather(api.AllGather):
        def __init__(self, processes=None):
            self.memory = _Memory(processes)

        def allocate(self, size, *, dtype, device):
            return self.memory.take(size, dtype, device)

        @torch.no_grad()
        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            s = self.memory.of(group, input_tensor)

            def call():
                out, own = _words(output_tensor), _words(input_tensor)
                if out.dtype != own.dtype:
                    out, own = output_tensor, input_tensor
                block = out.data_ptr() + s.rank * own.numel() * own.element_size()
                if _overlap(out, own) and not (own.is_cuda and own.data_ptr() == block):  # FSDP gathers in place
                    own = own.clone()
                _collectives.all_gather(own, out=out, group=s)

            return issued(call, async_op, output_tensor, input_tensor)

    class ReduceScatter(api.ReduceScatter):
        def __init__(self, processes=None):
            self.memory, self.elements = _Memory(processes), 0  # of the input that was allocated last

        def allocate(self, size, *, dtype, device):
            elements, before = size[0] if len(size) == 1 else 0, self.elements
            if before and elements * self.memory.state.size == before:
                self.elements = 0
                return torch.empty(*size, dtype=dtype, device=device)  # the result, which gradients may keep
            t = self.memory.take(size, dtype, device)
            self.elements = elements if self.memory.state is not None else 0
            return t

        @torch.no_grad()
        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            s = self.memory.of(group, input_tensor)
            name, factor = _reduction(op)

            def call():
                t, early = input_tensor, factor is not None and input_tensor.dtype == torch.float16
                if early:  # a sum of f16 may overflow
                    t = t * factor
                _collectives.reduce_scatter(t, name, out=output_tensor, group=s)
                if factor is not None and not early:
                    output_tensor.mul_(factor)

            return issued(call, async_op, output_tensor, input_tensor)

    return AllGather, ReduceScatter


def _words(t):
    """Returns t, or for elements of one byte, if possible, a view of t as i32, which collectives move without copies."""
    if t.element_size() == 1 and t.numel() % 4 == 0 and t.data_ptr() % 4 == 0 and t.storage_offset() % 4 == 0:
        return t.view(_torch().int32)
    return t


def _overlap(a, b):
    """Returns whether two dense tensors share memory."""
    size = a.element_size()
    return a.data_ptr() < b.data_ptr() + b.numel() * size and b.data_ptr() < a.data_ptr() + a.numel() * size


def _reduction(op):
    """Returns the name of one of torch's reductions, and the factor of PREMUL_SUM, otherwise None."""
    kinds, factor = _torch().distributed.ReduceOp, None
    state = op.__getstate__() if type(op) is kinds else None  # newer torch's constants are of another type
    if isinstance(state, tuple):
        op, factor = state
    if op == getattr(kinds, "PREMUL_SUM", None):
        if factor is None:
            raise UnsupportedError("PREMUL_SUM without a factor: give ReduceOp.SUM, or what torch makes of a factor")
        return "sum", factor
    try:
        return _collectives._reduction(op), None
    except InputError:
        raise UnsupportedError(f"gradients are reduced by {op}; SUM, AVG, PREMUL_SUM, MAX and MIN are supported") from None
