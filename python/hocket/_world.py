"""The machine of this process, and the other processes."""

import atexit
import collections
import contextlib
import functools
import operator
import os
import sys
import threading
import traceback

from . import _lib
from ._errors import ClosedError, InputError

_lock = threading.RLock()
_state = None
_left = False  # shutdown has left other processes, and init has not been called since


class _State:
    def __init__(self, machine, name, collectives, rank, size):
        self.machine, self.name, self.collectives, self.rank, self.size = machine, name, collectives, rank, size
        self.models, self.group = collections.OrderedDict(), None  # models of collectives, least recently used first
        self.closing, self.captured = [], set()  # models with lent results, and with captured runs
        self.groups, self.torch_groups = [], {}  # those of these processes; by torch's process group
        self.made = 0  # calls of new_group
        self.exchange = None  # how the processes of a node exchange data, on GPUs

    def close(self):
        """Closes groups, then the machine. The machines of all groups are closed if one fails."""
        with contextlib.ExitStack() as all:
            if self.machine:
                all.callback(_lib.close, self.machine)
            if self.group is not None:
                all.callback(_lib.close, self.group.handle)
                self.group = None
            for g in self.groups:  # the last first
                all.callback(g.close)


class Group(_State):
    """A group of processes: see new_group. ``ranks`` are the ranks of its processes among all processes, ``rank`` is
    this process's rank in the group, -1 if it is not in the group, and ``size`` is the number of its processes."""

    def __init__(self, of, name, ranks, alike):
        calling(f"new_group({ranks})")
        handle, who = _lib.open_group(of.machine, {"name": name, "ranks": ranks, "alike": alike})
        super().__init__(handle, of.name, of.collectives, who["rank"], who["size"])
        self.group_name, self.ranks = name, tuple(ranks)
        of.groups.append(self)

    def __repr__(self):
        return f"<hocket group {self.group_name} of ranks {list(self.ranks)}>"


def init(machine=None, algorithm="", fixed=False, **options):
    """Opens the machine, "cpu" (the default) or "cuda", and joins the other processes if a launcher started several.

    ``algorithm`` names the algorithm that collectives on GPUs try first. ``fixed=True`` uses one algorithm for all
    sizes, so that the bits of an element do not depend on the number of elements. Other options: ``rank``, ``size`` and
    ``id`` if no launcher sets them; ``alone=True`` to ignore a launcher and use one process only; ``dir``, the folder
    in which processes meet; ``timeout``, seconds to join (60); ``stall_timeout``, seconds without a sign of progress of
    a process after which all processes are ended (30).

    Without init, the first call that needs a machine opens "cpu" or, for a collective of a tensor on a GPU, "cuda". If
    the same machine is already open, init does nothing; if another machine is open, it raises an InputError.
    """
    global _state, _left
    if machine not in (None, "cpu", "cuda"):
        raise InputError(f"there is no machine {machine!r}; the machines are cpu, cuda")
    for name in ("timeout", "stall_timeout"):
        if name in options and not (isinstance(options[name], (int, float)) and 0 < options[name] < float("inf")):
            raise InputError(f"{name} is {options[name]!r}; a number of seconds above 0 is wanted")
    with _lock:
        if _state is not None:
            if machine not in (None, _state.name):
                raise InputError(
                    f"the machine {_state.name!r} is open already: call hocket.init({machine!r}) before all other "
                    "calls of hocket, or after hocket.shutdown()")
        else:
            _lib.close_dropped()
            machine = machine or "cpu"
            handle, who = _lib.open_machine({"machine": machine, "algorithm": algorithm, **options})
            _state = _State(handle, machine, {"algorithm": algorithm, "fixed": fixed}, who["rank"], who["size"])
            _state.exchange, _left = who.get("exchange"), False


def state(machine="cpu"):
    """Returns the open machine. Opens it if necessary."""
    if _state is None:
        with _lock:
            if _left:
                raise ClosedError("hocket.shutdown() has left the other processes: call hocket.init() to join them again")
            if _state is None:
                init(machine)
    return _state


def new_group(ranks=None, name=None):
    """Makes a group of some of the processes, by default all, for ``group=`` of collectives and of load. All processes,
    including those outside the group, make the same calls of new_group in the same order."""
    s = state()
    try:
        ranks = list(range(s.size)) if ranks is None else [operator.index(r) for r in ranks]
    except TypeError:
        raise InputError(f"ranks is {ranks!r}: give a list of ranks, which are whole numbers") from None
    number, s.made = s.made, s.made + 1  # without torch's groups, which some processes have not used
    return Group(s, f"{number}" if name is None else f"{name}.{number}", ranks, True)


