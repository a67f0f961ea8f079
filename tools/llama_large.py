#!/usr/bin/env python3
"""Makes a random llama of the 8B's shape, and the logits that examples/llama is held to on GPUs:

    python3 tools/llama_large.py FOLDER
    go test ./examples/llama -run TestLargeCUDA -v -large FOLDER

The folder gets the checkpoint, 16 GB of bf16 in several files with their index, as transformers saves it, and
golden/logits.safetensors: one sequence of a prompt and 128 tokens, its logits by transformers in f32 (of the same
weights; no TF32), and those by transformers in bf16. It needs torch, transformers and a GPU with 48 GB.
"""
import argparse
import os
import time

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT, STEPS = 32, 128


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder")
    args.add_argument("--layers", type=int, default=32)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--device", default="cuda")
    o = args.parse_args()
    began = time.time()

    def done(what):
        print(f"{time.time() - began:6.1f} s: {what}", flush=True)

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=o.layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5,
        tie_word_embeddings=False, hidden_act="silu",
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=8192),
    )
    torch.manual_seed(o.seed)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(o.device):
        model = LlamaForCausalLM(config).eval()
    done("made")
    with torch.no_grad():
        for name, w in model.named_parameters():
            if w.dim() == 1:
                w.normal_(1, 0.1)
            else:
                w.normal_(0, 1 if "embed" in name else w.shape[-1] ** -0.5)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    ids = torch.randint(config.vocab_size, (1, PROMPT + STEPS), device=o.device)

    def logits():
        with torch.no_grad():
            return model(ids).logits[0].float().cpu().contiguous()

    golden = {"prompts": torch.tensor([PROMPT], dtype=torch.int32), "ids.0": ids[0].int().cpu(),
              "transformers.0": logits()}
    done("logits in bf16")
    model.save_pretrained(o.folder, max_shard_size="4GB")
    done("saved")
    model.float()
    golden["logits.0"] = logits()
    done("logits in f32")
    os.makedirs(os.path.join(o.folder, "golden"), exist_ok=True)
    save_file(golden, os.path.join(o.folder, "golden", "logits.safetensors"))
    off = (golden["transformers.0"] - golden["logits.0"]).norm(dim=-1) / golden["logits.0"].norm(dim=-1)
    done(f"transformers in bf16 is off by {off.mean():.3g} in the mean, {off.max():.3g} at most, of a row's length")


if __name__ == "__main__":
    main()
