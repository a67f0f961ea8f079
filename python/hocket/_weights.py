"""Weights of exported models from tensors, by the names of the model's modules."""

import functools
import sys

from . import _cuda, _plans, _tensors
from ._errors import InputError


def bind(model, tensors, every=False):
    """Binds tensors, by names of parameters of the program or of weights in the tree of modules. Layers that the program
    stacks are stacked. Weights that are not given stay the archive's, unless every one is wanted; other tensors, such as
    buffers that the program does not use, are left out. Tensors on a GPU stay there if the process has one rank."""
    if not tensors:
        return
    sources, states = model._about.get("weights", {}), model._about["states"]
    layouts = {p["name"]: p for p in model.layouts()["in"]}
    device = next((t.device for t in tensors.values() if _cuda.is_cuda(t)), None)
    if device is not None and not model._several() and any(len(p["blocks"]) > 1 for p in layouts.values()):
        device = "cpu"
    found, made = {}, {}
    for param, names in sources.items():
        if param in tensors and not (every and param in states):
            found[param] = tensors[param]
        elif param not in states:
            parts = [_find(tensors, name) for name in names]
            missing = [name for name, t in zip(names, parts) if t is None]
            if len(missing) < len(names):
                if missing:
                    raise InputError(f"there is no weight {missing[0]}, and others of the layers that make {param} are there")
                found[param] = _joined(model, layouts[param], names, parts)
                if model._gradient is not None and any(getattr(t, "requires_grad", False) for t in parts):
                    made[param] = functools.partial(_live, model, layouts[param], names, parts, device)
            elif every:
                raise InputError(f"there is no weight {missing[0]}")
    if not found and sources and not every:  # the own tensors of a module may all be states
        some = ", ".join(sorted({name for names in sources.values() for name in names})[:3])
        raise InputError(f"none of the {len(tensors)} tensors is a weight of the model, whose names are as {some}")
    for param, t in found.items():
        model.bind(param, t if device is None else _placed(t, device))
        if param in made:
            model._gradient.bind(param, made[param])


def _live(model, layout, names, parts, device):
    """The parameter that weights make now, of which autograd sees how it is made."""
    t = _joined(model, layout, names, parts, True)
    return t if device is None else _placed(t, device)


def _placed(t, device):
    """A tensor on a device, at an address where programs use it without a copy."""
    t = t.to(device)
    return t if t.data_ptr() % 256 == 0 else t.clone()


def _find(tensors, name):
    """The tensor of a weight: the one with the longest name that ends like it, since the archive may have modules around
    the model."""
    rest, at = name, name
    while at:
        if rest in tensors and (rest == name or "." in rest):
            return tensors[rest]
        _, at, rest = rest.partition(".")
    return None


def _joined(model, layout, names, parts, live=False):
    """The parameter that weights make: whole where this process runs all ranks, else the block of its rank. Autograd
    sees how it is made if it is live."""
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
    """Parts one after another, as one tensor of a shape."""
    numpy = sys.modules.get("numpy")
    if hasattr(parts[0], "detach"):
        import torch

        parts = parts if live else [t.detach() for t in parts]
        whole = parts[0].contiguous() if len(parts) == 1 else torch.stack(parts)
    elif numpy and isinstance(parts[0], numpy.ndarray):
        whole = numpy.ascontiguousarray(parts[0]) if len(parts) == 1 else numpy.stack(parts)
    else:
        raise InputError(f"a weight of {layout['name']} is a {type(parts[0]).__name__}: give tensors of torch or arrays of numpy")
    n = 1
    for e in shape:
        n *= e
    dtype = _tensors.TORCH.get(str(whole.dtype).removeprefix("torch."))
    have = 1
    for e in whole.shape:
        have *= e
    if have != n or dtype != layout["dtype"]:
        raise InputError(f"{layout['name']} is {layout['dtype']}{list(shape)}, and the weights given for it are "
                         f"{dtype}{list(whole.shape)}")
    return whole.reshape(tuple(shape))
