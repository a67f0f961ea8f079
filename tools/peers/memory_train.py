"""The peak memory of the forward and backward pass of a Llama's layers, by torch and as hocket plans it.

    python3 memory_train.py [--layers 8] [--tokens 2048] [--svg FILE] [--snapshot FILE.pickle]

torch runs the layers eagerly in bf16 on one GPU and keeps what its operations save: the operands of linears and norms, and the
results of silu and attention. hocket's program computes the same results and gradients, and keeps the same tensors
(`hocket grad --keep all`). Both figures include parameters, inputs, results and gradients; torch's is the peak of
allocated bytes, without its segments' unused parts. Prints a line of JSON. --svg draws hocket's memory; --snapshot writes torch's
history, which `hocket memory FILE.pickle` shows. It needs hocket's command (HOCKET_COMMAND, or a wheel). Without a GPU it
prints hocket's figure alone.
"""
import argparse
import json
import os
import pickle
import subprocess

import torch
import torch.nn.functional as F

H, D, Q, KV, FF = 4096, 128, 32, 8, 14336
SHAPES = {"n1": (H,), "wq": (Q * D, H), "wk": (KV * D, H), "wv": (KV * D, H), "wo": (H, Q * D), "n2": (H,), "gate": (FF, H),
          "up": (FF, H), "down": (H, FF)}
LAYER = """  %a{l} = rms_norm {x}, %n1{l}
  %q{l} = reshape (linear %a{l}, %wq{l}), shape=(T, Q, D)
  %k{l} = reshape (linear %a{l}, %wk{l}), shape=(T, KV, D)
  %v{l} = reshape (linear %a{l}, %wv{l}), shape=(T, KV, D)
  %s{l} = attention %q{l}, %k{l}, %v{l}, causal=true
  %r{l} = add {x}, (linear (reshape %s{l}, shape=(T, Q * D)), %wo{l})
  %b{l} = rms_norm %r{l}, %n2{l}
  %m{l} = mul (silu (linear %b{l}, %gate{l})), (linear %b{l}, %up{l})
  %z{l} = add %r{l}, (linear %m{l}, %down{l})
"""


def program(layers, tokens):
    """The layers as text. Each has its own parameters, as in torch."""
    params = [f"  %{name}{l}: bf16[{', '.join(map(str, shape))}]," for l in range(layers) for name, shape in SHAPES.items()]
    body = "".join(LAYER.format(l=l, x=f"%z{l - 1}" if l else "%x") for l in range(layers))
    dims = f"dim T = {tokens}\ndim H = {H}\ndim D = {D}\ndim Q = {Q}\ndim KV = {KV}\n"
    return f"{dims}func layers(\n  %x: bf16[T, H],\n" + "\n".join(params) + f"\n) -> bf16[T, H] {{\n{body}  return %z{layers - 1}\n}}\n"


def planned(layers, tokens, svg):
    """The bytes that hocket's plan needs."""
    command = os.environ.get("HOCKET_COMMAND", "hocket")
    run = lambda *args, text: subprocess.run([command, *args], input=text, capture_output=True, text=True, check=True).stdout
    gradient = run("grad", "-", "--keep", "all", text=program(layers, tokens))
    if svg:
        run("memory", "-", "--svg", svg, text=gradient)
    return json.loads(run("memory", "-", "--json", text=gradient))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            value = torch.randn(shape) * shape[-1] ** -0.5 if len(shape) > 1 else torch.ones(shape)
            self.register_parameter(name, torch.nn.Parameter(value))

    def forward(self, x):
        t = x.shape[0]
        a = F.rms_norm(x, x.shape[-1:], self.n1, 1e-6)
        q, k, v = (F.linear(a, w).view(1, t, -1, D).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        s = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        r = x + F.linear(s.transpose(1, 2).reshape(t, -1), self.wo)
        b = F.rms_norm(r, r.shape[-1:], self.n2, 1e-6)
        return r + F.linear(F.silu(F.linear(b, self.gate)) * F.linear(b, self.up), self.down)


def allocated(layers, tokens, snapshot):
    """torch's peak of allocated bytes: of the second step, since the first allocates workspaces."""
    model = torch.nn.Sequential(*(Layer() for _ in range(layers))).to("cuda", torch.bfloat16)
    x, dy = (torch.randn(tokens, H, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    x.requires_grad_()
    peak = 0
    for step in range(2):
        model.zero_grad(set_to_none=True)
        x.grad = None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
            if snapshot:
                torch.cuda.memory._record_memory_history(context=None)
        y = model(x)
        y.backward(dy)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    if snapshot:
        with open(snapshot, "wb") as f:
            pickle.dump(torch.cuda.memory._snapshot(), f)
    given = sum(p.nbytes for p in model.parameters()) + x.nbytes + dy.nbytes
    return {"torch_peak": peak, "torch_other": before - given}  # other: workspaces of cuBLAS, in the peak too


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--tokens", type=int, default=2048)
    p.add_argument("--svg", default="")
    p.add_argument("--snapshot", default="")
    args = p.parse_args()
    row = {"layers": args.layers, "tokens": args.tokens, "torch": torch.__version__}
    plan = planned(args.layers, args.tokens, args.svg)
    row["hocket_peak"] = plan["peak"]
    if torch.cuda.is_available():
        row |= allocated(args.layers, args.tokens, args.snapshot)
        row["ratio"] = round(row["hocket_peak"] / (row["torch_peak"] - row["torch_other"]), 4)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
