"""A llama of four layers and its training, by a program of hocket's and by torch's own operations."""

import torch

LAYERS, T, V, H, D, HEADS, KV, F = 4, 16, 48, 32, 8, 4, 2, 64
PROGRAM = f"""dim T = {T}
dim V = {V}
dim H = {H}
dim D = {D}
dim Q = {HEADS}  // heads of queries
dim KV = {KV}  // heads of keys and values
dim F = {F}
dim L = {LAYERS}
mesh tp[N]

func llama(
  %ids: i32[T], %at: i32[T], %table: DT[V/tp, H], %norms: DT[2 * L + 1, H], %wq: DT[L, Q * D/tp, H], %wk: DT[L, KV * D/tp, H],
  %wv: DT[L, KV * D/tp, H], %wo: DT[L, H, Q * D/tp], %gate: DT[L, F/tp, H], %up: DT[L, F/tp, H], %down: DT[L, H, F/tp],
  %head: DT[V/tp, H],
) -> DT[T, V] {{
  %x: DT[T/tp, H] = embedding %ids, %table
  %last = for %l in 0..L carry %h = %x {{
    %a = rms_norm %h, %norms[2 * %l], eps=1e-5
    %q = rope (reshape (linear %a, %wq[%l]), shape=(T, Q, D)), %at
    %k = rope (reshape (linear %a, %wk[%l]), shape=(T, KV, D)), %at
    %v = reshape (linear %a, %wv[%l]), shape=(T, KV, D)
    %s = reshape (attention %q, %k, %v, causal=true), shape=(T, Q * D)
    %o: DT[T/tp, H] = linear %s, %wo[%l]
    %r = add %h, %o
    %b = rms_norm %r, %norms[2 * %l + 1], eps=1e-5
    %m = mul (silu (linear %b, %gate[%l])), (linear %b, %up[%l])
    %d: DT[T/tp, H] = linear %m, %down[%l]
    %z = add %r, %d
    yield %z
  }}
  %n = rms_norm %last, %norms[2 * L], eps=1e-5
  %logits = linear %n, %head
  return %logits
}}
"""
SHAPES = {"table": (V, H), "norms": (2 * LAYERS + 1, H), "wq": (LAYERS, HEADS * D, H), "wk": (LAYERS, KV * D, H), "wv": (LAYERS, KV * D, H),
          "wo": (LAYERS, H, HEADS * D), "gate": (LAYERS, F, H), "up": (LAYERS, F, H), "down": (LAYERS, H, F), "head": (V, H)}
# The dimension of each that a mesh of two ranks splits.
SPLIT = {"table": 0, "wq": 1, "wk": 1, "wv": 1, "wo": 2, "gate": 1, "up": 1, "down": 2, "head": 0}


def program(ranks, dtype="f32"):
    return PROGRAM.replace("[N]", f"[{ranks}]").replace("DT", dtype)


def weights(dtype=torch.float32, device="cpu"):
    """First weights, the same each time."""
    rng = torch.Generator().manual_seed(53)
    w = {n: torch.randn(s, generator=rng) / s[-1] ** 0.5 for n, s in SHAPES.items()}
    w["norms"] = torch.ones(SHAPES["norms"])
    return {n: t.to(dtype=dtype, device=device).requires_grad_() for n, t in w.items()}


def rope(x, at):
    """The first half of a head's elements turned with the second."""
    half = D // 2
    angle = at[:, None].double() * 10000.0 ** (-2 * torch.arange(half, device=x.device).double() / D)
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w


def own(w, ids, at):
    """The model by torch's operations."""
    x = w["table"][ids.long()]
    mask = torch.full((T, T), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
    for i in range(LAYERS):
        a = norm(x, w["norms"][2 * i])
        q = rope((a @ w["wq"][i].T).view(T, HEADS, D), at)
        k = rope((a @ w["wk"][i].T).view(T, KV, D), at).repeat_interleave(HEADS // KV, 1)
        v = (a @ w["wv"][i].T).view(T, KV, D).repeat_interleave(HEADS // KV, 1)
        p = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) / D ** 0.5 + mask, -1)
        x = x + torch.einsum("hqk,khd->qhd", p, v).reshape(T, HEADS * D) @ w["wo"][i].T
        b = norm(x, w["norms"][2 * i + 1])
        x = x + (torch.nn.functional.silu(b @ w["gate"][i].T) * (b @ w["up"][i].T)) @ w["down"][i].T
    return norm(x, w["norms"][2 * LAYERS]) @ w["head"].T


def batch(step, device="cpu"):
    """Ids of a step, their positions, and the ids that come next: an arithmetic progression, which can be learned."""
    ids = (torch.arange(T + 1, device=device) * (step % 3 + 1) + 5 * step) % V
    return ids[:-1].int(), torch.arange(T, dtype=torch.int32, device=device), ids[1:].long()


def train(model, w, optimizer, steps=50):
    """The losses of a model that takes ids and positions, whose weights an optimizer steps."""
    losses = []
    device = next(iter(w.values())).device
    for step in range(steps):
        ids, at, next_ids = batch(step, device)
        loss = torch.nn.functional.cross_entropy(model(ids, at).float() if w["head"].dtype == torch.bfloat16 else model(ids, at), next_ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {"AdamW": lambda w: torch.optim.AdamW(w.values(), lr=3e-3), "SGD": lambda w: torch.optim.SGD(w.values(), lr=0.02, momentum=0.9)}


def theirs(name, dtype=torch.float32, device="cpu"):
    """The losses of torch's own model."""
    w = weights(dtype, device)
    return train(lambda ids, at: own(w, ids, at), w, OPTIMIZERS[name](w))
