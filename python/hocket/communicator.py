"""A communicator with the interface that inference engines expect: the methods of vLLM's DeviceCommunicatorBase, and of
vLLM's and SGLang's communicators that use NCCL or their own kernels.

    from hocket.communicator import Communicator

    c = Communicator(cpu_group, device=torch.device("cuda", local_rank))
    y = c.all_reduce(x)

Calls run on torch's current stream, and can be captured after each has been called once, as in engines' warm-ups.
Results are new tensors unless ``out`` is given."""

import contextlib
import sys

from . import _bytes, _collectives, _world
from ._errors import ClosedError, InputError, UnsupportedError

_OPS = {"SUM": "sum", "AVG": "avg", "MAX": "max", "MIN": "min"}


class Communicator:
    """The processes of a torch process group, ``cpu_group``, whose backend may be gloo. ``device_group``, if it is
    passed, transfers messages between two ranks, which hocket does not support."""

    def __init__(self, cpu_group=None, device=None, device_group=None, unique_name=""):
        torch = sys.modules["torch"]
        self.device = torch.device(device if device is not None else "cpu")
        self._s = _world.of(cpu_group, self.device.type)
        self.cpu_group, self.device_group, self.unique_name = cpu_group, device_group, unique_name
        self.rank = self.rank_in_group = self._s.rank
        self.world_size = self._s.size
        self.ranks = list(getattr(self._s, "ranks", range(self.world_size)))
        self.global_rank, self.global_world_size = _world.rank(), _world.world_size()
        self.available, self.disabled, self.stream = True, self.world_size == 1, None

    def should_use(self, t):
        """Returns whether all_reduce supports a tensor. Other tensors need another communicator."""
        return not self.disabled and t.device.type == self.device.type and t.is_contiguous() and _type(t) is not None

    should_custom_ar = should_use

    def all_reduce(self, input_, out=None, op="sum", stream=None):
        """Returns the sum over the ranks, or another reduction by torch's ReduceOp or its name; None while the
        communicator is switched off."""
        if self.available and self.disabled and self.world_size > 1:
            return None
        if self._alone("all_reduce"):
            return input_ if out is None else out.copy_(input_)
        with self._on(stream):
            return _collectives.all_reduce(input_.contiguous(), _op(op), out=self._like(input_) if out is None else out,
                                           group=self._s)

    def custom_all_reduce(self, input_):
        """Like all_reduce; returns None for a tensor that it does not support."""
        return self.all_reduce(input_) if self.should_use(input_) else None

    def all_gather(self, input_, dim=-1):
        """Concatenates the ranks' tensors along a dimension."""
        return self.all_gatherv(input_, dim)

    def all_gatherv(self, input_, dim=0, sizes=None):
        """Like all_gather, with a number of rows for each rank along the dimension; also accepts a list of tensors."""
        if isinstance(input_, (list, tuple)):
            return [self.all_gatherv(t, dim, sizes) for t in input_]
        if self._alone("all_gatherv"):
            return input_
        with self._on(None):
            first = input_.movedim(dim, 0).contiguous()
            got = _collectives.all_gather(first, group=self._s) if sizes is None else _collectives.all_gather_v(
                first, sizes, group=self._s)
            return got.movedim(0, dim).contiguous()

    def reduce_scatter(self, input_, dim=-1):
        """Returns the rank's block, along a dimension, of the sum over all ranks."""
        return self.reduce_scatterv(input_, dim)

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        """Like reduce_scatter, with blocks of different lengths."""
        if self._alone("reduce_scatterv"):
            return input_
        with self._on(None):
            first = input_.movedim(dim, 0).contiguous()
            got = _collectives.reduce_scatter(first, group=self._s) if sizes is None else _collectives.reduce_scatter_v(
                first, sizes, group=self._s)
            return got.movedim(0, dim).contiguous()

    def all_gather_into_tensor(self, output, input_, sizes=None, stream=None):
        """all_gather along the first dimension, or with sizes all_gatherv, into a tensor."""
        with self._on(stream):
            if self._alone("all_gather_into_tensor"):
                return output.copy_(input_)
            if sizes is not None:
                return _collectives.all_gather_v(input_, sizes, out=output, group=self._s)
            return _collectives.all_gather(input_, out=output, group=self._s)

    def reduce_scatter_tensor(self, output, input_, op="sum", sizes=None, stream=None):
        """reduce_scatter along the first dimension, or with sizes reduce_scatterv, into a tensor."""
        with self._on(stream):
            if self._alone("reduce_scatter_tensor"):
                return output.copy_(input_)
            if sizes is not None:
                return output.copy_(_collectives.reduce_scatter_v(input_, sizes, _op(op), group=self._s))
            return _collectives.reduce_scatter(input_, _op(op), out=output, group=self._s)

    def gather(self, input_, dst=0, dim=-1):
        """Returns the ranks' tensors, concatenated along a dimension, on rank dst of the group, and None on other
        ranks."""
        got = self.all_gather(input_, dim)
        return got if self.rank == dst else None

    def broadcast(self, tensor, src=0, stream=None):
        """Copies the tensor of the rank src of the group to all ranks, in place."""
        with self._on(stream):
            return tensor if self._alone("broadcast") else _collectives.broadcast(tensor, src, group=self._s)

    def send(self, tensor, dst=None):
        """Sends a tensor to a rank of the group, by default the next one, through the device group."""
        self._messages().send(tensor, self.ranks[(self.rank + 1) % self.world_size if dst is None else dst], self.device_group)

    def recv(self, size, dtype, src=None):
        """Receives a tensor from a rank of the group, by default the previous one, through the device group."""
        t = sys.modules["torch"].empty(size, dtype=dtype, device=self.device)
        self._messages().recv(t, self.ranks[(self.rank - 1) % self.world_size if src is None else src], self.device_group)
        return t

    def barrier(self):
        """Returns when all ranks have called it."""
        _collectives.barrier(group=self._s)

    @contextlib.contextmanager
    def capture(self):
        """Where a graph is captured. No registration is needed: a graph contains the addresses with which it was
        captured."""
        yield

    @contextlib.contextmanager
    def change_state(self, enable=None, stream=None):
        """Switches the communicator on or off, or to another stream, until the context ends."""
        was = self.disabled, self.stream
        self.disabled = self.world_size == 1 or not self.available or enable is False
        self.stream = stream or self.stream
        try:
            yield
        finally:
            self.disabled, self.stream = was

    def prepare_communication_buffer_for_model(self, model):
        """Does nothing, because calls need no preparation."""

    def dispatch(self, hidden_states, router_logits, sizes=None):
        """Returns the rows of all ranks of both tensors, with the given number of rows for each rank: experts are split
        over ranks, and tokens are not."""
        both = self.all_gatherv([hidden_states, router_logits], 0, sizes)
        return both[0], both[1]

    def combine(self, hidden_states, sizes=None):
        """Returns the rank's rows of the sum of the experts' results."""
        return self.reduce_scatterv(hidden_states, 0, sizes)

    def destroy(self):
        """Makes later calls fail. The machine stays open."""
        self.available, self.disabled = False, True

    def _alone(self, call):
        """Returns whether there is only one process, which already has the result. A communicator that is switched off
        refuses the call."""
        if self.disabled and self.world_size > 1:
            why = "switched off" if self.available else "destroyed"
            raise (InputError if self.available else ClosedError)(f"{call} of a communicator that is {why}")
        return self.world_size == 1

    def _like(self, t):
        return sys.modules["torch"].empty(t.shape, dtype=t.dtype, device=t.device)

    def _on(self, stream):
        """Returns the stream that was passed to a call, or else the communicator's stream, or else the current
        stream."""
        stream = stream or self.stream
        return contextlib.nullcontext() if stream is None else sys.modules["torch"].cuda.stream(stream)

    def _messages(self):
        dist = sys.modules["torch"].distributed
        if self.device_group is None and not dist.is_initialized():
            raise UnsupportedError("messages between two ranks go by torch.distributed: give device_group")
        return dist


def _type(t):
    """Returns the name of an element type that all_reduce supports; None for other types."""
    from . import _tensors

    name = _tensors.TORCH.get(str(t.dtype).removeprefix("torch."))
    return None if name is None or name.startswith("f8") or name in _bytes.TYPES else name


def _op(op):
    if not isinstance(op, str):
        kinds = sys.modules["torch"].distributed.ReduceOp
        op = next((name for name in _OPS if hasattr(kinds, name) and op == getattr(kinds, name)), op)
    if str(op).upper() not in _OPS:
        raise InputError(f"op is {op}; there are {', '.join(_OPS)}")
    return _OPS[op.upper()]
