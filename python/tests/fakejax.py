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
        lower = lambda *args, **kwargs: types.SimpleNamespace(as_text=lambda: f.text, out_info=f.results)
        return types.SimpleNamespace(lower=lower)

    def tree_map(f, tree, is_leaf):
        return f(tree) if is_leaf(tree) or not isinstance(tree, (list, tuple)) else type(tree)(tree_map(f, x, is_leaf) for x in tree)

    api = types.ModuleType("jax")
    api.jit, api.numpy = jit, types.SimpleNamespace(asarray=numpy.asarray, bfloat16="uint16")
    api.tree = types.SimpleNamespace(flatten=flatten, unflatten=unflatten, map=tree_map)
    api.sharding = types.SimpleNamespace(NamedSharding=lambda mesh, spec: ("on", mesh, spec))
    return api
