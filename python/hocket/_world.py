"""The machine of this process, and the other processes."""

import atexit
import threading

from . import _lib

_lock = threading.RLock()
_state = None


class _State:
    def __init__(self, machine, rank, size):
        self.machine, self.rank, self.size, self.models = machine, rank, size, {}


def init(machine="cpu", **options):
    """Opens the machine, and joins the other processes if a launcher started several.

    Options: ``rank``, ``size`` and ``id`` where no launcher says; ``alone=True`` to stay alone under a launcher;
    ``dir``, the folder in which processes meet; ``timeout``, seconds to join (60); ``stall_timeout``, seconds after
    which a silent process ends all (30). Called again, it does nothing if the machine is open.
    """
    global _state
    with _lock:
        if _state is None:
            handle, who = _lib.open_machine({"machine": machine, **options})
            _state = _State(handle, who["rank"], who["size"])


def state():
    """The open machine; opened now if it is not yet."""
    init()
    return _state


def is_initialized():
    """Whether the machine is open."""
    return _state is not None


def rank():
    """This process's number, from 0."""
    return state().rank


def world_size():
    """How many processes there are."""
    return state().size


@atexit.register
def shutdown():
    """Closes the machine and leaves the other processes. It is called when the interpreter ends, too."""
    global _state
    with _lock:
        if _state is None:
            return
        was, _state = _state, None
        try:
            _lib.call("hocket_close", was.machine)
        except _lib._errors.UnsupportedError:  # a forked child, whose machine is its parent's
            pass
