"""Records results and gradients of programs as torch computes them in f64, for TestRecordedGradients of internal/grad.

    python3 tools/torch_gradients.py                          # writes internal/grad/testdata/torch
    python3 tools/torch_gradients.py --check [--device cuda]  # computes them again and compares, without writing

Each program has a text of hocket's and a function of torch's, which compute the same. A file NAME.json has the text,
the values of D and N (the sizes of the mesh axes dp and tp) to test it for, the inputs, and the outputs: the results and the
gradients of the sum of the results, each multiplied by the input d<result>. Inputs are multiples of 1/64, drawn by a generator of
this file, so that a second run writes the same inputs. Values of outputs differ between versions of torch by rounding only.
"""
import argparse
import json
import math
import pathlib
import random
import re
import sys

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "internal/grad/testdata/torch"
AXES = "dim D = 1\ndim N = 1\nmesh dp[D] tp[N]\n"
MESHES = [{"D": d, "N": n} for d, n in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))]
PROGRAMS = {}


def program(text, axes=AXES, meshes=MESHES, **given):
    """Registers a function of torch's with its text. given has values of inputs that are not drawn."""
    def register(function):
        PROGRAMS[function.__name__] = (axes + text.strip() + "\n", meshes, given, function)
        return function
    return register


def rms_norm(x, w, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def attend(q, k, v, causal, scale=None):
    """Attention of q[T, Hq, D] to k and v[T, Hkv, D], where consecutive heads of q share a head of k."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:], device=q.device).triu(1).bool(), -math.inf)
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)


def rotate(x, at, theta):
    """Rotary embedding of x[T, H, D]: elements i and i + D/2 turn by at · theta^(−2i/D)."""
    half = x.shape[-1] // 2
    angle = at.double()[:, None] * theta ** (-torch.arange(half, device=x.device).double() / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@program("""
func f(%x: f64[8/dp, 4], %up: f64[8/tp, 4], %a: f64[8/tp], %down: f64[4, 8/tp], %b: f64[4]) -> f64[8/dp, 4] {
  %h = gelu (linear %x, %up, %a)
  %y = linear %h, %down, %b
  return %y
}""")
def mlp(x, up, a, down, b):
    return F.linear(F.gelu(F.linear(x, up, a)), down, b)


@program("""
func f(%x: f64[8/(dp, tp), 4], %gate: f64[8/tp, 4], %up: f64[8/tp, 4], %down: f64[4, 8/tp]) -> f64[8/(dp, tp), 4] {
  %m = mul (silu (linear %x, %gate)), (linear %x, %up)
  %y = linear %m, %down
  return %y
}""")
def gated(x, gate, up, down):
    return F.silu(x @ gate.T) * (x @ up.T) @ down.T


@program("""
func f(%x: f64[8/dp, 6], %w1: f64[6], %v: f64[6, 6], %w2: f64[6]) -> (f64[8/dp, 6], f64[8/dp, 6]) {
  %r = add %x, (linear (rms_norm %x, %w1), %v)
  %y = rms_norm %r, %w2, eps=0.01
  return %y, %r
}""")
def norms(x, w1, v, w2):
    r = x + rms_norm(x, w1) @ v.T
    return rms_norm(r, w2, 0.01), r


@program("""
func f(%x: f64[8/dp, 6], %w: f64[6], %b: f64[6], %u: f64[4/tp, 6]) -> f64[8/dp, 4/tp] {
  %n = layer_norm %x, %w, %b
  %y = tanh (linear %n, %u)
  return %y
}""")
def layer_norm(x, w, b, u):
    return torch.tanh(F.layer_norm(x, (6,), w, b, 1e-5) @ u.T)


@program("""
func f(%x: f64[4/dp, 5, 8/tp], %t: f64[5]) -> (f64[4/dp, 5, 8/tp], f64[4/dp, 8/tp]) {
  %p = softmax %x, axis=1
  %turned = transpose %x, perm=(0, 2, 1)
  %q = softmax (mul %turned, %t)
  %m = sum (mul %q, %q), axis=2
  return %p, %m
}""")
def softmaxes(x, t):
    q = torch.softmax(x.transpose(1, 2) * t, -1)
    return torch.softmax(x, 1), (q * q).sum(-1)


@program("""
func f(%x: f64[6, 8], %wq: f64[16/tp, 8], %wk: f64[8/tp, 8], %wv: f64[8/tp, 8], %wo: f64[8, 16/tp]) -> f64[6, 8] {
  %q = reshape (linear %x, %wq), shape=(6, 8, 2)
  %k = reshape (linear %x, %wk), shape=(6, 4, 2)
  %v = reshape (linear %x, %wv), shape=(6, 4, 2)
  %s = attention %q, %k, %v, causal=true
  %y = linear (reshape %s, shape=(6, 16)), %wo
  return %y
}""")
def grouped_attention(x, wq, wk, wv, wo):
    q, k, v = (F.linear(x, w).view(6, -1, 2) for w in (wq, wk, wv))
    return attend(q, k, v, True).reshape(6, 16) @ wo.T


@program("""
func f(%q: f64[4/dp, 3, 4/tp, 2], %k: f64[4/dp, 5, 4/tp, 2], %v: f64[4/dp, 5, 4/tp, 2]) -> f64[4/dp, 3, 4/tp, 2] {
  %y = attention %q, %k, %v, scale=0.75
  return %y
}""")
def cross_attention(q, k, v):
    return torch.stack([attend(*t, False, 0.75) for t in zip(q, k, v)])


@program("""
func f(%ids: i32[8/dp], %next: i32[8/dp], %table: f64[16, 6], %norm: f64[6]) -> f64[] {
  %e = embedding %ids, %table
  %logits = linear (rms_norm %e, %norm), %table
  %top = max %logits, axis=1
  %column = reshape %top, shape=(8, 1)
  %wide = broadcast %column, shape=(8, 16)
  %s = sum (exp (sub %logits, %wide)), axis=1
  %z = add (log %s), %top
  %label = reshape %next, shape=(8, 1)
  %labels = broadcast %label, shape=(8, 16)
  %count: i32[16] = iota
  %hit = eq %labels, %count
  %hot: f64[8/dp, 16] = cast %hit
  %picked = sum (mul %hot, %logits), axis=1
  %loss = mean (sub %z, %picked), axis=0
  return %loss
}""", ids=[3, 14, 3, 0, 15, 9, 2, 6], next=[14, 3, 0, 15, 9, 2, 6, 3])
def cross_entropy(ids, next, table, norm):
    return F.cross_entropy(rms_norm(table[ids], norm) @ table.T, next)


@program("""
func f(%ids: i32[6], %table: f64[16/tp, 4], %u: f64[8/tp, 4]) -> f64[6, 8/tp] {
  %e: f64[6, 4] = embedding %ids, %table
  %y = sigmoid (linear %e, %u)
  return %y
}""", ids=[5, 0, 15, 5, 5, 11])
def split_table(ids, table, u):
    return torch.sigmoid(table[ids] @ u.T)


@program("""
func f(%x: f64[8/dp, 3], %ids: i32[8/dp], %w: f64[8/dp]) -> f64[4, 3] {
  %column = reshape %w, shape=(8, 1)
  %weights = broadcast %column, shape=(8, 3)
  %rows: f64[4, 3] = index_add (mul %x, %weights), %ids, n=4
  %y = mul %rows, %rows
  return %y
}""", ids=[3, 1, 0, 3, 3, -1, 1, 0])
def scattered_rows(x, ids, w):
    keep = ids >= 0
    return torch.zeros(4, 3, device=x.device).index_add(0, ids[keep], (x * w[:, None])[keep]).square()


@program("""
func f(%x: f64[4/dp, 8/tp, 3]) -> (f64[3], f64[4/dp], f64[8/tp], f64[]) {
  %a = mean (mul %x, %x), axis=(0, 1)
  %b = max %x, axis=(1, 2)
  %c = min %x, axis=(0, 2)
  %d = sum (exp %x), axis=(0, 1, 2)
  %e = log %d
  return %a, %b, %c, %e
}""")
def reductions(x):
    return x.square().mean((0, 1)), x.amax((1, 2)), x.amin((0, 2)), x.logsumexp((0, 1, 2))


@program("""
func f(%x: f64[4/dp, 6, 4/tp], %z: f64[4/dp, 2, 4/tp]) -> (f64[4/dp, 4/tp, 5], f64[4/dp, 12]) {
  %s = slice %x, axis=1, 1..4
  %c = concat %s, %z, axis=1
  %y = transpose %c, perm=(0, 2, 1)
  %k = chunk %x, axis=1, 1 of 2
  %whole: f64[4/dp, 3, 4] = reshard (mul %k, %k)
  %r = reshape %whole, shape=(4, 12)
  %row = select %x, axis=1, index=5
  %all: f64[4/dp, 4] = reshard %row
  %three = concat %all, %all, %all, axis=1
  %u = mul %r, %three
  return %y, %u
}""")
def views(x, z):
    c = torch.cat([x[:, 1:4], z], 1)
    return c.transpose(1, 2), x[:, 3:].square().reshape(4, 12) * x[:, 5].repeat(1, 3)


@program("""
func f(%x: f64[8/(dp, tp), 4], %norms: f64[3, 4], %up: f64[3, 8/tp, 4], %down: f64[3, 4, 8/tp]) -> f64[8/(dp, tp), 4] {
  %y = for %l in 0..3 carry %h = %x {
    %a = rms_norm %h, %norms[%l]
    %g = gelu_tanh (linear %a, %up[%l])
    %d: f64[8/(dp, tp), 4] = linear %g, %down[%l]
    %z = add %h, %d
    yield %z
  }
  return %y
}""")
def residual_chain(x, norms, up, down):
    for n, u, d in zip(norms, up, down):
        x = x + F.gelu(rms_norm(x, n) @ u.T, approximate="tanh") @ d.T
    return x


@program("""
func f(%a: f64[4/dp, 3, 5], %b: f64[4/dp, 3, 4/tp], %c: f64[6, 4/tp]) -> f64[4/dp, 5, 6] {
  %p = matmul %a, %b, ta=true
  %y = matmul %p, %c, tb=true
  return %y
}""")
def batched_matmul(a, b, c):
    return a.transpose(1, 2) @ b @ c.T


@program("""
func f(%x: f64[8, 4], %router: f64[4, 4], %w1: f64[4/tp, 4, 6], %w2: f64[4/tp, 6, 4]) -> f64[8, 4] {
  %p = softmax (linear %x, %router)
  %top = max %p, axis=1
  %column = reshape %top, shape=(8, 1)
  %tops = broadcast %column, shape=(8, 4)
  %on = eq %p, %tops
  %turned = transpose (mul %on, %p)
  %part: f64[4/tp, 8] = reshard %turned
  %gate = reshape %part, shape=(4, 8, 1)
  %gates = broadcast %gate, shape=(4, 8, 4)
  %xs: f64[4/tp, 8, 4] = broadcast %x, shape=(4, 8, 4)
  %h = relu (matmul %xs, %w1)
  %e = mul (matmul %h, %w2), %gates
  %y = sum %e, axis=0
  return %y
}""")
def routed_experts(x, router, w1, w2):
    p = torch.softmax(x @ router.T, -1)
    best, at = p.max(-1)
    each = torch.relu(x @ w1) @ w2  # [expert, row, feature]
    return each[at, torch.arange(8, device=x.device)] * best[:, None]


MOE = re.sub(r"(?s)^.*?(?=dim T)", "", (ROOT / "examples/moe.hkt").read_text())
for was, now in {"f32": "f64", "dim T = 32": "dim T = 8", "dim H = 16": "dim H = 3", "dim F = 32": "dim F = 4"}.items():
    MOE = MOE.replace(was, now)


@program(MOE, "", [{}], score=[0, 3, 1, 2] * 3 + [3, 3, 1, 0] * 3 + [1, 0, 3, 2] * 2)
def dispatched_experts(x, score, w1, w2):
    best = (4 * score.view(8, 4) + torch.arange(4, device=x.device)).argsort(-1, descending=True)
    y = torch.relu(x @ w1) @ w2
    rows = torch.arange(8, device=x.device)
    return 2 * y[best[:, 0], rows] + y[best[:, 1], rows]


@program("""
func f(
  %x: f64[8/tp, 8], %at: i32[8], %n1: f64[8], %wq: f64[16/tp, 8], %wk: f64[16/tp, 8], %wv: f64[16/tp, 8], %wo: f64[8, 16/tp],
  %n2: f64[8], %gate: f64[8/tp, 8], %up: f64[8/tp, 8], %down: f64[8, 8/tp]
) -> f64[8/tp, 8] {
  %a = rms_norm %x, %n1
  %q = rope (reshape (linear %a, %wq), shape=(8, 4, 4)), %at, theta=100
  %k = rope (reshape (linear %a, %wk), shape=(8, 4, 4)), %at, theta=100
  %v = reshape (linear %a, %wv), shape=(8, 4, 4)
  %s = attention %q, %k, %v, causal=true
  %o: f64[8/tp, 8] = linear (reshape %s, shape=(8, 16)), %wo
  %r = add %x, %o
  %b = rms_norm %r, %n2
  %d: f64[8/tp, 8] = linear (mul (silu (linear %b, %gate)), (linear %b, %up)), %down
  %y = add %r, %d
  return %y
}""", at=[0, 1, 2, 3, 4, 5, 6, 7])
def llama_layer(x, at, n1, wq, wk, wv, wo, n2, gate, up, down):
    a = rms_norm(x, n1)
    q, k, v = (F.linear(a, w).view(8, 4, 4) for w in (wq, wk, wv))
    r = x + attend(rotate(q, at, 100), rotate(k, at, 100), v, True).reshape(8, 16) @ wo.T
    b = rms_norm(r, n2)
    return r + F.silu(b @ gate.T) * (b @ up.T) @ down.T


@program("""
func f(%x: f64[8/dp, 4/tp], %p: f64[8/dp, 4/tp]) -> (f64[8/dp, 4/tp], f64[8/dp, 4/tp]) {
  %q = exp %p
  %a = add (tanh (sin %x)), (mul (sqrt %q), (cos %x))
  %b = sub (erf %a), (rsqrt %q)
  %y = div %b, (add (pow %x, by=2), %q)
  %c = add (sigmoid %x), (softplus %p)
  %z = mul (reciprocal %c), (log %q)
  return %y, %z
}""")
def elementwise(x, p):
    q = p.exp()
    b = torch.erf(x.sin().tanh() + q.sqrt() * x.cos()) - q.rsqrt()
    return b / (x**2 + q), q.log() / (x.sigmoid() + F.softplus(p))


@program("""
func f(%x: f64[8/dp, 4/tp], %z: f64[8/dp, 4/tp]) -> (f64[8/dp, 4/tp], f64[8/dp, 4/tp]) {
  %on = lt %x, %z
  %y = where %on, (mul %x, %z), (abs %z)
  %u = sub (maximum %x, %z), (minimum %x, (neg %z))
  %v = clamp (mul %u, %x), lo=-0.5, hi=0.5
  return %y, %v
}""")
def choices(x, z):
    u = torch.maximum(x, z) - torch.minimum(x, -z)
    return torch.where(x < z, x * z, z.abs()), (u * x).clamp(-0.5, 0.5)


@program("""
func f(%x: f64[8/dp, 3], %c: f64[4/tp, 3]) -> f64[8/dp, 4/tp] {
  %a = reshape %x, shape=(8, 1, 3)
  %all = broadcast %a, shape=(8, 4, 3)
  %b = reshape %c, shape=(1, 4, 3)
  %centers = broadcast %b, shape=(8, 4, 3)
  %whole: f64[8/dp, 4/tp, 3] = reshard %centers
  %d = sub %all, %whole
  %y = exp (neg (sum (mul %d, %d), axis=2))
  return %y
}""")
def distances(x, c):
    return torch.exp(-(x[:, None] - c).square().sum(-1))


@program("""
func f(%x: f64[8/dp, 6], %want: f64[8/dp, 4/tp], %w: f64[8/dp, 6], %u: f64[4/tp, 8]) -> f64[] {
  %all: f64[8, 6] = reshard %w
  %h = relu (linear %x, %all)
  %e = sub (linear %h, %u), %want
  %loss = mean (mul %e, %e), axis=(0, 1)
  return %loss
}""")
def sharded_weight(x, want, w, u):
    return F.mse_loss(torch.relu(x @ w.T) @ u.T, want)


@program("""
func f(%x: f64[4, 8/dp, 3], %h0: f64[8/dp, 4], %w: f64[4, 3], %u: f64[4, 4], %b: f64[4]) -> f64[8/dp, 4] {
  %y = for %t in 0..4 carry %h = %h0 {
    %in = linear %x[%t], %w, %b
    %n = tanh (add %in, (linear %h, %u))
    yield %n
  }
  return %y
}""")
def recurrence(x, h0, w, u, b):
    for row in x:
        h0 = torch.tanh(F.linear(row, w, b) + h0 @ u.T)
    return h0


@program("""
func f(%image: f64[4/dp, 2, 4, 6], %w: f64[8/tp, 12], %b: f64[8/tp]) -> f64[4/dp, 8/tp] {
  %grid = reshape %image, shape=(4, 2, 2, 2, 2, 3)
  %near = transpose %grid, perm=(0, 2, 4, 1, 3, 5)
  %patches = reshape %near, shape=(4, 4, 12)
  %h = gelu (linear %patches, %w, %b)
  %y = mean %h, axis=1
  return %y
}""")
def patches(image, w, b):
    return F.gelu(F.conv2d(image, w.view(8, 2, 2, 3), b, stride=(2, 3))).mean((2, 3))


def drawn(name, shape):
    r = random.Random(name)
    return [r.choice((-1, 1)) * r.randint(8, 64) / 64 for _ in range(math.prod(shape))]


def parameters(text, function):
    """Names, types and shapes of the last function's parameters."""
    dims = {name: int(n) for name, n in re.findall(r"(?m)^dim (\w+) = (\d+)", text)}
    signature = text[text.rindex("\nfunc ") :].partition("->")[0]
    for name, dtype, shape in re.findall(r"%(\w+): (\w+)\[([^\]]*)\]", signature):
        extents = re.sub(r"/(\([^)]*\)|\w+)", "", shape).split(",") if shape else []
        yield name, dtype, [dims.get(e.strip()) or int(e) for e in extents]


def record(name, text, meshes, given, function, device):
    inputs, tensors = {}, {}
    for p, dtype, shape in parameters(text, function):
        values = given.get(p) or drawn(f"{name} {p}", shape)
        inputs[p] = {"shape": shape, "values": values}
        whole = torch.tensor(values, dtype=torch.int64 if dtype == "i32" else torch.float64, device=device).view(shape)
        tensors[p] = whole.requires_grad_(dtype == "f64")
    results = function(**tensors)
    results = results if isinstance(results, tuple) else (results,)
    names = re.findall(r"%(\w+)", text[text.rindex("return") :])
    outputs, loss = {}, 0
    for r, y in zip(names, results, strict=True):
        outputs[r] = y
        if y.dim() == 0:
            loss = loss + y
            continue
        dy = torch.tensor(drawn(f"{name} d{r}", y.shape), device=device).view(y.shape)
        inputs["d" + r] = {"shape": list(y.shape), "values": dy.flatten().tolist()}
        loss = loss + (y * dy).sum()
    wanted = [p for p, t in tensors.items() if t.requires_grad]
    for p, g in zip(wanted, torch.autograd.grad(loss, [tensors[p] for p in wanted]), strict=True):
        outputs["d" + p] = g
    return {"program": text, "meshes": meshes, "torch": torch.__version__, "inputs": inputs,
            "outputs": {n: {"shape": list(t.shape), "values": t.detach().flatten().tolist()} for n, t in outputs.items()}}


def difference(got, want):
    """The largest difference of an output, divided by the output's largest value."""
    worst = 0
    for name, w in want["outputs"].items():
        g = got["outputs"][name]
        assert g["shape"] == w["shape"], name
        largest = max(map(abs, w["values"]))
        worst = max(worst, max(abs(a - b) for a, b in zip(g["values"], w["values"], strict=True)) / largest)
    return worst


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--check", action="store_true", help="compare with the recordings")
    p.add_argument("--device", default="cpu")
    args = p.parse_args()
    torch.set_default_dtype(torch.float64)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name, (text, meshes, given, function) in PROGRAMS.items():
        got, file = record(name, text, meshes, given, function, args.device), FOLDER / f"{name}.json"
        if args.check:
            want = json.loads(file.read_text())
            off = difference(got, want)
            wrong += off > 1e-12 or any(got[part] != want[part] for part in ("program", "inputs"))
            print(f"{name}: torch {torch.__version__} on {args.device} differs from the recording by {off:.1e}")
        else:
            line = json.dumps(got)
            file.write_text(line.replace('"inputs"', '\n"inputs"').replace('"outputs"', '\n"outputs"') + "\n")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
