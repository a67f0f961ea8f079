"""The shared library, by ctypes."""

import collections
import ctypes
import functools
import json
import os
import pathlib

from . import _errors

ABI = 4  # hocket.h's version that this package is for


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("rank", ctypes.c_int64), ("dims", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64),
    ]


class Handle(ctypes.c_int64):
    """The number of an object of the library. ctypes creates it within the call that creates the object, so that an
    interrupt cannot lose it. If it is collected before it was closed, the number is added to ``dropped``."""

    lends = False  # a GPU may still read results that the object lent

    def __del__(self):
        if self.value:
            dropped.append((self.value, self.lends))


dropped = collections.deque()


class _Interpreter(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("leave", "enter", "interrupted", "retain", "release")]


class _Python(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("leave", "enter", "word", "number", "failed")]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


_FASTCALL = 0x80  # CPython's METH_FASTCALL
_text = ctypes.POINTER(ctypes.c_char)  # not c_char_p, which forgets the address to free
_error = ctypes.POINTER(_text)
_signatures = {
    "hocket_version": (ctypes.c_int, []),
    "hocket_build": (ctypes.c_char_p, []),
    "hocket_free": (None, [_text]),
    "hocket_open": (Handle, [ctypes.c_char_p, _error, _error]),
    "hocket_group": (Handle, [ctypes.c_int64, ctypes.c_char_p, _error, _error]),
    "hocket_load": (Handle, [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, _error]),
    "hocket_layouts": (_text, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_description": (_text, [ctypes.c_int64, ctypes.c_int, _error]),
    "hocket_bind_from": (_text, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_plan_stats": (_text, [ctypes.c_int64, _error]),
    "hocket_laps": (_text, [ctypes.c_int, _error]),
    "hocket_gradient": (_text, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_reset": (ctypes.c_int, [ctypes.c_int64, _error]),
    "hocket_comparison": (_text, [ctypes.c_int64, _error]),
    "hocket_parameters": (_text, [ctypes.c_int64, _error]),
    "hocket_form": (Handle, [ctypes.c_int64, ctypes.POINTER(Tensor), ctypes.c_int64, ctypes.POINTER(Tensor),
                             ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_enqueue": (ctypes.c_int, [ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64,
                                      ctypes.c_char_p, _error]),
    "hocket_foreign": (Handle, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_lendable": (_text, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_collectives": (Handle, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_do_norm": (ctypes.c_int, [ctypes.c_int64, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_double]
                       + [ctypes.c_uint64] * 6 + [_error]),
    "hocket_device": (ctypes.c_int, [ctypes.c_int64, _error]),
    "hocket_empty": (ctypes.c_uint64, [ctypes.c_int64, ctypes.c_int64, _error]),
    "hocket_calling": (None, [ctypes.c_char_p, ctypes.c_char_p]),
    "hocket_failed": (ctypes.c_int, [ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_check": (ctypes.c_int, [ctypes.c_int64, _error]),
}
_with, _object, _tensors = ctypes.POINTER(_Interpreter), ctypes.py_object, ctypes.POINTER(Tensor)
_held = {  # functions that retain an object while the library uses its memory: see hocket_interpreter in hocket.h
    "hocket_call_run": (ctypes.c_int, [_with, ctypes.c_int64, _object, _tensors, ctypes.c_int64, _tensors,
                                       ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_call_compare": (ctypes.c_int, [_with, ctypes.c_int64, _object, _tensors, ctypes.c_int64, ctypes.c_char_p,
                                           _error]),
    "hocket_call_prepare": (ctypes.c_int, [_with, ctypes.c_int64, ctypes.c_char_p, _error]),
    "hocket_call_sync": (ctypes.c_int, [_with, ctypes.c_int64, _error]),
    "hocket_call_bind": (ctypes.c_int, [_with, ctypes.c_int64, _object, _tensors, _error]),
    "hocket_call_bind_device": (ctypes.c_int, [_with, ctypes.c_int64, _object, _tensors, ctypes.c_char_p, _error]),
    "hocket_call_adopt": (ctypes.c_int, [_with, ctypes.c_int64, _object, ctypes.POINTER(ctypes.c_uint64),
                                         ctypes.c_int64, ctypes.c_int64, _error]),
    "hocket_call_close": (ctypes.c_int, [_with, ctypes.c_int64, _error]),
}
_process = None  # the process that has begun to load the library


@functools.lru_cache(maxsize=None)
def _load():
    global _process
    named = os.environ.get("HOCKET_LIBRARY")
    path = pathlib.Path(named) if named else pathlib.Path(__file__).parent / "libhocket.so"
    if named == "-":  # the running program is linked with it
        path = None
    elif not path.exists():
        raise _errors.UnsupportedError(
            f"hocket's library is not at {path}: install the wheel, or name the file in HOCKET_LIBRARY")
    _process = _process or os.getpid()
    path = path and str(path)
    lib = ctypes.CDLL(path)
    if lib.hocket_version() != ABI:  # first: an older library lacks functions
        raise _errors.UnsupportedError(
            f"{path} has version {lib.hocket_version()} of the interface, and this package is for version {ABI}")
    for name, (result, args) in _signatures.items():
        f = getattr(lib, name)
        f.restype, f.argtypes = result, args
    held, api = ctypes.PyDLL(path), ctypes.pythonapi  # PyDLL calls with the interpreter's lock held
    for name, (result, args) in _held.items():
        f = getattr(held, name)
        f.restype, f.argtypes = result, args
        setattr(lib, name, f)
    lib.interpreter = _Interpreter(*(ctypes.cast(f, ctypes.c_void_p) for f in (
        api.PyEval_SaveThread, api.PyEval_RestoreThread, api.PyErr_CheckSignals, api.Py_IncRef, api.Py_DecRef)))
    lib.do = _method(lib, "hocket_python_do")
    return lib


def _method(lib, name):
    """Returns a function of the library that has CPython's own calling convention. A call of it costs a tenth of a
    call by ctypes. It releases the interpreter's lock, as a function of ctypes does."""
    api = ctypes.pythonapi
    lib.hocket_use_python.restype = None
    lib.hocket_use_python(ctypes.byref(_Python(*(ctypes.cast(f, ctypes.c_void_p) for f in (
        api.PyEval_SaveThread, api.PyEval_RestoreThread, api.PyLong_AsUnsignedLongLongMask,
        api.PyLong_FromUnsignedLongLong, api.PyErr_Occurred)))))
    method = _Method(name.encode(), ctypes.cast(getattr(lib, name), ctypes.c_void_p), _FASTCALL, None)
    api.Py_IncRef(ctypes.py_object(method))  # callers may outlive this module when the interpreter ends
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p)(
        ("PyCFunction_NewEx", api))
    return new(ctypes.byref(method), None, None)


def lib():
    """Returns the library. Raises an error in a forked process, which has none of the library's threads."""
    if _process not in (None, os.getpid()):
        raise _errors.UnsupportedError(
            "hocket was used before this process was forked: use it in the parent, or start workers by spawn")
    return _load()


def build():
    """Returns the library's version, with the commit if it is known: "0.1.0+703982d6abcd"."""
    return lib().hocket_build().decode()


def taken(address):
    """Returns the text at an address, which the library has allocated, and frees it."""
    return _take(ctypes.cast(address, _text))


def _take(text):
    value = ctypes.cast(text, ctypes.c_char_p).value.decode()
    lib().hocket_free(text)
    return value


def call(name, *args):
    """Calls a function of the library, and raises the exception for its error."""
    error = _text()
    result = getattr(lib(), name)(*args, ctypes.byref(error))
    if error:
        raise _errors.of(_take(error))
    return result


def call_text(name, *args):
    """Calls a function of the library that returns text, and raises the exception for its error."""
    return _take(call(name, *args))


def open_machine(options):
    """Opens a machine. Returns its number, and the rank and size of this process's world."""
    who = _text()
    handle = call("hocket_open", json.dumps(options).encode(), ctypes.byref(who))
    return handle, json.loads(_take(who))


def open_group(machine, options):
    """Opens a machine for some of the processes of another machine; returns its number, and the rank of this
    process."""
    who = _text()
    handle = call("hocket_group", machine, json.dumps(options).encode(), ctypes.byref(who))
    return handle, json.loads(_take(who))


def pack(ts):
    """Returns an array of the tensors, and its length."""
    return (Tensor * len(ts))(*ts), len(ts)


def held(name, *args):
    """Calls a function of the library that retains a Python object, and waits for its end. Signal handlers run
    meanwhile. If an interrupt raises an exception, the run is cancelled, and the exception is raised when the run has
    ended."""
    return call(name, ctypes.byref(lib().interpreter), *args)


def run(model, ins, outs, dims):
    """Runs a model on lists of Tensor, for dims as JSON."""
    held("hocket_call_run", model, (ins, outs), *pack(ins), *pack(outs), dims)


def compare(model, ins, dims):
    """Compares a model with its reference, and returns the comparison."""
    held("hocket_call_compare", model, (ins,), *pack(ins), dims)
    return json.loads(call_text("hocket_comparison", model))


def close(handle):
    """Closes an object."""
    held("hocket_call_close", handle)
    handle.value = 0


def close_dropped(rest=lambda: True):
    """Closes objects that were dropped. rest waits for work on GPUs; it returns False if it cannot wait now."""
    while dropped:
        try:
            handle, lends = first = dropped[0]
        except IndexError:  # another thread was faster
            return
        if lends and not rest():
            return
        try:
            held("hocket_call_close", handle)
        except _errors.Error:  # for example, its machine was closed
            pass
        finally:
            if first in dropped:
                dropped.remove(first)
