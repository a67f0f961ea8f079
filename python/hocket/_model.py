"""Programs as callables."""

import functools
import json
import operator
import os
import threading
import warnings
import weakref

from . import _autograd, _calls, _compare, _cuda, _export, _gradients, _lib, _plans, _tensors, _weights, _world
from ._errors import InputError


MOST_CALLS = 256  # ways to call a model that are kept


def load(program, dims=None, func=None, ranks=None, weights=None, lend=False, plan=None, shard=(), group=None,
         grad=False, **options):
    """Loads a program: a path to a .hkt file or to an archive that torch.export.save wrote (.pt2), a program's text, or
    torch's ExportedProgram. The text is in hocket's language or StableHLO, which JAX's lowered.as_text() returns.

    An archive contains its weights, and torch is not needed to load it. ``plan`` sets the layouts of the weights over
    ranks: a dict of styles by patterns of module paths, the path of a JSON file with such a dict, a plan of torch's
    parallelize_module, a transformers model, or DTensors. ``shard`` adds entries, such as
    ``"layers.*.mlp.up_proj=colwise"``. The arguments of a call are the inputs of the export, by name. State that the
    model keeps between calls begins with the archive's values: see Model.reset. ``weights`` replaces weights:
    safetensors files, which must contain all weights of the model, or tensors by the names of its modules, which
    replace some or all weights. Tensors in host memory are copied: load again after changing them. ``quantize`` is
    "fp8-tensor", "fp8-row" or "fp8-block": the weights of linears are quantized to f8e4m3 when they are read, with a
    scale for the tensor, for each row, or for each 128 by 128 elements, and activations in each call.
    Model.quantization measures the errors that this causes.

    ``dims`` sets dims, ``func`` names the function (default: the last), ``ranks`` is the number of ranks if the text
    leaves it open, and ``weights`` are tensors to bind, by parameter. With ``group``, the processes of a group run the
    program, one rank each: see new_group. ``options`` configure the load: ``strategy``, ``algorithm``, ``fixed``,
    ``gather``, ``no_prove``, ``arena`` (the number of bytes that a rank may use for the plan's tensors, as ``hocket run
    --budget``; default: no limit), ``grace``, and ``graph``: calls on a GPU's tensors launch their kernels as one graph
    from the third on, which costs the caller less. The plan cache keeps a plan for each choice of dims: ``cache`` is
    the number of bytes that all plans may hold (default: 4 GiB), where the plan used last always stays loaded, or "off"
    to unload each plan after its run; ``hard_cache=True`` makes the limit hold without exception; ``buckets={"T": [64,
    256]}`` rounds dims up. See Model.stats.

    Arguments, bound tensors and results are whole if one process runs all ranks. With several processes they are the
    blocks of this process's rank; ``gather=True`` makes results whole in calls on tensors in host memory. This is the
    same on the CPU machine and on GPUs, where arguments and results are torch tensors: see Model. With ``lend=True``,
    results on GPUs that collectives or other ranks write are lent instead of copied: they are views of the model's own
    memory, which are valid until the model's next call for the same dims, or the next replay. See Model. ``lend`` has
    no effect on the CPU machine. All ranks lend alike. Arguments that are not split must be equal on all ranks: calls
    do not check it, but with ``gather=True`` the ranks' copies of results are compared.

    With ``grad=True`` torch's autograd computes gradients of calls, for arguments and for bound tensors that require
    them. Values of a call that the gradients need are stored: ``grad="auto"`` recomputes values that are cheap to
    compute, and ``grad="inputs"`` recomputes all values from the inputs.
    """
    if type(program).__name__ == "ExportedProgram":
        return _export.load_exported(program, "program.pt2", dims=dims, func=func, ranks=ranks, weights=weights, lend=lend,
                                     plan=plan, shard=shard, group=group, grad=grad, **options)
    return load_archive(program, None, dims, func, ranks, weights, lend, plan, shard, group, grad, **options)


