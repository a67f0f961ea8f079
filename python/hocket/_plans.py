"""Tensor-parallel plans as the library takes them: styles by patterns of module paths. torch is not needed: its
objects are recognized by the names of their classes."""

import json
import os

from ._errors import InputError

# Styles of torch's parallelize_module that lay out activations. hocket chooses those itself.
_OF_ACTIVATIONS = {"PrepareModuleInput", "PrepareModuleOutput", "PrepareModuleInputOutput", "SequenceParallel"}


def styles(plan, module=None):
    """The styles of a plan, by pattern. A plan is a dict of styles, the path of a JSON file with such a dict, a plan of
    torch's parallelize_module, a transformers model or config, or a state_dict or module with DTensors. None means the
    placements of the module's DTensors."""
    if plan is None:
        return _of_placements(_parameters(module), module)
    if isinstance(plan, (str, os.PathLike)):
        path = os.fspath(plan)
        with open(path, encoding="utf-8") as f:
            try:
                plan = json.load(f)
            except ValueError as e:
                raise InputError(f"plan: {path} is not a plan, which is a JSON object of styles by pattern: {e}") from None
        if not isinstance(plan, dict) or not all(isinstance(style, str) for style in plan.values()):
            raise InputError(f"plan: {path} is not a plan, which is a JSON object of styles by pattern")
    if isinstance(plan, dict):
        if any(hasattr(v, "placements") for v in plan.values()):
            return _of_placements(plan, module)
        return {k: style for k, v in plan.items() if (style := _style(k, v, module))}
    if (found := _of_transformers(plan)) is not None:
        return found
    if hasattr(plan, "named_parameters"):
        return _of_placements(_parameters(plan), plan)
    raise InputError(f"plan is a {type(plan).__name__}: give a dict of styles, the path of one in JSON, a plan of "
                     "parallelize_module, a transformers model, or a state_dict of DTensors")


def _parameters(module):
    return dict(module.named_parameters()) if hasattr(module, "named_parameters") else {}


def _of_transformers(model):
    """The plan of a transformers model: the model's own plan, and that of its base model with the base model's prefix.
    None if the object is no transformers model."""
    own = getattr(model, "_tp_plan", None)
    config = getattr(model, "config", model)
    base = getattr(config, "base_model_tp_plan", None)
    if own is None and base is None:
        return None
    prefix = getattr(model, "base_model_prefix", "")
    prefix = prefix + "." if prefix and hasattr(model, prefix) else ""
    return {**{prefix + k: v for k, v in (base or {}).items()}, **(own or {})}


def _classes(x):
    return [c.__name__ for c in type(x).__mro__]


def _style(path, style, module):
    """The style of an entry of a plan; None if the entry does not apply to parameters."""
    if isinstance(style, str):
        return style
    names = _classes(style)
    if _OF_ACTIVATIONS.intersection(names):
        return None
    if any(c in part and part != "*" for part in path.split(".") for c in "*?["):
        raise InputError(f"plan: {path}: a pattern has * for one whole component, and no other wildcards")
    embeds = _embeds(path, module)
    if "RowwiseParallel" in names:
        if embeds:
            return "embedding_rowwise"
        return "rowwise_split_input" if _is(style.input_layouts, "Replicate") else "rowwise"
    if "ColwiseParallel" in names:
        if embeds:
            raise InputError(f"plan: {path}: hocket splits embeddings by rows of the vocabulary: use RowwiseParallel")
        return "colwise_gather_output" if _is(style.output_layouts, "Replicate") else "colwise"
    raise InputError(f"plan: {path}: {names[0]} is none of the styles that hocket knows: ColwiseParallel, RowwiseParallel, "
                     f"{', '.join(sorted(_OF_ACTIVATIONS))}; name a style of hocket's: hocket import --help")


def _is(layouts, name):
    return any(name in _classes(p) for p in (layouts if isinstance(layouts, tuple) else (layouts,)))


def _embeds(path, module):
    """Whether the modules at a path are embeddings, which look up rows of a table."""
    if not hasattr(module, "named_modules"):
        return False
    want = path.split(".")
    for name, m in module.named_modules():
        have = name.split(".")[-len(want):]
        if len(have) == len(want) and all(w in ("*", h) for w, h in zip(want, have)) and "Embedding" in _classes(m):
            return True
    return False


def sharded(name, t):
    """The dimension along which a DTensor is split over ranks; None for a tensor that is whole."""
    dims = []
    for p in getattr(t, "placements", ()):
        kind = _classes(p)
        if "Shard" in kind or "_StridedShard" in kind:
            dims.append(p.dim % len(t.shape))
        elif "Replicate" not in kind:
            raise InputError(f"{name} is a DTensor with placement {p}: a weight is sharded or replicated")
    if len(dims) > 1:
        raise InputError(f"{name} is a DTensor that is split along {len(dims)} dimensions of its mesh: hocket has one, of "
                         "tensor parallelism; gather the others, as by fully_shard's unshard()")
    return dims[0] if dims else None


def _of_placements(tensors, module):
    """The styles that DTensors have by their placements, by their own names."""
    found = {}
    for name, t in tensors.items():
        dim = sharded(name, t)
        if dim is None:
            continue
        path = name.rpartition(".")[0]
        if _embeds(path, module):
            style = ("embedding_rowwise", None)[dim]
        elif len(t.shape) > 2:
            style = None
        else:
            style = ("colwise", "rowwise")[dim]
        if style is None:
            raise InputError(f"{name} is a DTensor of {len(t.shape)} dimensions that is split along dimension {dim}: no style "
                             "says that; give a plan")
        found[name] = style
    return found
