"""Functions of JAX, lowered by JAX and run by hocket."""

import importlib

from . import _cuda, _model, _world
from ._errors import InputError, UnsupportedError


def jax(f, *, mesh=None, in_shardings=None, out_shardings=None, **options):
    """A function that computes what jax.jit(f) does, by hocket: JAX lowers f for the arguments of a call, and hocket loads
    what it prints. It takes and gives JAX's arrays, and numpy's as JAX does.

    Shardings are those of jax.jit; a PartitionSpec in them is one of ``mesh``. Layouts of the program follow from them: it
    has as many ranks as the mesh has devices, and arrays are whole. Options are those of load.

        step = hocket.jax(jax.grad(loss))
        grads = step(params, batch)
        print(step.model(params, batch).text)

    A call on arrays on a GPU opens the CUDA machine, and needs torch, which orders JAX's streams and hocket's.
    """
    return Function(f, mesh, {"in_shardings": in_shardings, "out_shardings": out_shardings}, options)


class Function:
    """A function of JAX that hocket runs."""

    def __init__(self, f, mesh, shardings, options):
        self._api, self._loaded = importlib.import_module("jax"), {}
        self._options = {"name": getattr(f, "__name__", "function") + ".mlir", **options}
        given = {name: self._named(s, mesh) for name, s in shardings.items() if s is not None}
        self._jit = self._api.jit(f, keep_unused=True, **given)

    def __call__(self, *args, **kwargs):
        """Calls the function. The first call for given shapes and types lowers and loads it."""
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
        if any(map(_on_gpu, leaves)):
            _world.init("cuda")
        key = tree, tuple((x.shape, str(x.dtype)) for x in leaves)
        if key not in self._loaded:
            self._loaded[key] = _Loaded(self._jit.lower(*args, **kwargs), self._api, self._options)
        return self._loaded[key], leaves

    def _named(self, shardings, mesh):
        """Shardings in which each PartitionSpec is one of the mesh."""
        def one(x):
            if type(x).__name__ != "PartitionSpec":
                return x
            if mesh is None:
                raise InputError(f"{x} names axes: give hocket.jax their mesh")
            return self._api.sharding.NamedSharding(mesh, x)

        return self._api.tree.map(one, shardings, is_leaf=lambda x: x is None or type(x).__name__ == "PartitionSpec")

    def _result(self, x, info):
        """A result as an array of JAX's."""
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
    """What JAX lowered, loaded."""

    def __init__(self, lowered, api, options):
        if not (text := lowered.as_text()).lstrip().startswith(("module", "#")):
            raise UnsupportedError("JAX printed no StableHLO")
        self.results, self.tree = api.tree.flatten(lowered.out_info)
        self.model = _model.load(text, **options)
        self.inputs = set(self.model.inputs)
        # With several ranks in this process arrays are whole, in the host's memory.
        layouts = self.model.layouts()
        self.whole = any(len(p["blocks"]) > 1 for p in (*layouts["in"], *layouts["out"]))


def _on_gpu(x):
    return hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] == 2


def _argument(x, whole):
    """An array as a model takes it: bool as i32, others without a copy if they are where the model is."""
    if str(x.dtype) == "bool":
        x = x.astype("int32")
    if whole or not _on_gpu(x):
        return importlib.import_module("numpy").asarray(x)
    try:
        importlib.import_module("torch")
    except ImportError:
        raise UnsupportedError("arrays of JAX on a GPU: install torch, which orders JAX's streams and hocket's") from None
    return _cuda.of_dlpack(x)