def load_archive(program, own, dims=None, func=None, ranks=None, weights=None, lend=False, plan=None, shard=(), group=None,
                 grad=False, original=None, **options):
    """As load. ``own`` contains the weights for an archive without weights, by their names in the tree of modules, and
    ``original`` returns the torch module from which the archive was exported."""
    s = _world.of(group)
    form, rest = options.get("quantize"), {k: v for k, v in options.items() if k != "quantize"}
    again = functools.partial(load_archive, program, None, dims, func, ranks, weights, False, plan, shard, group, **rest)
    o, program = _source(program, plan, shard)
    _check_weights(weights, "export" in o)
    buckets = options.pop("buckets", None)
    if buckets is not None:
        buckets = _sizes(buckets)
    off = options.get("cache") == "off"
    for name, value, other in (("ranks", ranks, ""), ("cache", None if off else options.get("cache"), ", or \"off\""),
                               ("arena", options.get("arena"), "")):
        if value is not None and (whole(value) is None or value < 1):
            raise InputError(f"{name} is {value!r}: it is a number{' of bytes' * (name != 'ranks')} from 1 on{other}")
    if lend not in (True, False):
        raise InputError(f"lend is {lend!r}: it is True or False")
    if off:
        options["cache"] = -1
    o.update(options)
    if "export" in o:
        o["unbound"] = own is not None
        ranks = ranks or (s.size if s.size > 1 else None)
        if (o["plan"] or o["shard"]) and ranks is None:
            warnings.warn("plan and shard split weights over ranks, but the model has 1 rank: pass ranks=N, or start N "
                          "processes", stacklevel=3)
        if isinstance(weights, (str, os.PathLike)):
            weights = [weights]
        if isinstance(weights, (list, tuple)):
            o["weights"], weights = [os.fspath(w) for w in weights], None
    for key, value in (("dims", dims), ("func", func), ("ranks", ranks)):
        if value is not None:
            o[key] = value
    model = _loaded(s, program, o, bool(options.get("gather")), lend, func or os.path.basename(o["name"]), buckets)
    if grad:
        rest = {k: v for k, v in o.items()
                if k not in ("export", "plan", "shard", "weights", "unbound", "quantize", "func")}
        rest["name"] += " (gradient)"  # positions in errors are those of the gradient's text
        name = model._func
        model._gradient = _gradients.Gradient(model, grad, lambda text: _loaded(s, text, rest, False, False, name))
    _unload(s)
    model._unquantized = form and (original if own is not None else again), form
    if "export" in o:
        if own is not None:
            _weights.bind(model, own, True)
        _weights.bind(model, weights or {})
        if model._about.get("unused"):
            warnings.warn("the model has no weights for these tensors, which are ignored: "
                          f"{_weights.some(model._about['unused'])}", stacklevel=3)
    else:
        for key, t in (weights or {}).items():
            model.bind(key, t)
    return model


def _loaded(state, text, options, gather, lend, func, buckets=None):
    return Model(_lib.call("hocket_load", state.machine, text.encode(), json.dumps(options).encode()), state, gather, lend,
                 func, buckets)


