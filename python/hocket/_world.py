"""The machine of this process, and the other processes."""

import atexit
import collections
import os
import sys
import threading
import traceback

from . import _lib

_lock = threading.RLock()
_state = None


class _State:
    def __init__(self, machine, name, collectives, rank, size):
        self.machine, self.name, self.collectives, self.rank, self.size = machine, name, collectives, rank, size
        self.models, self.group = collections.OrderedDict(), None  # models of collectives, least recently used first
        self.closing, self.captured = [], set()  # models with lent results, and with captured runs


def init(machine=None, algorithm="", fixed=False, **options):
    """Opens the machine, "cpu" (the default) or "cuda", and joins the other processes if a launcher started several.

    ``algorithm`` names the one that collectives on GPUs try first; ``fixed=True`` takes one whatever the size, so that
    the bits of an element do not depend on how many there are beside it. Other options: ``rank``, ``size`` and ``id``
    where no launcher says; ``alone=True`` to stay alone under a launcher; ``dir``, the folder in which processes meet;
    ``timeout``, seconds to join (60); ``stall_timeout``, seconds after which a silent process ends all (30).

    Other calls that need a machine open the CPU's, or, for a collective on a GPU's tensor, CUDA's: call init before
    them. If that machine is open already, init does nothing; if another is, it is an InputError.
    """
    global _state
    with _lock:
        if _state is not None:
            if machine not in (None, _state.name):
                raise _lib._errors.InputError(
                    f"the machine {_state.name!r} is open already: call hocket.init({machine!r}) before all other "
                    "calls of hocket, or after hocket.shutdown()")
        else:
            _lib.close_dropped()
            machine = machine or "cpu"
            handle, who = _lib.open_machine({"machine": machine, **options})
            _state = _State(handle, machine, {"algorithm": algorithm, "fixed": fixed}, who["rank"], who["size"])


def state(machine="cpu"):
    """The open machine; opened now if it is not yet."""
    if _state is None:
        with _lock:
            if _state is None:
                init(machine)
    return _state


def of(group, machine="cpu"):
    """The processes of a group, by default all."""
    if group is None:
        return state(machine)
    return group


def is_initialized():
    """Whether the machine is open."""
    return _state is not None


def rank():
    """This process's number, from 0."""
    return state().rank


def world_size():
    """How many processes there are."""
    return state().size


def calling(call):
    """Names the call of the user's that the library's next function is for: other processes have it in their errors."""
    if _state is None or _state.size == 1:
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame = frame.f_back
    _lib.lib().hocket_calling(call.encode(), f"{frame.f_code.co_filename}:{frame.f_lineno}".encode())


def _reason():
    """The exception that ends the interpreter, and where it was raised outside of this package; None for none."""
    e = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if e is None or hasattr(sys, "ps1"):  # an interactive interpreter goes on after exceptions
        return None
    text = "".join(traceback.format_exception_only(type(e), e)).strip()
    own = os.path.dirname(__file__)
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != own]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text


def _forked():
    """In a child, which has none of the library's threads: calls on GPUs go by way of _lib again, which refuses them."""
    global _lock
    _lock = threading.RLock()  # the parent's may be held by a thread that the child does not have
    if _state is not None:
        _state.group = None


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _ends():
    """The interpreter ends: the other processes learn why, if it is for an exception."""
    state, why = _state, _reason()
    if state is not None and state.size > 1 and why is not None:
        try:
            _lib.call("hocket_failed", state.machine, why.encode())
        except _lib._errors.Error:  # a forked child, whose machine is its parent's
            pass
    shutdown()


def shutdown():
    """Closes the machine and leaves the other processes. It is called when the interpreter ends, too."""
    global _state
    with _lock:
        if _state is None:
            return
        was, _state = _state, None
        try:
            try:
                if was.group is not None:
                    _lib.close(was.group.handle)
            finally:
                _lib.close(was.machine)
        except _lib._errors.UnsupportedError:  # a forked child, whose machine is its parent's
            pass
