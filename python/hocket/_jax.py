"""Functions of JAX, lowered by JAX and run by hocket."""

import importlib
import json

from . import _cuda, _lib, _model, _world
from ._errors import InputError, UnsupportedError


def jax(f, *, mesh=None, in_shardings=None, out_shardings=None, **options):
    """Returns a function that computes the same as jax.jit(f), with hocket: JAX lowers f for the arguments of a call,
    and hocket loads the StableHLO text. Arguments and results are JAX arrays; numpy arrays are accepted as by JAX.

    Shardings are as for jax.jit; a PartitionSpec in them refers to the axes of ``mesh``. The layouts of the program
    follow from the shardings. The program has as many ranks as the mesh has devices, and arrays are whole. Options are
    those of load.

        step = hocket.jax(jax.grad(loss))
        grads = step(params, batch)
        print(step.model(params, batch).text)

    If JAX's default backend is a GPU, the function is made by jax.jit and calls hocket by XLA's foreign functions, on
    XLA's streams and buffers on all devices of the mesh. On GPUs, kernels are launched as one graph from the third call
    on; ``graph=False`` makes each call launch its kernels one by one.
    """
    return Function(f, mesh, {"in_shardings": in_shardings, "out_shardings": out_shardings}, options)


class Function:
    """A JAX function that hocket runs."""

    def __init__(self, f, mesh, shardings, options):
        self._api, self._loaded, self._mesh = importlib.import_module("jax"), {}, mesh
        self._foreign = getattr(self._api, "default_backend", lambda: "cpu")() in ("gpu", "cuda")
        if self._foreign:
            options = {"graph": True, **options}
        self._options = {"name": getattr(f, "__name__", "function") + ".mlir", **options}
        given = {name: self._named(s, mesh) for name, s in shardings.items() if s is not None}
        self._jit = self._api.jit(f, keep_unused=True, **given)
        self._direct = self._api.jit(self._traced, **given) if self._foreign else None

    def __call__(self, *args, **kwargs):
        """Calls the function. The first call for given shapes and types lowers and loads it."""
        if self._foreign:
            try:
                return self._direct(*args, **kwargs)
            except _Missing:  # JAX cannot lower a function while it traces another
                self._of(args, kwargs)
                return self._direct(*args, **kwargs)
        loaded, leaves = self._of(args, kwargs)
        named = {f"arg{i}": x for i, x in enumerate(leaves)}
        out = loaded.model(**{name: _argument(x, loaded.whole) for name, x in named.items() if name in loaded.inputs})
        outs = out if isinstance(out, tuple) else (out,)
        return self._api.tree.unflatten(loaded.tree, [self._result(x, info) for x, info in zip(outs, loaded.results)])

    def model(self, *args, **kwargs):
        """The loaded Model for arguments like these. Its parameters are arg0, arg1 and so on: the arrays in the arguments,
        in JAX's order."""
        return self._of(args, kwargs)[0].model

    def _of(self, args, kwargs):
        leaves, tree = self._api.tree.flatten((args, kwargs))
        leaves = [self._api.numpy.asarray(x) for x in leaves]
        if self._foreign or any(map(_on_gpu, leaves)):
            _world.init("cuda")
        key = _key(tree, leaves)
        if key not in self._loaded:
            self._loaded[key] = _Loaded(self._jit.lower(*args, **kwargs), self._api, self._options, self._foreign)
        return self._loaded[key], leaves

    def _traced(self, *args, **kwargs):
        """The function that JAX traces: a call of hocket by XLA, on the ranks' blocks."""
        leaves, tree = self._api.tree.flatten((args, kwargs))
        loaded = self._loaded.get(_key(tree, leaves))
        if loaded is None:
            raise _Missing
        named = {f"arg{i}": x for i, x in enumerate(leaves)}
        ins = [x.astype("int32") if str(x.dtype) == "bool" else x for x in (named[n] for n in loaded.names)]
        outs = loaded.call(self._mesh, ins)
        outs = [x if x.dtype == info.dtype else x.astype(info.dtype) for x, info in zip(outs, loaded.results)]
        return self._api.tree.unflatten(loaded.tree, outs)

    def _named(self, shardings, mesh):
        """Shardings in which each PartitionSpec is replaced by a NamedSharding of the mesh."""
        def one(x):
            if type(x).__name__ != "PartitionSpec":
                return x
            if mesh is None:
                raise InputError(f"{x} names axes: give hocket.jax their mesh")
            return self._api.sharding.NamedSharding(mesh, x)

        return self._api.tree.map(one, shardings, is_leaf=lambda x: x is None or type(x).__name__ == "PartitionSpec")

    def _result(self, x, info):
        """Converts a result to a JAX array."""
        numpy = importlib.import_module("numpy")
        if _cuda.is_cuda(x):
            x = self._api.dlpack.from_dlpack(x)
        else:
            x = numpy.asarray(x)
            if x.dtype == "uint16":  # numpy has bf16 from JAX alone
                x = x.view(self._api.numpy.bfloat16)
            x = self._api.numpy.asarray(x)
        return x if x.dtype == info.dtype else x.astype(info.dtype)


