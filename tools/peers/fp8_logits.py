"""The logits of a llama in FP8 with blocks of 128, by hocket and by torch, on one GPU.

    CUDA_VISIBLE_DEVICES=0 python3 tools/peers/fp8_logits.py [--layers 4] [--hidden 1024] [--tokens 128] [--seed 1]

The model is transformers' LlamaForCausalLM with random weights in bf16. The weights of all linears but the output head
are quantized to f8e4m3 with a scale for each 128 by 128 elements, and their inputs in each call with a scale for each 128
elements of a row. The reference has the same weights, multiplied by their scales, in f32, and does not quantize inputs.
A line for each way has the mean and the largest error of its logits, the root mean square of the reference's, and the
rows whose largest logit has the same position. The ways are:

    hocket                      hocket.export(model, quantize="fp8-block")
    torch, scaled products      the same scheme by torch's products with block scales, if torch has them
    torch, dequantized          the same scheme by products in f32 of the quantized numbers times their scales
    torch, bf16                 the quantized weights in bf16, and inputs in bf16: what quantized inputs cost in addition
    torch, unquantized          the weights before they are quantized, in bf16: what quantized weights cost

The script fails if hocket's mean error is above 1.05 times the larger one of torch's two ways of the same scheme.
--device cpu tests the script without a GPU.
"""

import argparse
import copy
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hocket

BLOCK = 128
LARGEST = 448  # of f8e4m3
LEAST = 1e-12  # of scales


def blocks(t, high):
    """The f8e4m3 values of a matrix, with a scale for high rows and 128 columns, and the scales."""
    rows, cols = t.shape
    v = t.float().view(rows // high, high, cols // BLOCK, BLOCK)
    s = (v.abs().amax((1, 3)) / LARGEST).clamp(min=LEAST)
    q = (v / s[:, None, :, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return q.view(rows, cols), s


def wide(q, s, high):
    """The numbers that values and scales stand for, in f32."""
    rows, cols = q.shape
    return (q.float().view(rows // high, high, cols // BLOCK, BLOCK) * s[:, None, :, None]).view(rows, cols)


class Linear(torch.nn.Module):
    """A linear whose weight and inputs are quantized."""

    def __init__(self, weight, product):
        super().__init__()
        self.q, self.s = blocks(weight, BLOCK)
        self.product = product

    def forward(self, x):
        q, s = blocks(x.reshape(-1, x.shape[-1]), 1)
        return self.product(q, s, self.q, self.s).view(*x.shape[:-1], -1)


def scaled_product(x, sx, w, sw):
    from torch.nn.functional import ScalingType, scaled_mm

    return scaled_mm(x, w.t(), sx.t().contiguous().t(), ScalingType.BlockWise1x128, sw.t(), ScalingType.BlockWise128x128,
                     output_dtype=torch.bfloat16)


def wide_product(x, sx, w, sw):
    return (wide(x, sx, 1) @ wide(w, sw, BLOCK).t()).bfloat16()


def replaced(model, make):
    """A copy of a model in which make(linear) replaces each linear but the output head."""
    model = copy.deepcopy(model)
    for module in model.model.modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, make(child))
    return model


def dequantized(linear):
    """A linear whose weight is quantized and dequantized, in f32."""
    q, s = blocks(linear.weight, BLOCK)
    out = torch.nn.Linear(linear.in_features, linear.out_features, bias=False, device=q.device)
    out.weight.data = wide(q, s, BLOCK)
    return out


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, ids):
        return self.m(input_ids=ids, use_cache=False).logits


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--vocabulary", type=int, default=8192)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    config = LlamaConfig(hidden_size=a.hidden, intermediate_size=3 * a.hidden, num_hidden_layers=a.layers,
                         num_attention_heads=a.hidden // 128, num_key_value_heads=max(1, a.hidden // 256), head_dim=128,
                         vocab_size=a.vocabulary, initializer_range=a.hidden ** -0.5, attn_implementation="sdpa",
                         tie_word_embeddings=False)
    model = LlamaForCausalLM(config).to(a.device, torch.bfloat16).eval()
    for q in model.parameters():
        q.requires_grad_(False)
    ids = torch.randint(0, a.vocabulary, (1, a.tokens), device=a.device)
    with torch.no_grad():
        want = Logits(replaced(model, dequantized).float())(ids).double()
        print("way", "mean error", "largest error", "rms of reference", "same largest", "rows", sep="\t")

        def show(way, logits):
            off = (logits.double() - want).abs()
            same = int((logits.argmax(-1) == want.argmax(-1)).sum())
            print(way, f"{off.mean():.6g}", f"{off.max():.6g}", f"{want.square().mean().sqrt():.6g}", same, ids.numel(),
                  sep="\t", flush=True)
            return float(off.mean())

        peers = []
        for way, product in ("torch, scaled products", scaled_product), ("torch, dequantized", wide_product):
            try:
                logits = Logits(replaced(model, lambda linear: Linear(linear.weight, product)))(ids)
            except (ImportError, RuntimeError, NotImplementedError, ValueError) as e:
                print(f"{way}: {str(e).splitlines()[0][:150]}", file=sys.stderr)
                continue
            peers.append(show(way, logits))
        show("torch, bf16", Logits(replaced(model, dequantized).bfloat16())(ids))
        show("torch, unquantized", Logits(model)(ids))
        with hocket.export(Logits(model), (ids,), quantize="fp8-block") as m:
            mine = show("hocket", m(ids))
    if not mine <= 1.05 * max(peers):
        raise SystemExit(f"hocket's mean error is {mine:.6g}, and torch's {max(peers):.6g}")


if __name__ == "__main__":
    main()
