"""A Llama in plain JAX, forward and gradient, by XLA and by hocket alternately: errors, and microseconds of a call.

    python3 tools/peers/jax_llama.py [--ranks 1 2] [--dtype bfloat16 float32] [--only gradient] [--scan] …

A row is a program and a way to call it: the seconds until the first result; the largest error over the largest value of
the worst array, against XLA's results in f32; and the medians of a single call with its wait, of the time until a call
returns, and of a call in a chain. The script fails if hocket's error is above four times XLA's plus 1e-4: XLA keeps
values of bf16 in f32 within a kernel, and hocket rounds them. XLA multiplies f32 in full precision, as hocket does.
--text writes the StableHLO of each program to a folder.
"""

import argparse
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import hocket


def arguments():
    p = argparse.ArgumentParser()
    for name, value in (("layers", 2), ("rows", 512), ("hidden", 1024), ("ffn", 2816), ("heads", 16), ("kv", 4),
                        ("vocab", 2048), ("rounds", 5), ("chain", 20)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--ranks", type=int, nargs="+", default=[1])
    p.add_argument("--dtype", nargs="+", default=["float32"])
    p.add_argument("--only", choices=("forward", "gradient"), help="one of the programs")
    p.add_argument("--scan", action="store_true", help="stack the layers' weights and scan over them")
    p.add_argument("--eager", action="store_true", help="also call hocket with graph=False")
    p.add_argument("--text", type=pathlib.Path, metavar="FOLDER", help="write the StableHLO of the programs")
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


def build(a, dtype):
    kv = a.kv * (a.hidden // a.heads)
    shapes = {"n1": (a.hidden,), "q": (a.hidden, a.hidden), "k": (a.hidden, kv), "v": (a.hidden, kv),
              "o": (a.hidden, a.hidden), "n2": (a.hidden,), "g": (a.hidden, a.ffn), "u": (a.hidden, a.ffn),
              "d": (a.ffn, a.hidden)}
    split = {"q": P(None, "tp"), "k": P(None, "tp"), "v": P(None, "tp"), "g": P(None, "tp"), "u": P(None, "tp"),
             "o": P("tp", None), "d": P("tp", None), "n1": P(None), "n2": P(None)}
    rng = np.random.default_rng(1)

    def weight(shape):
        value = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) / np.sqrt(shape[0])
        return jnp.asarray(value, dtype)

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


def programs(a):
    """The name, the function and the number of arguments of each program."""
    both = (("forward", lambda p, i: logits(p, i, a), 2), ("gradient", jax.grad(lambda p, i, y: loss(p, i, y, a)), 3))
    return [x for x in both if a.only in (None, x[0])]


def measure(a, dtype, ranks):
    """Prints the rows of the programs of one type and number of ranks."""
    jax.config.update("jax_default_matmul_precision", "highest" if dtype == "float32" else "default")
    params, where, ids = build(a, dtype)
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("tp",))
    named = lambda tree: jax.tree.map(lambda s: jax.sharding.NamedSharding(mesh, s), tree,
                                      is_leaf=lambda x: isinstance(x, P))
    for name, f, count in programs(a):
        args, specs, given, placed = (params, *ids)[:count], (where, P(None), P(None))[:count], {}, {}
        results = P(None, "tp") if name == "forward" else where
        with jax.default_matmul_precision("highest"):
            reference = jax.jit(f)(jax.tree.map(lambda x: x.astype("float32"), params), *args[1:])
        if ranks > 1:
            given, placed = {"in_shardings": named(specs), "out_shardings": named(results)}, {"mesh": mesh}
            args = jax.tree.map(jax.device_put, args, named(specs))
        ways = {"XLA": jax.jit(f, **given), "hocket": hocket.jax(f, **placed, **given)}
        if a.eager:
            ways["hocket graph=False"] = hocket.jax(f, **placed, **given, graph=False)
        label = f"{name}\t{dtype}\t{ranks} ranks\t{'scan' if a.scan else 'layers'}"
        if a.text:
            a.text.mkdir(parents=True, exist_ok=True)
            file = a.text / (label.replace("\t", "-").replace(" ", "-") + ".mlir")
            file.write_text(ways["XLA"].lower(*args).as_text())
        errors, notes = {}, {}
        for way, call in ways.items():
            begin = time.perf_counter()
            got = jax.block_until_ready(call(*args))
            ready = time.perf_counter() - begin
            for _ in range(3):  # hocket records its graph in the third
                got = call(*args)
            errors[way] = error = differ(got, reference)
            proof = "" if way == "XLA" else f"\t{call.model(*args).proof}"
            notes[way] = f"{label}\t{way}\tready {ready:.1f} s\terror {error:.1e}", proof
            if not error <= 4 * errors["XLA"] + 1e-4:  # also NaN
                raise SystemExit(f"{label}\t{way}: the error is {error:.1e}, and XLA's {errors['XLA']:.1e}")
        taken = {way: [] for way in ways}
        for _ in range(a.rounds):
            for way, call in ways.items():
                taken[way].append(times(lambda: call(*args), a.chain))
        for way, rows in taken.items():
            single, host, chain = (statistics.median(c) for c in zip(*rows))
            start, proof = notes[way]
            print(f"{start}\tsingle {single:.0f} µs\thost {host:.0f}\tchain {chain:.0f}{proof}", flush=True)


def main():
    a, begin = arguments(), time.perf_counter()
    for ranks in a.ranks:
        for dtype in a.dtype:
            measure(a, dtype, ranks)
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
