"""Exceptions, one for each kind of error that the library returns."""

import json


class Error(Exception):
    """The base of all errors of hocket."""


class ProgramError(Error):
    """Raised if a program is wrong, or refuted."""


class InputError(Error, ValueError):
    """Raised if arguments, options or tensors are wrong.

    If an element of an integer parameter is out of range, ``parameter``, ``rank``, ``index`` and ``value`` identify it,
    and ``low <= value < high`` is the range. ``begun`` is true if the run had begun, so that tensors that it updates
    may be partly updated. Otherwise nothing has changed."""

    def __init__(self, message, parameter=None, rank=None, index=None, value=None, low=None, high=None, begun=False):
        super().__init__(message)
        self.parameter, self.rank, self.index, self.value = parameter, rank, index, value
        self.low, self.high, self.begun = low, high, begun


class OutOfMemoryError(Error, MemoryError):
    """Raised if a device, or the host, has too little memory."""


class UnsupportedError(Error, NotImplementedError):
    """Raised if hocket cannot convert a model to a program, or if the machine lacks a feature."""


class DeviceLostError(Error):
    """Raised if this process can no longer use a device: start a new process."""


class PeerError(Error):
    """Raised if another process died, stopped, or did not take part in a call. ``rank``, ``pid`` and ``host`` identify
    it."""

    def __init__(self, message, rank=None, pid=None, host=None):
        super().__init__(message)
        self.rank, self.pid, self.host = rank, pid, host


class DisagreeError(Error):
    """Raised if processes have different values of something that must be equal in all; ``values`` holds them by
    rank."""

    def __init__(self, message, what="", values=None):
        super().__init__(message)
        self.what, self.values = what, {int(r): v for r, v in (values or {}).items()}


class ClosedError(Error):
    """Raised if the machine, model or world is closed."""


class Cancelled(Error):
    """The run was cancelled."""


class MachineError(Error):
    """The machine failed."""


_kinds = {
    "program": ProgramError, "input": InputError, "memory": OutOfMemoryError, "unsupported": UnsupportedError,
    "lost": DeviceLostError, "closed": ClosedError, "cancelled": Cancelled, "handle": ClosedError,
}


def of(text):
    """Returns the exception for an error that the library returned as JSON."""
    f = json.loads(text)
    if f["kind"] == "peer":
        return PeerError(f["message"], f.get("rank"), f.get("pid"), f.get("host"))
    if f["kind"] == "disagree":
        return DisagreeError(f["message"], f.get("what", ""), f.get("values"))
    if "parameter" in f:
        return InputError(f["message"], f["parameter"], f["rank"], tuple(f.get("index", ())), f.get("value", 0),
                          f.get("low", 0), f.get("high", 0), f.get("begun", False))
    return _kinds.get(f["kind"], MachineError)(f["message"])