def known(group):
    """Returns the processes of a group that was used before, and None for another one."""
    if group is None or _state is None:
        return _state
    if isinstance(group, _State):
        return group
    try:
        return _state.torch_groups.get(group)
    except TypeError:  # a list
        return None


def of(group, machine="cpu"):
    """The processes of a group: all, those of new_group, or those of torch's process group or of its DeviceMesh of one
    dimension."""
    if group is None:
        return state(machine)
    if isinstance(group, _State):
        if group.rank < 0:
            raise InputError(f"rank {state().rank} is not of the group of ranks {list(group.ranks)}")
        return group
    if isinstance(group, (int, list, tuple, range)):
        raise InputError(f"group is {group!r}: give what hocket.new_group(ranks) returns, or a process group of torch")
    s = state(machine)
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise InputError(f"a DeviceMesh of {group.ndim} dimensions: give one of them, as mesh[{group.mesh_dim_names[0]!r}]"
                             if group.mesh_dim_names else f"a DeviceMesh of {group.ndim} dimensions: give one with names")
        group = group.get_group()
    if group not in s.torch_groups:
        s.torch_groups[group] = _of_torch(s, group)
    return s.torch_groups[group]


def _of_torch(s, group):
    """Returns the processes of torch's process group. All of these processes make this call."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not isinstance(group, dist.ProcessGroup):
        raise InputError(f"group is of type {type(group).__name__}: give a group that hocket.new_group returned, a process group "
                         "of torch, or a DeviceMesh of one dimension, in the group's processes only")
    if (dist.get_rank(), dist.get_world_size()) != (s.rank, s.size):
        raise InputError(f"torch counts this process as rank {dist.get_rank()} of {dist.get_world_size()}, and hocket as "
                         f"rank {s.rank} of {s.size}")
    if group is dist.group.WORLD:
        return s
    c10d = dist.distributed_c10d
    if hasattr(dist, "get_process_group_ranks"):
        ranks, name = dist.get_process_group_ranks(group), getattr(group, "group_name", None)
    else:  # torch 1
        ranks, name = c10d._pg_group_ranks[group], None
    name = c10d._pg_names[group] if name is None and hasattr(c10d, "_pg_names") else name
    return Group(s, f"torch {name}", sorted(ranks, key=lambda r: dist.get_group_rank(group, r)) if hasattr(
        dist, "get_group_rank") else list(ranks), False)


def is_initialized():
    """Returns whether the machine is open."""
    return _state is not None


def rank(group=None):
    """Returns this process's number, counted from 0."""
    return of(group).rank


def world_size(group=None):
    """Returns the number of processes."""
    return of(group).size


def calling(call):
    """Reports the user's call that calls the library's next function, for errors in other processes."""
    if _state is None or _state.size == 1:
        return
    frame = caller()
    _lib.lib().hocket_calling(call.encode(), f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}".encode())


@functools.lru_cache(maxsize=1000)
def shown(path):
    """Returns a path as errors show it: relative to the working folder, if it is below."""
    try:
        return path.removeprefix(os.getcwd() + os.sep)
    except OSError:  # the folder was removed
        return path


OWN = os.path.dirname(__file__) + os.sep


def caller():
    """Returns the frame of the user that called this package."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    return frame


def _reason():
    """The exception that ends the interpreter, and the position outside of this package where it was raised; None if
    there is no exception."""
    e = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if e is None or hasattr(sys, "ps1"):  # an interactive interpreter goes on after exceptions
        return None
    text = "".join(traceback.format_exception_only(type(e), e)).strip()
    own = os.path.dirname(__file__)
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != own]
    return f"{text} ({shown(frames[-1].filename)}:{frames[-1].lineno})" if frames else text


def _forked():
    """Called in a forked child, which has none of the library's threads: makes calls on GPUs use _lib again, which
    refuses them."""
    global _lock
    _lock = threading.RLock()  # the parent's may be held by a thread that the child does not have
    for s in (_state, *_state.groups) if _state is not None else ():
        s.group = None


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _ends():
    """Called at the end of the interpreter: reports the exception that ends it, if any, to the other processes."""
    state, why = _state, _reason()
    if state is not None and state.size > 1 and why is not None:
        try:
            for s in (state, *state.groups):
                if s.machine:
                    _lib.call("hocket_failed", s.machine, why.encode())
        except _lib._errors.Error:  # a forked child, whose machine is its parent's
            pass
    shutdown()


def shutdown():
    """Closes the machine and leaves the other processes. shutdown is also called when the interpreter ends. With
    several processes, later calls of hocket raise a ClosedError, unless init has been called again."""
    global _state, _left
    with _lock:
        if _state is None:
            return
        was, _state = _state, None
        _left = was.size > 1
        try:
            was.close()
        except _lib._errors.UnsupportedError:  # a forked child, whose machine is its parent's
            pass
