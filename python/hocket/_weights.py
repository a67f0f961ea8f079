"""Weights: of checkpoints and tensors by rules, and of exported models by the names of their modules."""

import difflib
import functools
import json
import os
import re
import sys

from . import _cuda, _lib, _plans, _tensors
from ._errors import InputError, UnsupportedError

_RULE = {"from": None, "transpose": False, "axis": 0, "lo": 0, "hi": 0, "cast": False}


def load(model, weights, rules, inputs, dims):
    """See Model.load. Returns the parameters that the library has bound, the whole shapes of other parameters if
    processes have blocks, and the names of unused tensors."""
    rules = {param: _rule(param, r) for param, r in rules.items()}
    if isinstance(weights, (str, os.PathLike)):
        of = {"path": os.fspath(weights), "rules": [{"param": param, **r} for param, r in rules.items()], "inputs": inputs}
        out = json.loads(_lib.call_text("hocket_bind_from", model._handle, json.dumps(of).encode()))
        for param in out["bound"]:
            model._bound.pop(param, None)
            if model._gradient is not None:
                model._gradient.bind(param, None)
        _complete(model, inputs, out["bound"])
        return out["bound"], {}, out["unused"]
    if hasattr(weights, "state_dict"):
        weights = weights.state_dict()
    params = model._parameters()
    for param in (*rules, *(inputs or ())):
        if param not in params:
            raise InputError(f"there is no parameter {param}; there are {', '.join(params)}")
        if param in rules and inputs and param in inputs:
            raise InputError(f"{param} has a rule, and is an input")
    for param in params:
        if param in weights and param not in rules and param not in (inputs or ()):
            rules[param] = {**_RULE, "from": [param]}
    _complete(model, inputs, rules)
    named = {param: _expanded(weights, r["from"]) for param, r in rules.items()}
    if not named:
        raise InputError(f"none of the {len(weights)} tensors has the name of a parameter; there are {some(weights)}"
                         f"{'; hocket.load(program, weights=…) takes the names of modules' * ('weights' in model._about)}")
    shapes = {param: _shape(model, param, rules[param], layers, weights) for param, layers in named.items()}
    layouts = {p["name"]: p for p in model.layouts(dims, shapes)["in"]} if model._several() else {}
    made = {}
    for param, layers in named.items():
        made[param] = functools.partial(_made, model, param, rules[param], layers,
                                        {n: weights[n] for layer in layers[1] for n in layer}, layouts.get(param))
    bound = [(param, make(False)) for param, make in made.items()]
    for param, t in bound:
        if t is not None and not _cuda.is_cuda(t):
            model._fitting(param, _tensors.view(t, param))  # before any is bound
    for param, t in bound:
        if t is not None:
            model.bind(param, t, {**model._dims_of(shapes), **(dims or {})})
            parts = [weights[n] for layer in named[param][1] for n in layer]
            if model._gradient is not None and any(getattr(t, "requires_grad", False) for t in parts):
                model._gradient.bind(param, functools.partial(made[param], True))
    used = {name for layers in named.values() for names in layers[1] for name in names}
    return (), shapes if model._several() else {}, [name for name in weights if name not in used]


def _complete(model, inputs, weights):
    """Raises an error if a parameter that inputs does not name has no weight. Without inputs it checks nothing."""
    missing = [] if inputs is None else [p for p in model._parameters() if p not in weights and p not in inputs
                                         and p not in model._loaded and model._bound.get(p) is None]
    if missing:
        raise InputError(f"nothing is bound to {', '.join(missing)}: give each a rule, or name it in inputs")


def _rule(param, r):
    if not isinstance(r, dict):
        r = {"from": r}
    unknown = set(r) - set(_RULE)
    if unknown or "from" not in r:
        raise InputError(f"the rule of {param} is {r}: it is a name, a list of names, or a dict of {', '.join(_RULE)}")
    names = [r["from"]] if isinstance(r["from"], str) else list(r["from"])
    return {**_RULE, **r, "from": names}


def _some(tensors):
    """Lists existing names for a message."""
    names = sorted(tensors)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _expanded(tensors, patterns):
    """Returns whether a * in the names means numbers of layers, and the names of the tensors of each layer."""
    stacked = "*" in patterns[0]
    if any(("*" in p) != stacked or p.count("*") > 1 for p in patterns):
        raise InputError(f"either all of {patterns} have one * or none has")
    layers = 1
    for p in patterns if stacked else ():
        numbered = re.compile(re.escape(p[: p.index("*")]) + r"(\d{1,4})(?!\d)")
        layers = max([layers, *(int(m[1]) + 1 for m in map(numbered.match, tensors) if m)])
    names = [[p.replace("*", str(i)) for p in patterns] for i in range(layers)]
    for name in (n for layer in names for n in layer):
        if name not in tensors:
            close = difflib.get_close_matches(name, list(tensors), 3)
            raise InputError(f"there is no tensor {name}; there are {', '.join(close) or _some(tensors)}")
    return stacked, names