class _Loaded:
    """A loaded program that JAX has lowered."""

    def __init__(self, lowered, api, options, foreign):
        if not (text := lowered.as_text()).lstrip().startswith(("module", "#")):
            raise UnsupportedError("JAX printed no StableHLO")
        self.results, self.tree = api.tree.flatten(lowered.out_info)
        self.model, self._api = _model.load(text, **options), api
        self.inputs = set(self.model.inputs)
        layouts = self.model.layouts()
        self._ins, self._outs = [p for p in layouts["in"] if p["name"] in self.inputs], layouts["out"]
        self.names = [p["name"] for p in self._ins]  # without constants of the text, which are bound
        self._ranks = 1 + max((b["rank"] for p in (*self._ins, *self._outs) for b in p["blocks"]), default=0)
        # Without foreign functions, and with several ranks in this process, arrays are whole and in host memory.
        self.whole = self._ranks > 1
        if foreign:
            self.model.prepare()
            self._number = _foreign(api, self.model, self._ranks, self.names, [p["name"] for p in self._outs])

    def call(self, mesh, ins):
        """The results of a call by XLA on traced arrays."""
        api = self._api
        blocks = [api.ShapeDtypeStruct(tuple(p["blocks"][0]["shape"]), api.numpy.dtype(_DTYPES[p["dtype"]]))
                  for p in self._outs]
        number = importlib.import_module("numpy").int64(self._number.value)
        call = lambda *a: tuple(api.ffi.ffi_call("hocket", blocks)(*a, foreign=number))
        if self._ranks == 1:
            return call(*ins)
        if mesh is None or mesh.devices.size != self._ranks:
            raise InputError(f"the program has {self._ranks} ranks: give hocket.jax a mesh of as many devices")
        on = [d.local_hardware_id for d in mesh.devices.flat]
        if on != list(range(self._ranks)):
            raise InputError(f"the mesh has the GPUs {on}, and the program's ranks are on the first {self._ranks}, in order")
        spec = lambda p: _spec(api, mesh, p)
        return api.shard_map(call, mesh=mesh, in_specs=tuple(map(spec, self._ins)),
                             out_specs=tuple(map(spec, self._outs)), check_vma=False)(*ins)


class _Missing(Exception):
    """Raised if no program is loaded for the shapes and types of a call."""


_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "i64": "int64"}


def _key(tree, leaves):
    return tree, tuple((tuple(x.shape), str(x.dtype)) for x in leaves)


def _foreign(api, model, ranks, ins, outs):
    """Returns the number of a model that XLA calls."""
    if not _registered:
        lib = _lib.lib()
        api.ffi.register_ffi_target("hocket", api.ffi.pycapsule(lib.hocket_xla), platform="CUDA")
        _registered.append(lib)
    return _lib.call("hocket_foreign", model._handle, json.dumps({"ranks": ranks, "in": ins, "out": outs}).encode())


_registered = []


def _spec(api, mesh, port):
    """The PartitionSpec of a parameter or result: the axes of the mesh that split each dimension."""
    los = {b["rank"]: b["lo"] for b in port["blocks"]}
    step, splits = len(los), [[] for _ in port["shape"]]
    for axis in mesh.axis_names:  # the last axis counts ranks fastest
        step //= mesh.shape[axis]
        if mesh.shape[axis] > 1:
            for d, lo in enumerate(los[step]):
                if lo:
                    splits[d].append((lo, axis))
    named = [tuple(a for _, a in sorted(s, reverse=True)) for s in splits]  # the axis of the larger steps comes first
    return api.sharding.PartitionSpec(*(n or None for n in named))


def _on_gpu(x):
    return hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] == 2


def _argument(x, whole):
    """Converts an array to the form that a model accepts: bool becomes i32; others are copied only between devices."""
    if str(x.dtype) == "bool":
        x = x.astype("int32")
    if whole or not _on_gpu(x):
        return importlib.import_module("numpy").asarray(x)
    try:
        importlib.import_module("torch")
    except ImportError:
        raise UnsupportedError("arrays of JAX on a GPU: install torch, which orders JAX's streams and hocket's") from None
    return _cuda.of_dlpack(x)
