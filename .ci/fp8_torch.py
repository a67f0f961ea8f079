"""Compares hocket's types of 8 bits on GPUs with torch's: python3 .ci/fp8_torch.py HOCKET [cpu].

All bf16 numbers are converted to f8e4m3 and f8e5m2 and must have the bits of torch's conversion. Scales, quantized values and
products with scales of one, of rows and of blocks are then compared with torch's of the same operands."""
import pathlib, subprocess, sys, tempfile
import torch
from safetensors.torch import load_file, save_file

hocket, machine = sys.argv[1], (sys.argv[2:] or ["cuda"])[0]
device = "cuda" if machine == "cuda" else "cpu"
tmp = pathlib.Path(tempfile.mkdtemp())
failed = 0


def run(text, **inputs):
    """The results of a program on inputs."""
    (tmp / "p.hkt").write_text(text)
    save_file({k: v.contiguous().cpu() for k, v in inputs.items()}, tmp / "in.safetensors")
    subprocess.run([hocket, "run", "-m", machine, "--in", f"{tmp}/in.safetensors", "--save", tmp, tmp / "p.hkt"],
                   check=True, stdout=subprocess.PIPE)
    return load_file(tmp / "outputs.safetensors")


def check(what, good, note=""):
    global failed
    failed += not good
    print("ok  " if good else "FAIL", what, note, flush=True)


def same_bits(a, b):
    return torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


types = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
out = run("mesh d[1]\nfunc f(%x: bf16[65536]) -> (f8e4m3[65536], f8e5m2[65536]) {\n"
          "  %a: f8e4m3[65536] = cast %x\n  %b: f8e5m2[65536] = cast %x\n  return %a, %b\n}\n", x=every)
for (name, dtype), got in zip(types.items(), (out["a"], out["b"])):
    want = every.to(device).to(dtype).cpu()
    nan = want.float().isnan()
    check(f"all bf16 to {name}", torch.equal(nan, got.float().isnan()) and
          torch.equal(want.view(torch.uint8)[~nan], got.view(torch.uint8)[~nan]),
          "also the bits of NaNs" if same_bits(want, got) else "NaNs have other bits")

M, N, K = 256, 512, 1024
torch.manual_seed(1)
x, w = torch.randn(M, K, dtype=torch.bfloat16), torch.randn(N, K, dtype=torch.bfloat16)
blocks = lambda t, rows: t.view(t.shape[0] // rows, rows, t.shape[1] // 128, 128).abs().amax((1, 3)).float()
forms = {
    "one scale": ("", "[]", "[]", lambda t: t.abs().amax().float(), lambda t: t.abs().amax().float()),
    "rows": (", block=1", "[M]", "[N]", lambda t: t.abs().amax(1).float(), lambda t: t.abs().amax(1).float()),
    "blocks": (None, "[M, ceildiv(K, 128)]", "[ceildiv(N, 128), ceildiv(K, 128)]", lambda t: blocks(t, 1), lambda t: blocks(t, 128)),
}


def spread(s, t):
    """Scales as a matrix like t."""
    if s.dim() == 0:
        return s.expand(t.shape)
    if s.dim() == 1:
        return s[:, None].expand(t.shape)
    return s.repeat_interleave(t.shape[0] // s.shape[0], 0).repeat_interleave(128, 1)


for name, (form, tx, tw, amax_x, amax_w) in forms.items():
    fx, fw = (form, form) if form is not None else (", block=(1, 128)", ", block=(128, 128)")
    out = run(f"dim M = {M}\ndim N = {N}\ndim K = {K}\nmesh d[1]\nfunc f(%x: bf16[M, K], %w: bf16[N, K]) -> "
              f"(f8e4m3[M, K], f8e4m3[N, K], f32{tx}, f32{tw}, bf16[M, N], f32[M, N]) {{\n"
              f"  %sx = scales %x{fx}\n  %sw = scales %w{fw}\n  %qx = quantize %x, %sx\n  %qw = quantize %w, %sw\n"
              "  %y = linear %qx, %qw, %sx, %sw\n  %z: f32[M, N] = linear %qx, %qw, %sx, %sw\n"
              "  return %qx, %qw, %sx, %sw, %y, %z\n}\n", x=x, w=w)
    sx, sw = (amax_x(x) / 448).clamp(min=1e-12), (amax_w(w) / 448).clamp(min=1e-12)
    check(f"{name}: scales", torch.equal(sx, out["sx"]) and torch.equal(sw, out["sw"]))
    qx, qw = (x / spread(sx, x)).to(types["f8e4m3"]), (w / spread(sw, w)).to(types["f8e4m3"])
    check(f"{name}: values", same_bits(qx, out["qx"]) and same_bits(qw, out["qw"]))
    exact = (qx.double() * spread(sx, x).double()) @ (qw.double() * spread(sw, w).double()).t()
    size = exact.abs().mean()
    for key, allowed in (("y", 2**-8), ("z", 2**-9)):
        off = (out[key].double() - exact).abs().max() / size
        check(f"{name}: linear to {out[key].dtype}", bool(off < allowed * 8), f"off by {off:.2e} of the mean, at most")
sys.exit(failed > 0)