def _shape(model, param, rule, layers, tensors):
    """Returns the whole shape of the weight that a rule builds. Raises the same errors as for files if the weight
    cannot be built."""
    stacked, names = layers
    axis, shapes = rule["axis"], []
    for layer in names:
        parts = [_shape_of_part(model, param, rule, name, tensors, len(layer) > 1) for name in layer]
        shape = list(parts[0])
        for name, part in zip(layer[1:], parts[1:]):
            if _dtype(tensors[name]) != _dtype(tensors[layer[0]]) or shape[:axis] + shape[axis + 1 :] != part[:axis] + part[axis + 1 :]:
                raise InputError(f"the rule of {param}: {_about(layer[0], tensors)} and {_about(name, tensors)} cannot be concatenated "
                                 f"along dimension {axis}")
            shape[axis] += part[axis]
        shapes.append(shape)
        if shape != shapes[0] or _dtype(tensors[layer[0]]) != _dtype(tensors[names[0][0]]):
            raise InputError(f"the rule of {param}: layers differ: {_about(names[0][0], tensors)} and {_about(layer[0], tensors)}")
    return [len(names), *shape] if stacked else shape


def _shape_of_part(model, param, rule, name, tensors, joined):
    """Returns the shape of a tensor after transposition and selection of rows."""
    t, axis = tensors[name], rule["axis"]
    if not any(hasattr(t, name) for name in ("detach", "swapaxes", "full_tensor")):
        raise InputError(f"a weight of {param} is a {type(t).__name__}: give tensors of torch or arrays of numpy")
    scale = next((s for s in (f"{name}_scale_inv", f"{name}_scale") if s in tensors), None)
    if rule["cast"] and scale and _dtype(t).startswith("f8") and not model._about["types"][param].startswith("f8"):
        raise InputError(f"{_about(name, tensors)} with the scales {scale}, and only files are multiplied by their scales: load "
                         "the file, or give the product")
    shape = list(t.shape)
    if rule["transpose"]:
        if len(shape) < 2:
            raise InputError(f"the rule of {param}: {_about(name, tensors)} and cannot be transposed")
        shape[-1], shape[-2] = shape[-2], shape[-1]
    if not (joined or rule["lo"] or rule["hi"]):
        return shape
    if not 0 <= axis < len(shape):
        raise InputError(f"the rule of {param}: {_about(name, tensors)} and has no dimension {axis}")
    lo, hi = rule["lo"], rule["hi"] or shape[axis]
    if not 0 <= lo <= hi <= shape[axis]:
        raise InputError(f"the rule of {param}: {_about(name, tensors)}, which has no range {lo}..{hi} along dimension {axis}")
    shape[axis] = hi - lo
    return shape


def _dtype(t):
    name = str(t.dtype).removeprefix("torch.")
    return _tensors.TORCH.get(name, name)


def _about(name, tensors):
    return f"{name} is {_dtype(tensors[name])}{list(tensors[name].shape)}"


def _made(model, param, rule, layers, tensors, layout, live):
    """Returns a parameter that is built by its rule: the block of the rank, None if the rank has no block, or the whole
    tensor. If live is set, autograd records how the parameter is built."""
    stacked, names = layers
    block = None
    if layout is not None:
        block = next((b for b in layout["blocks"] if b["rank"] == model._world.rank), None)
        if block is None:
            return None
    if block and not stacked and len(names[0]) == 1 and not (rule["transpose"] or rule["lo"] or rule["hi"]):
        t = tensors[names[0][0]]
        split = [i for i, (n, of) in enumerate(zip(block["shape"], layout["shape"])) if n != of]
        if hasattr(t, "placements") and split == [_plans.sharded(param, t)] and list(t.to_local().shape) == block["shape"]:
            return _typed(model, param, rule, t.to_local())
    parts = [[_part(rule, tensors[name], live) for name in layer] for layer in names]
    join = _library(parts[0][0])
    whole = [layer[0] if len(layer) == 1 else join("concat", layer, rule["axis"]) for layer in parts]
    whole = join("stack", whole, 0) if stacked else whole[0]
    if block:
        if list(whole.shape) != layout["shape"]:
            raise InputError(f"{param} is {layout['dtype']}{layout['shape']}, and what its rule makes {list(whole.shape)}")
        whole = whole[tuple(slice(lo, lo + n) for lo, n in zip(block["lo"], block["shape"]))]
        whole = whole.clone() if hasattr(whole, "clone") else whole.copy()  # not a view, which would keep the rest
    return _typed(model, param, rule, whole)


