"""A llama in plain JAX, forward and gradient, by XLA and by hocket in turns: results compared, and microseconds of a call.

    python3 tools/peers/jax_llama.py [--ranks 2] [--dtype bfloat16] [--scan] [--layers 2] [--rows 512] …

A row says what was called and how: the median of single calls that are each waited for, of calls that are only made
(host), and of a chain of calls. XLA multiplies f32 in full precision, as hocket does.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import hocket


def arguments():
    p = argparse.ArgumentParser()
    for name, value in (("ranks", 1), ("layers", 2), ("rows", 512), ("hidden", 1024), ("ffn", 2816), ("heads", 16),
                        ("kv", 4), ("vocab", 2048), ("rounds", 7), ("chain", 20)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--scan", action="store_true", help="stack the layers' weights and scan over them")
    p.add_argument("--torch", action="store_true", help="also call hocket by way of torch's DLPack, as before foreign functions")
    return p.parse_args()


def norm(x, w):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * w


def rotate(x):
    t, half = x.shape[0], x.shape[-1] // 2
    angle = jnp.arange(t)[:, None] * (10000.0 ** (-jnp.arange(half) / half))[None]
    c, s = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def layer(x, w, a):
    t, d = x.shape[0], a.hidden // a.heads
    h = norm(x, w["n1"])
    q = rotate((h @ w["q"]).reshape(t, a.heads, d))
    k = rotate((h @ w["k"]).reshape(t, a.kv, d))
    v = (h @ w["v"]).reshape(t, a.kv, d)
    k, v = (jnp.repeat(y, a.heads // a.kv, axis=1) for y in (k, v))
    score = jnp.einsum("thd,shd->hts", q, k) / np.sqrt(d).astype(x.dtype)
    score = jnp.where(jnp.tril(jnp.ones((t, t), bool)), score, jnp.finfo(x.dtype).min)
    p = jax.nn.softmax(score.astype(jnp.float32), -1).astype(x.dtype)
    x = x + jnp.einsum("hts,shd->thd", p, v).reshape(t, a.hidden) @ w["o"]
    h = norm(x, w["n2"])
    return x + (jax.nn.silu(h @ w["g"]) * (h @ w["u"])) @ w["d"]


def logits(params, ids, a):
    x = params["embed"][ids]
    if a.scan:
        x, _ = jax.lax.scan(lambda y, w: (layer(y, w, a), None), x, params["layers"])
    else:
        for w in params["layers"]:
            x = layer(x, w, a)
    return norm(x, params["norm"]) @ params["head"]


def loss(params, ids, labels, a):
    z = logits(params, ids, a).astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], 1))


def build(a):
    kv = a.kv * (a.hidden // a.heads)
    shapes = {"n1": (a.hidden,), "q": (a.hidden, a.hidden), "k": (a.hidden, kv), "v": (a.hidden, kv),
              "o": (a.hidden, a.hidden), "n2": (a.hidden,), "g": (a.hidden, a.ffn), "u": (a.hidden, a.ffn),
              "d": (a.ffn, a.hidden)}
    split = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "g": P(None, "tp"), "u": P(None, "tp"),
             "o": P("tp", None), "d": P("tp", None), "n1": P(None), "n2": P(None)}
    rng = np.random.default_rng(1)

    def weight(shape):
        value = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) / np.sqrt(shape[0])
        return jnp.asarray(value, a.dtype)

    layers = [{k: weight(s) for k, s in shapes.items()} for _ in range(a.layers)]
    specs = [dict(split) for _ in range(a.layers)]
    if a.scan:
        layers = jax.tree.map(lambda *x: jnp.stack(x), *layers)
        specs = {k: P(None, *s) for k, s in split.items()}
    params = {"embed": weight((a.vocab, a.hidden)), "layers": layers, "norm": weight((a.hidden,)),
              "head": weight((a.hidden, a.vocab))}
    where = {"embed": P(None, None), "layers": specs, "norm": P(None), "head": P(None, "tp")}
    ids = [jnp.asarray(rng.integers(0, a.vocab, a.rows), jnp.int32) for _ in range(2)]
    return params, where, ids


def differ(got, want):
    """The largest error over the largest value, of the worst leaf."""
    f64 = lambda x: np.asarray(x, np.float64)
    return max(float(np.abs(f64(x) - f64(y)).max() / max(np.abs(f64(y)).max(), 1e-30))
               for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))


def times(call, chain):
    """Microseconds of a single call, of making it, and of one of a chain."""
    begin = time.perf_counter()
    out = call()
    made = time.perf_counter()
    jax.block_until_ready(out)
    single = time.perf_counter()
    for _ in range(chain):
        out = call()
    jax.block_until_ready(out)
    end = time.perf_counter()
    return [1e6 * x for x in (single - begin, made - begin, (end - single) / chain)]


def main():
    a = arguments()
    jax.config.update("jax_default_matmul_precision", "highest" if a.dtype == "float32" else "default")
    params, where, (ids, labels) = build(a)
    mesh = Mesh(np.array(jax.devices()[: a.ranks]), ("tp",))
    named = lambda tree: jax.tree.map(lambda s: jax.sharding.NamedSharding(mesh, s), tree, is_leaf=lambda x: isinstance(x, P))
    placed = {} if a.ranks == 1 else {"mesh": mesh}
    if a.ranks > 1:
        params = jax.tree.map(jax.device_put, params, named(where))
        ids, labels = (jax.device_put(x, named(P(None))) for x in (ids, labels))
    for name, f, args, specs in (
            ("forward", lambda p, i: logits(p, i, a), (params, ids), (where, P(None))),
            ("gradient", jax.grad(lambda p, i, y: loss(p, i, y, a)), (params, ids, labels), (where, P(None), P(None)))):
        given = {} if a.ranks == 1 else {"in_shardings": named(specs)}
        ways = {"XLA": jax.jit(f, **given)}
        for way, graph in (("hocket", True), ("hocket graph=False", False)):
            ways[way] = hocket.jax(f, **placed, **given, graph=graph)
        if a.torch and a.ranks == 1:
            ways["hocket by torch"] = old = hocket.jax(f, graph=False)
            old._foreign = False
        want, wrong = ways["XLA"](*args), {}
        for way, call in list(ways.items())[1:]:
            begin = time.perf_counter()
            for _ in range(4):  # the second records the graph
                got = call(*args)
            wrong[way] = differ(got, want)
            print(f"{name}, {way}: ready in {time.perf_counter() - begin:.1f} s, error {wrong[way]:.2e}, "
                  f"{call.model(*args).proof}", flush=True)
            if not wrong[way] < 0.5:  # also NaN; rounding to bf16 is far below
                raise SystemExit(f"{name}, {way}: the results are wrong")
        all = {way: [] for way in ways}
        for _ in range(a.rounds):
            for way, call in ways.items():
                all[way].append(times(lambda: call(*args), a.chain))
        for way, rows in all.items():
            single, host, chain = (statistics.median(c) for c in zip(*rows))
            print(f"{name}\t{a.dtype}\t{a.ranks} ranks\t{'scan' if a.scan else 'layers'}\t{way}\tsingle {single:.0f} µs\t"
                  f"host {host:.0f}\tchain {chain:.0f}", flush=True)


if __name__ == "__main__":
    main()
