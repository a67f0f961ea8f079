"""The JSON output of the command line, as objects."""

import json
import os
import pathlib
import shutil
import subprocess
import sysconfig

from . import _lib, _world
from ._errors import Error, InputError, ProgramError, UnsupportedError

try:
    from . import _build  # of a wheel
except ImportError:
    _build = None


def _command():
    named = os.environ.get("HOCKET_COMMAND")
    if named:
        return named
    # The installer puts the command next to other commands, or in a folder below the one given with --target.
    for folder in (sysconfig.get_path("scripts"), pathlib.Path(__file__).parents[1] / "bin"):
        path = shutil.which("hocket", path=str(folder))
        if path:
            return path
    path = shutil.which("hocket")
    if path:
        return path
    raise UnsupportedError("hocket's command is not there: install the wheel, or name the file in HOCKET_COMMAND")


def _run(verb, program, dims, func, ranks, words):
    text = program if isinstance(program, str) and "\n" in program else None
    args = [_command(), verb, "-" if text else os.fspath(program), "--json", *words]
    for name, n in (dims or {}).items():
        args += ["--dim", f"{name}={n}"]
    if func is not None:
        args += ["--func", func]
    if ranks is not None:
        args += ["-n", str(ranks)]
    alone = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "HOCKET_WORLD_SIZE")}
    p = subprocess.run(args, capture_output=True, encoding="utf-8", env=alone, check=False, input=text or "")
    try:
        out = json.loads(p.stdout)
    except json.JSONDecodeError:
        raise Error(f"{' '.join(args)} ended with {p.returncode}: {p.stderr.strip()}") from None
    if p.returncode == 2:
        raise InputError("; ".join(d["message"] for d in out.get("diagnostics", [])))
    return out, p.returncode


def check(program, dims=None, func=None, ranks=None):
    """Proves or refutes a program, and returns the object that ``hocket check --json`` prints. For a program that is
    refused or refuted it raises a ProgramError with the position and the reason, whose ``result`` is the object."""
    out, code = _run("check", program, dims, func, ranks, [])
    if code == 1:
        text = "\n".join(f"{d.get('file', '').replace('<stdin>', 'program.hkt')}:{d.get('line', 0)}: {d['message']}" + (f" ({d['help']})" if d.get("help") else "")
                         for d in out.get("diagnostics", []))
        e = ProgramError(text)
        e.result = out
        raise e
    return out


def info():
    """Describes hocket and the machine: ``versions`` of the ``package`` (None in a checkout), the ``library`` and the
    ``command``, which are equal if they are from one build; ``machine``, ``rank``, ``size`` and ``groups`` of this
    process, None before init; and the parts of CUDA that ``hocket doctor --json`` prints: ``gpus``, each with its link
    to every other GPU ("nvlink", "pcie", or "host" if transfers go through host memory), ``detours``, the reasons for
    transfers through host memory, and ``libraries``. ``exchange`` says how processes exchange data between their GPUs:
    by peer access, or by NCCL and host memory, with the reason."""
    s = _world._state
    of = {"machine": None, "rank": None, "size": None, "groups": []} if s is None else {
        "machine": s.name, "rank": s.rank, "size": s.size, "groups": [list(g.ranks) for g in s.groups]}
    args = [_command(), "doctor", "--json"]
    p = subprocess.run(args, capture_output=True, encoding="utf-8", check=False)
    try:
        out = json.loads(p.stdout)
        machines = out["doctor"]["machines"]
        of["versions"] = {"package": _build and _build.BUILD, "library": _lib.build(), "command": out["hocket"]}
        cuda = next((m["cuda"] for m in machines if "cuda" in m), {})
        of["exchange"] = (s and s.exchange) or cuda.get("exchange")
        return {**cuda, **of}
    except (json.JSONDecodeError, KeyError):
        raise Error(f"{' '.join(args)} ended with {p.returncode}: {p.stderr.strip()}") from None


def explain(program, dims=None, func=None, ranks=None, strategy="auto"):
    """Predicts the cost of strategies: returns the object that ``hocket opt --explain --json`` prints."""
    return _run("opt", program, dims, func, ranks, ["--explain", "--strategy", strategy])[0]