def _library(t):
    """Concatenation and stacking, by the library to which a tensor belongs."""
    module = sys.modules["torch" if hasattr(t, "detach") else "numpy"]
    return lambda how, parts, axis: (module.stack if how == "stack" else getattr(module, "cat", None) or module.concatenate)(
        parts, axis)


def _part(rule, t, live):
    """Returns a tensor from which a parameter is built, transposed and with its rows selected."""
    if hasattr(t, "full_tensor"):
        t = t.full_tensor()
    if hasattr(t, "detach") and not live:
        t = t.detach()
    if rule["transpose"]:
        t = t.swapaxes(-1, -2)
    if rule["lo"] or rule["hi"]:
        t = t[(slice(None),) * rule["axis"] + (slice(rule["lo"], rule["hi"] or None),)]
    return t


def _typed(model, param, rule, t):
    """Returns a dense tensor, cast if the rule requests it."""
    want = model._about["types"][param]
    if rule["cast"] and _dtype(t) != want:
        kind = _tensors.NAMES[want]
        t = t.to(getattr(sys.modules["torch"], kind)) if hasattr(t, "detach") else t.astype(kind)
    return t.contiguous() if hasattr(t, "contiguous") else sys.modules["numpy"].ascontiguousarray(t)


def bind(model, tensors, every=False):
    """Binds tensors, by names of parameters of the program or of weights in the tree of modules. Layers that the
    program stacks are stacked. If every weight is wanted, other tensors are ignored. Otherwise other weights keep the
    archive's values, and a tensor whose name is neither a parameter's nor a weight's in the archive gives an error.
    Tensors on a GPU stay there if the process has one rank."""
    if not tensors:
        return
    sources, states = model._about.get("weights", {}), model._about["states"]
    keys = _keys(model, tensors, every)
    layouts = {p["name"]: p for p in model.layouts()["in"]}
    device = next((t.device for t in tensors.values() if _cuda.is_cuda(t)), None)
    if device is not None and not model._several() and any(len(p["blocks"]) > 1 for p in layouts.values()):
        device = "cpu"
    found, made = {}, {}
    values = [sources[p] for p in sources if "quantize" in model._about and model._about["types"][p] == "f8e4m3"]
    for param, names in sources.items():
        whole = param in names and param in tensors and list(tensors[param].shape) == layouts[param]["shape"]
        if param in tensors and not whole and not (every and param in states):
            found[param] = tensors[param]
        elif param not in states:
            parts = [tensors.get(keys.get(name)) for name in names]
            missing = [name for name, t in zip(names, parts) if t is None]
            if len(missing) < len(names):
                if missing:
                    raise InputError(f"there is no weight {missing[0]}, and others of the layers that make {param} are there")
                for name, t in zip(names, parts):
                    _check_shape(model, keys[name], name, t)
                if names in values:  # the parameter has the values or the scales of these weights
                    scales = model._about["types"][param] != "f8e4m3"
                    parts = [_quantized(name, t, model._about["quantize"], scales) for name, t in zip(names, parts)]
                elif model._gradient is not None and any(getattr(t, "requires_grad", False) for t in parts):
                    made[param] = functools.partial(_live, model, layouts[param], names, parts, device)
                found[param] = _joined(model, layouts[param], names, parts)
            elif every:
                raise InputError(f"there is no weight {missing[0]}")
    for param, t in found.items():
        if device is None and param not in states and len(sources[param]) == 1:  # stacking copies the others
            t = t.clone() if hasattr(t, "clone") else t.copy() if hasattr(t, "copy") else t
        model.bind(param, t if device is None else _placed(t, device))
        if param in made:
            model._gradient.bind(param, made[param])