def whole(value):
    """Returns a whole number, or None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _check_weights(weights, archive):
    """Raises an error unless weights are of the kinds that load takes."""
    if weights is None:
        return
    if hasattr(weights, "items"):
        for key, t in weights.items():
            if t is None:
                raise InputError(f"the weight {key} is None: give a tensor, or leave the name out")
        return
    files = [weights] if isinstance(weights, (str, os.PathLike)) else weights
    files = isinstance(files, (list, tuple)) and all(isinstance(w, (str, os.PathLike)) for w in files)
    if files and archive:
        return
    if files:
        raise InputError(f"weights is {weights!r}: a program's text takes a dict of tensors by parameter; for files load the "
                         "program without weights, and call model.load(file)")
    way = "give module.state_dict()" if hasattr(weights, "named_parameters") else (
        f"give {'paths of files, or ' * archive}a dict of tensors by name, such as a state_dict")
    raise InputError(f"weights is a {type(weights).__name__}: {way}")


def _sizes(buckets):
    """Returns the values of the buckets of each dim in ascending order."""
    if not hasattr(buckets, "items"):
        raise InputError(f"buckets is {buckets!r}: give a dict of lists by dim, such as {{\"T\": [64, 256]}}")
    sizes = {}
    for dim, values in buckets.items():
        sizes[dim] = [whole(v) for v in values] if isinstance(values, (list, tuple)) else []
        if not sizes[dim] or None in sizes[dim] or min(sizes[dim]) < 1:
            raise InputError(f"buckets has {values!r} for {dim}: give a list of whole numbers from 1 on, such as [64, 256]")
        sizes[dim].sort()
    return sizes


def _source(program, plan, shard):
    """Options that name a program, and its text, which is empty for an archive."""
    if hasattr(program, "named_parameters"):
        raise InputError(f"{type(program).__name__} is a module: hocket.export(module, args) exports and loads it")
    if isinstance(program, str) and "\n" in program:
        name, text, archive = "program.hkt", program, False
    else:
        try:
            name = os.fspath(program)
        except TypeError:
            raise InputError(f"{type(program).__name__}: load takes a path, a program's text or torch's "
                             "ExportedProgram") from None
        if os.path.isdir(name):
            raise InputError(f"{name} is a folder: load takes a program; model.load reads a folder of weights")
        with open(name, "rb") as f:
            start = f.read(9)
        archive = start.startswith(b"PK\x03\x04")
        if start[8:] == b"{" and int.from_bytes(start[:8], "little") < os.path.getsize(name):
            raise InputError(f"{name} is a safetensors file of weights: load takes a program; model.load reads weights")
        text = "" if archive else open_text(name)
    if archive:
        entries = {}
        for entry in [shard] if isinstance(shard, str) else shard:
            pattern, equals, style = entry.partition("=")
            if not equals:
                raise InputError(f"shard: {entry!r}: PATTERN=STYLE is wanted")
            if entries.get(pattern, style) != style:
                raise InputError(f"shard has two styles for {pattern}, {entries[pattern]} and {style}: remove one of them")
            entries[pattern] = style
        return {"name": name, "export": name, "plan": _plans.styles(plan), "shard": entries}, ""
    if plan is not None or shard:
        raise InputError(f"plan and shard lay out models that torch exported, and {name} is none")
    return {"name": name}, text


def open_text(name):
    """Returns the text of a file."""
    try:
        with open(name, encoding="utf-8") as f:
            return f.read()
    except UnicodeDecodeError:
        raise InputError(f"{name} is no text: load takes programs as text, and archives of torch.export.save") from None


def _dims(dims):
    return json.dumps(dims or {}, sort_keys=True).encode()


def _unload(state):
    """Unloads models that were dropped, and closed models whose lent results have been freed."""
    for model in [m for m in state.closing if not m._lent]:
        if model.lends() and not _rested():
            continue
        if model in state.closing:  # else another thread unloads it
            state.closing.remove(model)
            _lib.close(model._open)
    _lib.close_dropped(_rested)


def _rested():
    """Waits for GPU work that may still read freed lent results. Returns False if a graph is being captured."""
    if _cuda.Block.capturing():
        return False
    _cuda.rest()
    return True


def _classes(tensors):
    """Returns what distinguishes calls for which different data is prepared."""
    return tuple([(t.__class__, getattr(t, "dtype", None), getattr(t, "shape", None)) for t in tensors])


class Model:
    """A loaded program. Calling it runs it; threads take turns.

    All tensors of a call, including bound tensors, are in host memory, or all are on a GPU. A call reads the current
    values of the tensors, and updates the tensors of inout parameters in place; these must not share memory with each
    other. A failed call leaves tensors in host memory unchanged. An inout tensor is also among the results of the call
    if it was an argument, but not if it is bound. A result of which this rank has no block is None.

    A call with torch tensors on a GPU enqueues a run on torch's current stream and returns without waiting: work that
    is enqueued later on the stream can use the results. Only the first call for given dims waits, until its plan is
    loaded. While torch.cuda.graph captures the stream, the run becomes part of the graph, if there was an earlier call;
    do not close the model while the graph is replayed. Errors of a run are raised by later calls and by
    ``synchronize``.

    Results that the model lends (see load) are overwritten by its next call for the same dims. Clone results that must
    persist, and results that are arguments of that call, which otherwise raises an InputError. That call begins after
    the work that was enqueued earlier on torch's current stream; the caller must order work on other streams. Plans of
    lent results stay loaded until the model is closed and its lent results are freed. After a failed run, and after
    hocket.shutdown, lent results must not be used.
    """

    def __init__(self, handle, state, gather, lend=False, func="model", buckets=None):
        self._func = func
        self._buckets = buckets or {}
        self._handle, self._open, self._world, self._gather, self._lends = handle, handle, state, gather, lend
        self._lent, self._lendable, self._captured = weakref.WeakSet(), {}, set()
        self._bound, self._layouts, self._names, self._prepared = {}, {}, None, set()
        self._gradient = None  # of load's grad=True
        self._unquantized = None, None  # see quantization
        self._about = json.loads(_lib.call_text("hocket_description", handle, 0))
        self._check_buckets()
        self._begin = {}  # contents of bound states, by name, when they were bound
        self._version = 0  # grows after each change of _bound
        self._calls, self._rest = {}, {}  # by version and what a call is given
        self._alike = {}  # prepared calls and what is bound, by version and by classes, types and shapes of arguments
        self._uploaded = set()  # bound weights of the host that are on the devices
        self._loaded = set()  # parameters that the library has from a checkpoint
        self._weighed = {}  # whole shapes of loaded weights among processes, by parameter
        self._binding = threading.Lock()  # of bound and uploaded weights of the host

    def bind(self, name, t, dims=None):
        """Sets the tensor of a parameter for all later calls: a weight, or state, which calls update if the parameter
        is inout. None removes the binding. ``dims`` sets dims that neither the program nor load fixes, for a tensor on
        a GPU.

        A single process that runs all ranks of the CUDA machine uploads a weight in host memory only once: bind the
        weight again after changing it."""
        if name not in self._parameters():
            raise InputError(f"there is no parameter {name}; there are {', '.join(self._parameters())}")
        t = _cuda.of_dlpack(t)
        if _cuda.is_cuda(t) or isinstance(self._bound.get(name), _cuda.Block):
            b = None if t is None else _cuda.Block(t, name)
            _lib.held("hocket_call_bind_device", self._handle, b, b.struct(self._world.rank) if b else _lib.Tensor(
                name.encode(), b"f32", self._world.rank, 0, None, None, 0), _dims(dims))
            self._bound[name] = b
            self._uploaded.discard(name)
            self._rebound(name, t)
            return
        v = None if t is None else self._fitting(name, _tensors.view(t, name))
        if name in self._about["states"]:
            self._begin[name] = None if v is None else _tensors.bytes_of(v)
        with self._binding:
            uploaded = name in self._uploaded
            self._uploaded.discard(name)  # first: an interrupt may come between any two statements
            self._bound[name] = v
            self._changed()
            if name in self._loaded or uploaded and v is None:  # else the next call uploads v in its place
                _lib.held("hocket_call_bind", self._handle, None,
                          _lib.Tensor(name.encode(), b"f32", -1, 0, None, None, 0))
            self._rebound(name, t)

    def _fitting(self, name, v):
        """Returns the view v. Raises an error if no choice of dims makes it fit the parameter."""
        fixed = self._about["fixed"][name]
        if v.dtype != self._about["types"][name] or len(v.shape) != len(fixed) or any(
                n >= 0 and n != e for n, e in zip(fixed, v.shape)):
            loaded = [f"{dim}={e}" for dim, e in zip(self._about["extents"][name], fixed) if dim and e >= 0]
            raise InputError(f"the parameter {name} is {self._about['declared'][name]}{' with ' * bool(loaded)}"
                             f"{', '.join(loaded)}, and the tensor to bind is {v.dtype}{list(v.shape)}")
        return v

    def _rebound(self, name, t):
        """Updates the gradients and drops cached data of a parameter that is now bound to t."""
        if self._gradient is not None:
            self._gradient.bind(name, (lambda: t) if getattr(t, "requires_grad", False) else None)
        if name in self._loaded:
            self._loaded.discard(name)
            self._layouts.clear()  # its shape said dims
        self._weighed.pop(name, None)
        self._changed()

    def load(self, weights, rules=None, inputs=None, dims=None):
        """Binds weights from a safetensors file, from the index or the folder of several files, or from tensors by
        name, such as a state_dict, also of DTensors. The tensors are whole: with several processes, each process reads
        its rank's rows (while bind expects the rank's block). Returns the names of tensors that no parameter uses.

        A parameter without a rule gets the tensor of the same name, if there is one. ``rules`` describe, by parameter,
        from which tensors other parameters are built: a name, a list of names that are concatenated, or a dict with
        ``from`` and ``transpose=True`` (of the last two dimensions), ``axis``, ``lo`` and ``hi`` (the rows that are
        selected along axis, and concatenated, after the transposition) and ``cast=True`` (to the parameter's type). In
        "layers.*.up.weight" the * stands for the numbers of layers, which are stacked along a new first dimension.
        ``inputs`` are the parameters that calls pass, by default all parameters that get no weight. ``dims`` sets dims
        that neither the program nor load fixes, for tensors by name with several processes."""
        bound, shapes, unused = _weights.load(self, weights, rules or {}, inputs, dims)
        self._loaded |= set(bound)
        for param in (*bound, *shapes):
            self._weighed.pop(param, None)  # the newest are last
        self._weighed.update(shapes)
        self._layouts.clear()
        self._changed()
        return unused

    def layouts(self, dims=None, shapes=None):
        """Returns the layouts of parameters and results over the ranks, for dims and for shapes of parameters by name:
        {"in": [...], "out": [...]}, each with name, dtype, shape and blocks."""
        key = json.dumps({"dims": self._with_weights(dims, shapes or {}), "shapes": shapes or {}, "given": dims or {}},
                         sort_keys=True)
        if key not in self._layouts:
            self._layouts[key] = json.loads(_lib.call_text("hocket_layouts", self._handle, key.encode()))
        return self._layouts[key]

    def __call__(self, *args, dims=None, **kwargs):
        """Runs the program once. Arguments are passed by position or by name; ``dims`` sets dims that neither the
        program nor load fixes. A single result is returned by itself, several results as a tuple."""
        if not kwargs and dims is None:  # most calls on GPUs are like an earlier one
            known = self._alike.get((self._version, _classes(args)))
            if known is not None and not (_cuda.Block.capturing() or any([t.requires_grad for t in args])):
                return known[0](self, args, known[1], self._lendable.get(known[0].text, ()))
        given, dims = self._named(args, kwargs), self._with_weights(dims)
        if self._gradient is not None:
            given = self._gradient.arguments(given)
        version = self._version  # read before what is bound at it
        bound = self._others(given)
        if self._gradient is not None and _autograd.wanted(*given.values()):
            return self._gradient.run(given, bound, dims)
        _autograd.none(self._func, *given.values(), how="load it with grad=True, ")
        if self._buckets:
            return self._rounded(given, bound, dims, version)
        return self._runs(given, bound, dims, version)

    def _runs(self, given, bound, dims, version):
        """Runs the program once with the given arguments and bound tensors."""
        if any(_cuda.is_cuda(t) for t in given.values()) or any(isinstance(b, _cuda.Block) for b in bound.values()):
            return self._enqueue(given, bound, dims, version)
        views = {**{n: _tensors.view(t, n) for n, t in given.items()}, **bound}
        like = next(iter(views.values()), _tensors.View(None, "f32", (), 0, "buffer"))
        layouts = self.layouts(dims, {} if self._several() else {name: v.shape for name, v in views.items()})
        self._check(layouts, views)
        inout = {p["name"] for p in layouts["in"] if p["inout"]}
        ins, results, outs, changed = [], [], [], []
        for p in layouts["in"]:
            v, rank = views.get(p["name"]), self._rank(p, False)
            kept = v is not None and p["name"] in bound and p["name"] not in inout and self._uploads()
            if kept and self._upload(p["name"], v):
                continue
            if v is not None:
                if rank is None:
                    raise InputError(f"rank {self._world.rank} has no block of {p['name']}: give it on "
                                     f"{[b['rank'] for b in p['blocks']]} only")
                if p["name"] in inout and v.readonly:
                    raise InputError(f"the program updates {p['name']} in place, which {v.readonly}: give a writable array "
                                     "of numpy's or tensor of torch's, such as a copy")
                ins.append(v.struct(p["name"], rank))
        for p in layouts["out"]:
            name, updated = p["name"], p["name"] in inout
            rank = self._rank(p, self._gather and not updated)
            if updated:
                v = views.get(name)  # if there is none, the library says so
                changed.append(v)
                if name in given:
                    results.append(given[name])
            elif rank is None:
                v = None
                results.append(None)
            else:
                shape = p["shape"] if rank < 0 else next(b["shape"] for b in p["blocks"] if b["rank"] == rank)
                t, v = _tensors.empty(like, p["dtype"], shape)
                results.append(t)
            if v is not None:
                outs.append(v.struct(name, rank))
        _world.calling(self._call(views))
        _lib.run(self._handle, ins, outs, _dims(dims))
        for v in changed:
            _autograd.written(v and v.keep)
        return results[0] if len(results) == 1 else tuple(results)

    def _check_buckets(self):
        """Raises an error for buckets of dims for which calls cannot pad arguments and shorten results."""
        for dim in self._buckets:
            known = {d: None for extents in (*self._about["extents"].values(), *self._about["returns"]) for d in extents if d}
            if dim in self._about["within"]:
                raise InputError(f"buckets: {dim} is part of an expression in the shape of a parameter or result, which cannot "
                                 "be filled up and cut: have the caller fill up")
            if dim not in known:
                raise InputError(f"buckets: no parameter or result has the dim {dim}; there are {', '.join(known)}")

    def _rounded(self, given, bound, dims, version):
        """Runs the program with dims rounded up to their buckets: arguments are padded with zeros, positions with -1,
        which index_copy skips, and results are shortened. The caller must ensure that the padding does not change the
        other elements of the results."""
        sizes = {**self._dims_of({n: t.shape for n, t in given.items() if hasattr(t, "shape")}), **(dims or {})}
        up, own = {}, {n for n in (*bound, *self._loaded) if n not in given}
        fixed = {dim for n in own for dim in self._about["extents"].get(n, ())}  # bound tensors are not filled up
        for dim, values in self._buckets.items():
            if dim in fixed:
                continue
            if self._several() and dim in self._about["split"] and dim not in dims:
                raise InputError(f"{dim} has buckets, and parameters are split along it over processes: give it in dims")
            least = next((v for v in values if v >= sizes.get(dim, v + 1)), None)
            if least is not None and least != sizes[dim]:
                up[dim] = least
        if not up:
            return self._runs(given, bound, dims, version)
        filled = {}
        for n, t in given.items():
            extents = self._about["extents"].get(n) or ()
            grow = [i for i, dim in enumerate(extents) if dim in up]
            if grow and n in self._about["states"]:
                raise InputError(f"buckets fill up {n}, and the program updates it in place: give it in the size of a bucket")
            for i in grow:
                if t.shape[i] != sizes[extents[i]]:
                    raise InputError(f"buckets round {extents[i]}={sizes[extents[i]]} up to {up[extents[i]]}, and {n} is split along "
                                     f"it over processes: give {extents[i]} in the size of a bucket")
            filled[n] = _tensors.filled(t, [up.get(dim, e) for dim, e in zip(extents, t.shape)], n,
                                         -1 if n in self._about["positions"] else 0) if grow else t
        got = self._runs(filled, bound, {**dims, **up}, version)
        results = list(got) if isinstance(got, tuple) else [got]
        for k, (t, extents) in enumerate(zip(results, self._about["returns"])):
            cut = [slice(0, sizes[dim]) if dim in up else slice(None) for dim in extents]
            if t is None or not any(dim in up for dim in extents):
                continue
            if any(dim in up and e != up[dim] for dim, e in zip(extents, t.shape)):
                raise InputError(f"buckets round {', '.join(up)} up, and a result is split along it over processes")
            results[k] = t[tuple(cut)]
        return tuple(results) if isinstance(got, tuple) else results[0]

    def stats(self):
        """Returns the counters of the plan cache since the machine was opened, for all models of the processes: a dict
        of ``hits`` and ``misses`` (calls whose plan was loaded, and calls whose plan was not), ``reloads`` (misses of
        plans that had been unloaded to make room), ``evictions``, the number of loaded ``plans`` and their ``bytes``
        (of which ``device`` are on the GPU), and ``most_bytes``, the largest value of ``bytes`` so far."""
        return json.loads(_lib.call_text("hocket_plan_stats", self._handle))

    def _enqueue(self, given, bound, dims, version):
        """Enqueues a run on torch's current stream. bound holds the tensors that were bound at a version."""
        key = (version, tuple((n, getattr(t, "dtype", None), getattr(t, "shape", None)) for n, t in given.items()),
               tuple(sorted(dims.items())) if dims else ())
        call = self._calls.get(key)
        text = call.text if call else self._dims_text(given, bound, dims)
        if _cuda.Block.capturing():  # replays read the tensors that are bound now
            self._captured |= {b for b in self._bound.values() if b}
            self._world.captured.add(self)
        elif text not in self._prepared:
            _world.calling(self._func)
            _lib.held("hocket_call_prepare", self._handle, text)
            self._prepared.add(text)
            if self._lends:
                self._open.lends = True
                self._lendable[text] = json.loads(_lib.call_text("hocket_lendable", self._handle, text))
        if call is None:
            if len(self._calls) >= MOST_CALLS:
                self._calls.clear()
                self._alike.clear()
            call = _calls.Call(self, given, bound, self.layouts(json.loads(text)), text)
            self._calls[key] = call
            if (text in self._prepared and self._gradient is None and not self._buckets
                    and dims == self._with_weights(None) and list(given) == self._free(())[:len(given)]):
                self._alike[version, _classes(given.values())] = call, bound
        return call(self, list(given.values()), bound, self._lendable.get(text, ()))

    def _dims_text(self, given, bound, dims):
        """Returns the dims of a call on GPUs. Raises an error if the arguments do not belong to such a call."""
        if self._gather:
            raise InputError("results on GPUs are blocks: load without gather=True, and call hocket.all_gather")
        for n, b in bound.items():
            if not isinstance(b, _cuda.Block):
                raise InputError(f"{n} is bound to a tensor in the host's memory, and other tensors of the call are on a "
                                 "GPU: bind one that is there, too")
        for n, t in given.items():
            _cuda.Block(t, n)
        if not self._several():  # blocks are whole, and their shapes say dims
            dims = {**self._dims_of({n: t.shape for n, t in given.items() if hasattr(t, "shape")}), **(dims or {})}
        return _dims(dims)

    @property
    def text(self):
        """Returns the program's text."""
        return self._about["text"]

    @property
    def inputs(self):
        """Returns the names of the parameters that calls pass, in order."""
        return list(self._about.get("inputs") or self._parameters())

    @property
    def proof(self):
        """Returns the verdict on the plan for the dims that the program and load fix: "proved" or "unknown". The plan
        is made and loaded unless a call has already done so. For a refuted plan, a ProgramError is raised."""
        return json.loads(_lib.call_text("hocket_description", self._handle, 1))["proof"]

    def reset(self):
        """Restores the initial values of states: the archive's values and, for tensors in host memory, the values at
        the time of bind. A state that is bound to a tensor on a GPU must be bound again instead."""
        for name, b in self._bound.items():
            if isinstance(b, _cuda.Block) and name in self._about["states"]:
                raise InputError(f"{name} is bound to a tensor on a GPU: give that its first values yourself")
        _lib.call("hocket_reset", self._handle)
        for name, data in self._begin.items():
            if data is not None:
                _tensors.restore(self._bound[name], data)

    def compare(self, *args, dims=None, **kwargs):
        """Compares the model with the reference evaluator, on inputs as a call takes them, as a whole and layer by layer:
        a Comparison. State stays as it is. It is slow, and works where one process runs all ranks.

        ``compare(module, args)`` also calls the model and a torch module once, and adds the errors of the model's
        results compared with the module's results."""
        if self._several():
            raise InputError("a comparison works where one process runs all ranks: start the script without a launcher")
        module = None
        if args and not hasattr(args[0], "__array__") and callable(getattr(args[0], "forward", None)):
            module, *rest = args
            args = tuple(rest[0]) if rest and isinstance(rest[0], (tuple, list)) else tuple(rest)
        given = self._named(args, kwargs)
        views = {n: _tensors.view(_tensors.on_host(t), n) for n, t in given.items()}
        for n, b in self._bound.items():
            if b is not None and n not in given:
                views[n] = _tensors.view(_tensors.on_host(b.tensor), n) if isinstance(b, _cuda.Block) else b
        out = _lib.compare(self._handle, [v.struct(n) for n, v in views.items()], _dims(dims))
        against = None
        if module is not None:
            against = _compare.against_module(self(*args, dims=dims, **kwargs), module, args, kwargs)
        return _compare.Comparison(out, against)

    def quantization(self, *args, dims=None, **kwargs):
        """Measures how much the results of a model that was loaded with ``quantize=`` differ from the results without
        quantization, for the arguments of a call. Returns a list of Difference, one for each floating-point result. str
        of a Difference is the line that ``hocket run --quantize`` prints.

        A model of an archive is loaded again without ``quantize`` and, if it has state, once more with ``quantize``, so
        that both begin with the archive's state. A model that was exported from a module is compared with the module,
        which must still exist, and cannot have state. With several processes, all processes make this call, and each
        compares its own results."""
        original, form = self._unquantized
        if not form:
            raise InputError("the model is not quantized: load it with quantize=\"fp8-block\", \"fp8-row\" or \"fp8-tensor\"")
        stateful = bool(self._about["states"])
        if not isinstance(original, functools.partial):
            module = original and original()
            if module is None or stateful:
                raise InputError("the model has state: compare it by `hocket run --quantize`" if module is not None else
                                 "the module that was exported does not exist any more: keep it to measure against it")
            return _compare.differences(self(*args, dims=dims, **kwargs), _compare.copies(_compare.of_module(module, args, kwargs)))
        with original() as other:
            want = _compare.copies(other(*args, dims=dims, **kwargs))
        if not stateful:
            return _compare.differences(self(*args, dims=dims, **kwargs), want)
        with original(quantize=form) as other:
            return _compare.differences(other(*args, dims=dims, **kwargs), want)

    def _changed(self):
        """Drops the cached data of calls with bound tensors."""
        self._version += 1
        self._calls.clear()
        self._alike.clear()
        self._rest.clear()

    def _others(self, given):
        """Returns the tensors bound to the parameters that a call does not pass."""
        key = self._version, tuple(given)
        bound = self._rest.get(key)
        if bound is None:
            bound = {n: b for n, b in dict(self._bound).items() if b is not None and n not in given}
            if len(self._rest) >= MOST_CALLS:
                self._rest.clear()
            self._rest[key] = bound
        return bound

    def _dims_of(self, shapes):
        """Returns the dims that follow from shapes of parameters."""
        extents = self._about["extents"]
        return {dim: int(e) for n, shape in shapes.items() if n in extents and len(extents[n]) == len(shape)
                for dim, e in zip(extents[n], shape) if dim}

    def _with_weights(self, dims, shapes=()):
        """Returns dims together with the dims that follow from loaded weights, except from weights whose shapes may
        change."""
        if not self._weighed:
            return dict(dims or {})
        of = self._dims_of({n: shape for n, shape in self._weighed.items() if n not in shapes})
        return {**of, **(self._dims_of(shapes) if shapes else {}), **(dims or {})}

    def _keeps(self, name):
        """Returns whether the library keeps the state of that name."""
        return "inputs" in self._about and name in self._about["states"]

    def lends(self):
        """Returns whether an earlier call lent a result, which requires ``lend=True`` in load."""
        return any(self._lendable.values())

    def prepare(self, dims=None):
        """Loads the plan for dims. Otherwise the first call for these dims loads it."""
        _lib.held("hocket_call_prepare", self._handle, _dims(dims))

    def synchronize(self):
        """Waits until runs on GPUs have ended, and raises their errors."""
        _lib.held("hocket_call_sync", self._handle)

    def _named(self, args, kwargs):
        """Returns the arguments by parameter."""
        free = self._free(kwargs)
        if len(args) > len(free):
            twice = [n for n in self._free(())[:len(args)] if n in kwargs]
            if twice:
                raise InputError(f"{', '.join(twice)} is given both by position and by name: remove one of them")
            raise InputError(f"{len(args)} tensors are given by position, and there is a place for {len(free)}: {free}")
        return {n: _cuda.of_dlpack(t) for n, t in (*zip(free, args), *kwargs.items())}

    def _free(self, named):
        """Returns the names of the parameters to which arguments by position belong, in order."""
        return [n for n in self.inputs if n not in named and self._bound.get(n) is None and n not in self._loaded]

    def _parameters(self):
        if self._names is None:
            self._names = json.loads(_lib.call_text("hocket_parameters", self._handle))
        return self._names

    def _check(self, layouts, views):
        """Raises an error for names that are not names of parameters. The library reports missing and misshapen
        arguments."""
        unknown = sorted(set(views) - {p["name"] for p in layouts["in"]})
        if unknown:
            raise InputError(f"there is no parameter {', '.join(unknown)}; there are {', '.join(self.inputs)}")
        n = 1 + max((b["rank"] for p in (*layouts["in"], *layouts["out"]) for b in p["blocks"]), default=0)
        if self._world.size > 1 and n != self._world.size:
            raise InputError(f"the program has {n} ranks, and there are {self._world.size} processes, which have one rank "
                             f"each: start {n} processes, as by hocket launch -n {n}")

    def _call(self, views):
        """Returns the description of the call for errors in other processes."""
        return f"{self._func}({', '.join(f'{n} {v.dtype}{list(v.shape)}' for n, v in views.items())})"

    def _several(self):
        """Returns whether there are several processes with one rank each."""
        return self._world.size > 1

    def _uploads(self):
        """Returns whether bound weights in host memory are uploaded only once."""
        return not self._several() and self._world.name != "cpu"

    def _upload(self, name, v):
        """Uploads a bound weight unless it is on the devices. Returns False if another tensor was bound meanwhile."""
        with self._binding:
            if self._bound.get(name) is not v:
                return False
            if name not in self._uploaded:
                _lib.held("hocket_call_bind", self._handle, v, v.struct(name))
                self._uploaded.add(name)
            return True

    def _rank(self, port, gathered):
        """Returns the rank whose block of a parameter or result this process has: -1 for the whole tensor, None if it
        has no block."""
        if not self._several() or gathered:
            return -1
        return next((b["rank"] for b in port["blocks"] if b["rank"] == self._world.rank), None)

    def close(self):
        """Unloads the program. While results that the model has lent exist, it stays loaded, although it cannot be
        called. After they are freed, it is unloaded when any model is loaded or closed."""
        if self._handle:
            if self._gradient is not None:
                self._gradient.close()
            self._handle, self._bound, self._captured = 0, {}, set()
            self._changed()
            self._world.captured.discard(self)
            self._world.closing.append(self)
            _unload(self._world)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
