"""The shared library, by ctypes."""

import ctypes
import functools
import json
import os
import pathlib

from . import _errors

ABI = 1  # hocket.h's version that this package is for


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("rank", ctypes.c_int64), ("dims", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64),
    ]


_text = ctypes.POINTER(ctypes.c_char)  # not c_char_p, which forgets the address to free
_error = ctypes.POINTER(_text)
_signatures = {
    "hocket_version": (ctypes.c_int, []),
    "hocket_free": (None, [_text]),
    "hocket_open": (ctypes.c_int64, [ctypes.c_char_p, _error, _error]),
    "hocket_load": (ctypes.c_int64, [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, _error]),
    "hocket_layouts": (_text, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_parameters": (_text, [ctypes.c_int64, _error]),
    "hocket_bind": (ctypes.c_int, [ctypes.c_int64, ctypes.POINTER(Tensor), _error]),
    "hocket_run": (ctypes.c_int64, [ctypes.c_int64, ctypes.POINTER(Tensor), ctypes.c_int64, ctypes.POINTER(Tensor),
                                    ctypes.c_int64, _error]),
    "hocket_wait": (ctypes.c_int, [ctypes.c_int64, ctypes.c_int64, _error]),
    "hocket_cancel": (ctypes.c_int, [ctypes.c_int64, _error]),
    "hocket_prepare": (ctypes.c_int64, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_enqueue": (ctypes.c_int, [ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(Tensor), ctypes.c_int64,
                                      ctypes.POINTER(Tensor), ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_lendable": (_text, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_bind_device": (ctypes.c_int, [ctypes.c_int64, ctypes.POINTER(Tensor), ctypes.c_char_p, _error]),
    "hocket_sync": (ctypes.c_int64, [ctypes.c_int64, _error]),
    "hocket_collectives": (ctypes.c_int64, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_do": (ctypes.c_int, [ctypes.c_int64] + [ctypes.c_int] * 4 + [ctypes.c_int64] + [ctypes.c_uint64] * 3 + [_error]),
    "hocket_do_norm": (ctypes.c_int, [ctypes.c_int64, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_double]
                       + [ctypes.c_uint64] * 6 + [_error]),
    "hocket_device": (ctypes.c_int, [ctypes.c_int64, _error]),
    "hocket_empty": (ctypes.c_uint64, [ctypes.c_int64, ctypes.c_int64, _error]),
    "hocket_adopt": (ctypes.c_int, [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64, ctypes.c_int64, _error]),
    "hocket_calling": (None, [ctypes.c_char_p, ctypes.c_char_p]),
    "hocket_failed": (ctypes.c_int, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_check": (ctypes.c_int, [ctypes.c_int64, _error]),
    "hocket_close": (ctypes.c_int, [ctypes.c_int64, _error]),
}


@functools.lru_cache(maxsize=None)
def _load():
    named = os.environ.get("HOCKET_LIBRARY")
    path = pathlib.Path(named) if named else pathlib.Path(__file__).parent / "libhocket.so"
    if not path.exists():
        raise _errors.UnsupportedError(
            f"hocket's library is not at {path}: install the wheel, or name the file in HOCKET_LIBRARY")
    lib = ctypes.CDLL(str(path))
    for name, (result, args) in _signatures.items():
        f = getattr(lib, name)
        f.restype, f.argtypes = result, args
    if lib.hocket_version() != ABI:
        raise _errors.UnsupportedError(
            f"{path} has version {lib.hocket_version()} of the interface, and this package is for version {ABI}")
    return lib, os.getpid()


def lib():
    """The library; an error in a process that was forked since, which has none of its threads."""
    loaded, pid = _load()
    if os.getpid() != pid:
        raise _errors.UnsupportedError(
            "hocket was used before this process was forked: use it in the parent, or start workers by spawn")
    return loaded


def _take(text):
    value = ctypes.cast(text, ctypes.c_char_p).value.decode()
    lib().hocket_free(text)
    return value


def call(name, *args):
    """Calls a function that can fail; its exception if it does."""
    error = _text()
    result = getattr(lib(), name)(*args, ctypes.byref(error))
    if error:
        raise _errors.of(_take(error))
    return result


def call_text(name, *args):
    """Likewise, one that returns text."""
    return _take(call(name, *args))


def open_machine(options):
    """Opens a machine; its number and who this process is."""
    who = _text()
    handle = call("hocket_open", json.dumps(options).encode(), ctypes.byref(who))
    return handle, json.loads(_take(who))


def pack(ts):
    """Tensors as an array, and how many."""
    return (Tensor * len(ts))(*ts), len(ts)


def run(model, ins, outs):
    """Runs a model on lists of Tensor. Signals are seen meanwhile."""
    wait(call("hocket_run", model, *pack(ins), *pack(outs)))


def wait(ticket):
    """Waits for what goes on in the library. Signals are seen meanwhile."""
    try:
        while not call("hocket_wait", ticket, 100):
            pass
    except _errors.Error:
        raise
    except BaseException:  # KeyboardInterrupt: tensors must stay until the run is over
        try:
            call("hocket_cancel", ticket)
            while not call("hocket_wait", ticket, 1000):
                pass
        except _errors.Error:
            pass  # it is over, perhaps since before the interrupt was seen
        raise
