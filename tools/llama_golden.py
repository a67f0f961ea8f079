#!/usr/bin/env python3
"""Makes the checkpoints and logits that examples/llama is held to.

    python3 tools/llama_golden.py                  writes examples/llama/testdata
    python3 tools/llama_golden.py --transformers   holds what is there to Hugging Face transformers

Logits are computed in float64 from the formulas of the llama papers, with numpy alone. With
--transformers the same checkpoints are loaded by AutoModelForCausalLM, and its logits compared.
"""
import argparse
import json
import os
import struct

import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "llama", "testdata")
LENGTHS = [5, 9, 2]  # of the prompts
STEPS = 64  # teacher-forced

CASES = {
    "tied": dict(tie_word_embeddings=True, rope_theta=10000.0, rope_scaling=None),
    "untied": dict(
        tie_word_embeddings=False,
        rope_theta=500000.0,
        rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
}


def config(case):
    c = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", hidden_size=32,
        intermediate_size=48, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        head_dim=8, vocab_size=48, rms_norm_eps=1e-5, torch_dtype="float32", attention_bias=False,
        mlp_bias=False, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
    )
    return c | CASES[case]


def weights(c, rng):
    h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv, v = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, c["vocab_size"]

    def matrix(n, k):
        return (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)

    def norm():
        return (1 + 0.1 * rng.standard_normal(h)).astype(np.float32)

    w = {"model.embed_tokens.weight": rng.standard_normal((v, h)).astype(np.float32)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        w[p + "self_attn.q_proj.weight"] = matrix(q, h)
        w[p + "self_attn.k_proj.weight"] = matrix(kv, h)
        w[p + "self_attn.v_proj.weight"] = matrix(kv, h)
        w[p + "self_attn.o_proj.weight"] = matrix(h, q)
        w[p + "mlp.gate_proj.weight"] = matrix(f, h)
        w[p + "mlp.up_proj.weight"] = matrix(f, h)
        w[p + "mlp.down_proj.weight"] = matrix(h, f)
        w[p + "input_layernorm.weight"] = norm()
        w[p + "post_attention_layernorm.weight"] = norm()
    w["model.norm.weight"] = norm()
    if not c["tie_word_embeddings"]:
        w["lm_head.weight"] = matrix(v, h)
    return w


def frequencies(c):
    """The angle of each pair at position 1, as transformers scales it for llama 3."""
    d = c["head_dim"]
    freq = 1.0 / c["rope_theta"] ** (np.arange(0, d, 2, dtype=np.float64) / d)
    s = c["rope_scaling"]
    if s is None:
        return freq
    low = s["original_max_position_embeddings"] / s["low_freq_factor"]
    high = s["original_max_position_embeddings"] / s["high_freq_factor"]
    out = []
    for f in freq:
        wave = 2 * np.pi / f
        if wave < high:
            out.append(f)
        elif wave > low:
            out.append(f / s["factor"])
        else:
            smooth = s["original_max_position_embeddings"] / wave - s["low_freq_factor"]
            smooth /= s["high_freq_factor"] - s["low_freq_factor"]
            out.append((1 - smooth) * f / s["factor"] + smooth * f)
    return np.array(out)


def logits(c, w, ids):
    """The logits of every token of one sequence."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    t, d, hq, hk = len(ids), c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    angle = np.outer(np.arange(t), frequencies(c))
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]

    def rope(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        a = norm(x, p + "input_layernorm.weight")
        q = rope((a @ w[p + "self_attn.q_proj.weight"].T).reshape(t, hq, d))
        k = rope((a @ w[p + "self_attn.k_proj.weight"].T).reshape(t, hk, d))
        v = (a @ w[p + "self_attn.v_proj.weight"].T).reshape(t, hk, d)
        out = np.empty((t, hq, d))
        for h in range(hq):
            g = h // (hq // hk)
            s = q[:, h] @ k[:, g].T / np.sqrt(d)
            s = np.where(np.tril(np.ones((t, t), bool)), s, -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = e / e.sum(-1, keepdims=True) @ v[:, g]
        x = x + out.reshape(t, hq * d) @ w[p + "self_attn.o_proj.weight"].T
        b = norm(x, p + "post_attention_layernorm.weight")
        g = b @ w[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (b @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    head = "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm.weight") @ w[head].T


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x).tobytes()
        kind = {"float32": "F32", "float64": "F64", "int32": "I32"}[str(x.dtype)]
        header[name] = dict(dtype=kind, shape=list(x.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def write_checkpoint(where, w):
    """Two files and their index, as large checkpoints have."""
    names, index = list(w), {}
    for i, part in enumerate([names[: len(names) // 2], names[len(names) // 2 :]]):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        write_safetensors(os.path.join(where, file), {n: w[n] for n in part})
        index |= {n: file for n in part}
    total = sum(x.nbytes for x in w.values())
    with open(os.path.join(where, "model.safetensors.index.json"), "w") as f:
        json.dump(dict(metadata=dict(total_size=total), weight_map=index), f, indent=1)


def write(case):
    where = os.path.join(OUT, case)
    os.makedirs(where, exist_ok=True)
    rng = np.random.default_rng(list(case.encode()))
    c = config(case)
    w = weights(c, rng)
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(c, f, indent=1)
    write_checkpoint(where, w)
    golden = {}
    for i, n in enumerate(LENGTHS):
        ids = rng.integers(0, c["vocab_size"], n + STEPS).astype(np.int32)
        golden[f"ids.{i}"], golden[f"logits.{i}"] = ids, logits(c, w, ids)
    golden["prompts"] = np.array(LENGTHS, np.int32)
    os.makedirs(os.path.join(where, "golden"), exist_ok=True)
    write_safetensors(os.path.join(where, "golden", "logits.safetensors"), golden)


def compare(case):
    import torch
    from safetensors.numpy import load_file
    from transformers import AutoModelForCausalLM

    where = os.path.join(OUT, case)
    golden = load_file(os.path.join(where, "golden", "logits.safetensors"))
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    worst = 0.0
    for i in range(len(LENGTHS)):
        with torch.no_grad():
            got = model(torch.tensor(golden[f"ids.{i}"][None].astype(np.int64))).logits[0].double().numpy()
        worst = max(worst, np.abs(got - golden[f"logits.{i}"]).max())
    print(f"{case}: largest difference {worst:.3g}")
    assert worst < 1e-4


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--transformers", action="store_true", help="compare, and write nothing")
    for name in CASES:
        (compare if args.parse_args().transformers else write)(name)