def _quantized(name, t, form, scales):
    """Returns the f8e4m3 values or the scales of a weight, computed as by the operations quantize and scales."""
    if not hasattr(t, "detach"):
        raise InputError(f"{name} is a {type(t).__name__}, and is to be quantized: give tensors of torch, or a file")
    import torch

    t = (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().float()
    rows, cols = t.shape
    high, wide = {"fp8-tensor": (rows, cols), "fp8-row": (1, cols), "fp8-block": (128, 128)}[form]
    across, down = -(-cols // wide), -(-rows // high)
    blocks = torch.nn.functional.pad(t, (0, across * wide - cols, 0, down * high - rows))
    blocks = blocks.view(down, high, across, wide)
    by = (blocks.abs().amax((1, 3)) / 448).clamp(min=1e-12)
    if scales:
        return by.reshape({"fp8-tensor": (), "fp8-row": (rows,), "fp8-block": (down, across)}[form])
    if not hasattr(torch, "float8_e4m3fn"):
        raise UnsupportedError(f"this is torch {torch.__version__}, which has no float8_e4m3fn: use 2.1 or newer, or "
                               "give load a safetensors file")
    values = (blocks / by[:, None, :, None]).clamp(-448, 448)
    return values.view(down * high, across * wide)[:rows, :cols].to(torch.float8_e4m3fn)


def _live(model, layout, names, parts, device):
    """Returns the parameter that is built from the current weights; autograd records how it is built."""
    t = _joined(model, layout, names, parts, True)
    return t if device is None else _placed(t, device)


def _placed(t, device):
    """Returns a tensor on a device at an aligned address, so that programs use it without a copy."""
    t = t.to(device)
    return t if t.data_ptr() % 256 == 0 else t.clone()


def _keys(model, tensors, every):
    """Returns the key of each weight's tensor: the name of the weight, another name of a shared weight, or the longest
    suffix of one of these names, because the archive's names may have a prefix of outer modules."""
    shapes, shared = model._about.get("shapes", {}), model._about.get("shared", {})
    first = {other: name for name, others in shared.items() for other in others}
    keys, found = {}, {}
    for name in shapes:
        rest, at = name, name
        while at:
            if rest in tensors and (rest == name or "." in rest and rest not in shapes):
                weight = first.get(name, name)
                if len(rest) > len(keys.get(weight, "")):
                    keys[weight] = rest
                found.setdefault(rest, []).append(name)
                break
            _, at, rest = rest.partition(".")
    if every:
        return keys
    for key, names in found.items():
        if len({first.get(name, name) for name in names}) > 1:
            raise InputError(f"the name {key} is ambiguous: it is the end of {some(names)}")
    unknown = [key for key in tensors if key not in found and key not in model._about["types"]]
    if unknown:
        whole = next((name for name in found if name.endswith("." + unknown[0])), None)
        if whole:
            raise InputError(f"{unknown[0]} and {whole} name one weight: give only one of them")
        close = difflib.get_close_matches(unknown[0], list(shapes), 1, 0.5)
        near = f"did you mean {close[0]}?" if close else f"its names are as {some(shapes)}"
        raise InputError(f"the model has no weight {some(unknown)}; {near}")
    return keys


def some(names):
    """Lists at most three names for a message."""
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_shape(model, key, name, t):
    """Raises an error unless a tensor has the shape of the archive's weight."""
    want = model._about["shapes"][name]
    if hasattr(t, "dtype") and list(t.shape) != want:
        raise InputError(f"{_about(key, {key: t})}, and the model's weight {name} has the shape {want}"
                         f"{': give whole tensors' * model._several()}")


def _joined(model, layout, names, parts, live=False):
    """Returns the parameter that is built from weights: whole if this process runs all ranks, otherwise the block of
    its rank. If live is set, autograd records how it is built."""
    block = next((b for b in layout["blocks"] if b["rank"] == model._world.rank), None) if model._several() else None
    if block:
        split = [i for i, (n, of) in enumerate(zip(block["shape"], layout["shape"])) if n != of]
        stacked = len(layout["shape"]) - len(parts[0].shape)
        have = [_plans.sharded(name, t) for name, t in zip(names, parts)]
        if all(d is not None and split == [d + stacked] for d in have) and stacked == (len(parts) > 1):
            return _stack([t.to_local() for t in parts], block["shape"], layout, live)
    whole = _stack([t.full_tensor() if hasattr(t, "full_tensor") else t for t in parts], layout["shape"], layout,
                   live)
    if not block:
        return whole
    cut = tuple(slice(lo, lo + n) for lo, n in zip(block["lo"], block["shape"]))
    part = whole[cut]
    return part.contiguous() if hasattr(part, "contiguous") else part.copy()


def _stack(parts, shape, layout, live):
    """Concatenates parts to one tensor with the given shape."""
    numpy = sys.modules.get("numpy")
    if hasattr(parts[0], "detach"):
        import torch

        parts = parts if live else [t.detach() for t in parts]
        if len(parts) > 1 and str(parts[0].dtype).startswith("torch.float8"):  # not every torch stacks these
            whole = torch.stack([t.view(torch.uint8) for t in parts]).view(parts[0].dtype)
        else:
            whole = parts[0].contiguous() if len(parts) == 1 else torch.stack(parts)
    elif numpy and isinstance(parts[0], numpy.ndarray):
        whole = numpy.ascontiguousarray(parts[0]) if len(parts) == 1 else numpy.stack(parts)
    else:
        raise InputError(f"a weight of {layout['name']} is a {type(parts[0]).__name__}: give tensors of torch or arrays of numpy")
    dtype = _tensors.TORCH.get(str(whole.dtype).removeprefix("torch."))
    if dtype != layout["dtype"]:
        raise InputError(f"{layout['name']} is {layout['dtype']}{list(shape)}, and the weights given for it have the type "
                         f"{dtype or whole.dtype}")
    return whole.reshape(tuple(shape))
