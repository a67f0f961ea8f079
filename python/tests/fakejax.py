"""Stands in for JAX, on numpy: a function is its StableHLO text."""

import types

import numpy


class PartitionSpec(tuple):
    def __new__(cls, *axes):
        return super().__new__(cls, axes)


def flatten(tree):
    """The leaves of nested dicts, lists and tuples, and a tree without them."""
    if isinstance(tree, dict):
        parts = [flatten(tree[k]) for k in sorted(tree)]
        return [x for leaves, _ in parts for x in leaves], ("dict", tuple(sorted(tree)), tuple(t for _, t in parts))
    if isinstance(tree, (list, tuple)):
        parts = [flatten(x) for x in tree]
        return [x for leaves, _ in parts for x in leaves], (type(tree).__name__, (), tuple(t for _, t in parts))
    return [tree], None


def unflatten(tree, leaves):
    def build(t):
        if t is None:
            return next(rest)
        kind, keys, parts = t
        parts = [build(p) for p in parts]
        return dict(zip(keys, parts)) if kind == "dict" else tuple(parts) if kind == "tuple" else parts

    rest = iter(leaves)
    return build(tree)


def module(seen):
    """The module jax. ``seen`` gets the options of each jit."""
    def jit(f, **options):
        seen.append(options)
        def call(*args, **kwargs):
            return f(*args, **kwargs)

        call.lower = lambda *args, **kwargs: types.SimpleNamespace(as_text=lambda: f.text, out_info=f.results)
        return call

    def tree_map(f, tree, is_leaf):
        return f(tree) if is_leaf(tree) or not isinstance(tree, (list, tuple)) else type(tree)(tree_map(f, x, is_leaf) for x in tree)

    api = types.ModuleType("jax")
    api.jit, api.numpy = jit, types.SimpleNamespace(asarray=numpy.asarray, bfloat16="uint16")
    api.tree = types.SimpleNamespace(flatten=flatten, unflatten=unflatten, map=tree_map)
    api.ShapeDtypeStruct = lambda shape, dtype: types.SimpleNamespace(shape=shape, dtype=dtype)
    api.sharding = types.SimpleNamespace(NamedSharding=lambda mesh, spec: ("on", mesh, spec))
    return api


class Mesh:
    """A mesh of GPUs: axes by name, with their sizes."""

    def __init__(self, **axes):
        self.axis_names, self.shape = tuple(axes), axes
        self.devices = numpy.array([types.SimpleNamespace(local_hardware_id=i) for i in range(numpy.prod(list(axes.values())))],
                                   dtype=object)


def gpus(api, calls):
    """The module with GPUs. ``calls`` gets each call of a foreign function, and each shard_map; results are zeros."""
    def ffi_call(name, results):
        def call(*args, **attributes):
            calls.append((name, [(r.shape, str(r.dtype)) for r in results], [a.shape for a in args], attributes))
            return [numpy.zeros(r.shape, r.dtype) for r in results]
        return call

    def shard_map(f, *, mesh, in_specs, out_specs, check_vma):
        calls.append((tuple(mesh.axis_names), in_specs, out_specs))
        return f

    api.default_backend, api.shard_map, api.numpy.dtype = lambda: "gpu", shard_map, numpy.dtype
    api.sharding.PartitionSpec = PartitionSpec
    api.ffi = types.SimpleNamespace(ffi_call=ffi_call, pycapsule=lambda f: f,
                                    register_ffi_target=lambda name, f, platform: calls.append((name, platform)))
    return api
