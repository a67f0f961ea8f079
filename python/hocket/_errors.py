"""Exceptions, by the kinds that the library tells."""

import json


class Error(Exception):
    """Whatever hocket refuses or fails at."""


class ProgramError(Error):
    """A program is wrong, or refuted."""


class InputError(Error, ValueError):
    """Arguments, options or tensors are wrong.

    If it is one element of an integer parameter that an op cannot take, ``parameter``, ``rank``, ``index`` and ``value``
    say which, and ``low`` and ``high`` that ``low <= value < high`` is wanted. ``begun`` is whether the run had begun:
    then tensors that it updates may hold a part of it. Otherwise nothing has changed."""

    def __init__(self, message, parameter=None, rank=None, index=None, value=None, low=None, high=None, begun=False):
        super().__init__(message)
        self.parameter, self.rank, self.index, self.value = parameter, rank, index, value
        self.low, self.high, self.begun = low, high, begun


class OutOfMemoryError(Error, MemoryError):
    """A device, or the host, has too little memory."""


class UnsupportedError(Error, NotImplementedError):
    """hocket makes no program of that, or the machine cannot do it."""


class DeviceLostError(Error):
    """A device is lost to this process: start anew."""


class PeerError(Error):
    """Another process died, stopped, or did not come. ``rank``, ``pid`` and ``host`` tell which."""

    def __init__(self, message, rank=None, pid=None, host=None):
        super().__init__(message)
        self.rank, self.pid, self.host = rank, pid, host


class DisagreeError(Error):
    """Processes have different values where all must have the same: ``values``, by rank."""

    def __init__(self, message, what="", values=None):
        super().__init__(message)
        self.what, self.values = what, {int(r): v for r, v in (values or {}).items()}


class ClosedError(Error):
    """The machine, model or world is closed."""


class Cancelled(Error):
    """The run was cancelled."""


class MachineError(Error):
    """The machine failed."""


_kinds = {
    "program": ProgramError, "input": InputError, "memory": OutOfMemoryError, "unsupported": UnsupportedError,
    "lost": DeviceLostError, "closed": ClosedError, "cancelled": Cancelled, "handle": ClosedError,
}


def of(text):
    """The exception for the library's JSON."""
    f = json.loads(text)
    if f["kind"] == "peer":
        return PeerError(f["message"], f.get("rank"), f.get("pid"), f.get("host"))
    if f["kind"] == "disagree":
        return DisagreeError(f["message"], f.get("what", ""), f.get("values"))
    if "parameter" in f:
        return InputError(f["message"], f["parameter"], f["rank"], tuple(f.get("index", ())), f.get("value", 0),
                          f.get("low", 0), f.get("high", 0), f.get("begun", False))
    return _kinds.get(f["kind"], MachineError)(f["message"])
