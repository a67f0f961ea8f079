#!/usr/bin/env python3
"""Exports the causal language models of transformers at small size, for `table.py`.

    python3 tools/zoo/export.py OUT [--every 8] [--jobs 8] [--only llama,mixtral]

For each class of transformers' sorted causal-LM mapping OUT/NAME gets
static.pt2 (a prefill of 12 tokens), expected.safetensors (input_ids, logits),
tp_plan.json, static.txt (the graph) and config.json. OUT/index.json lists all
classes with the reason for those that were not exported. Weights are random.
"""
import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

TOKENS = 12
SECONDS = 90  # for one class

# Small values of the names that configurations use.
SMALL = dict(
    vocab_size=256, hidden_size=64, n_embd=64, d_model=64, dim=64, embedding_size=64, word_embed_proj_dim=64,
    intermediate_size=128, ffn_dim=128, n_inner=128, d_ff=128, encoder_ffn_dim=128, decoder_ffn_dim=128,
    moe_intermediate_size=64, shared_expert_intermediate_size=64, ffn_hidden_size=128, shared_intermediate_size=64,
    num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2, encoder_layers=2, decoder_layers=2,
    num_decoder_layers=2, num_attention_heads=8, n_head=8, n_heads=8, num_heads=8, encoder_attention_heads=8,
    decoder_attention_heads=8, num_key_value_heads=4, head_dim=8, kv_channels=8, rotary_dim=4,
    max_position_embeddings=64, n_positions=64, n_ctx=64, max_seq_len=64, max_sequence_length=64, sliding_window=8,
    num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4, num_experts_per_tok=2, moe_k=2,
    moe_topk=2, num_experts_per_token=2, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=16,
    kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, qk_head_dim=16, lora_rank=16,
    state_size=8, conv_kernel=4, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_n_heads=8, mamba_d_head=16,
    mamba_n_groups=1, mamba_chunk_size=8, time_step_rank=8, lru_width=64, attention_window_size=8,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, attention_dropout=0.0, dropout=0.0,
    local_attention=8, window_size=8, linear_num_value_heads=4, linear_num_key_heads=4, linear_key_head_dim=8,
    linear_value_head_dim=8, index_n_heads=4, index_head_dim=8, index_topk=8, d_kv=8, hidden_size_per_layer_input=8,
    vocab_size_per_layer_input=256, num_kv_shared_layers=0, altup_num_inputs=2, laurel_rank=8, d_embed=64,
    rope_head_dim=8, type_vocab_size=2, num_buckets=8, axial_pos_embds_dim=[32, 32], axial_pos_shape=[8, 8],
)


def shrink(config):
    """Returns what the configuration has of SMALL, and what follows from it."""
    small = {}
    for k, v in SMALL.items():
        try:
            if getattr(config, k, None) is not None:
                small[k] = v
        except Exception:  # an attribute that differs between layers
            small[k] = v
    layers = small.get("num_hidden_layers", 2)
    for k in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):
        if isinstance(getattr(config, k, None), list):
            small[k] = list(getattr(config, k))[:layers]
    for k, v in list(vars(config).items()):
        if k.endswith("_config") and hasattr(v, "to_dict") and k != "text_config":
            small[k] = type(v)(**shrink(v)).to_dict()
    return small


def variants(small, config):
    """Yields ways to make a valid configuration of small values."""
    yield small
    for drop in (("head_dim",), ("layer_types",), ("head_dim", "layer_types"), ("sliding_window",),
                 ("head_dim", "qk_head_dim"), ("num_hidden_layers",)):
        if any(k in small for k in drop):
            yield {k: v for k, v in small.items() if k not in drop}
    for put in (dict(head_dim=8), dict(head_dim=16), dict(num_experts_per_tok=1), dict(num_key_value_heads=8),
                dict(rope_theta=10000.0), dict(num_hidden_layers=4)):
        if all(hasattr(config, k) for k in put):
            yield {**small, **put}


def build(config_class, model_class, ids):
    """Returns a model of small size that computes something."""
    import torch

    default = config_class()
    text = default.get_text_config(decoder=True)
    errors = []
    for small in variants(shrink(text), text):
        try:
            config = type(text)(**small)
            for k in ("pad_token_id", "bos_token_id", "eos_token_id"):
                v = getattr(config, k, None)
                if isinstance(v, int) and v >= 256:
                    setattr(config, k, SMALL[k])
            if hasattr(config, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
                config.is_decoder = True
            torch.manual_seed(0)
            with torch.device("meta"):
                count = sum(p.numel() for p in model_class(config).parameters())
            if count > 8_000_000:
                raise ValueError(f"{count} parameters at small size")
            model = model_class(config).eval().float()
            if hasattr(model, "set_default_language"):
                model.set_default_language(model.config.languages[0])
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(torch.randn_like(p) * (0.1 if p.dim() == 1 else 0.05))
                logits = model(input_ids=ids, use_cache=False, return_dict=True).logits
            if not torch.isfinite(logits).all():
                raise ValueError("its logits are not finite")
            return model
        except Exception as e:  # the next way
            errors.append(f"{type(e).__name__}: {e}")
    raise RuntimeError(" / ".join(dict.fromkeys(e[:200] for e in errors))[:800])


def export(task):
    index, kind, class_name, out = task
    signal.signal(signal.SIGALRM, lambda *a: (_ for _ in ()).throw(TimeoutError(f"more than {SECONDS} s")))
    signal.alarm(SECONDS)
    row = dict(index=index, kind=kind, name=class_name)
    start = time.time()
    try:
        import torch
        import transformers
        from safetensors.torch import save_file
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        torch.set_num_threads(1)
        ids = torch.randint(3, 250, (1, TOKENS), generator=torch.Generator().manual_seed(1))
        model = build(CONFIG_MAPPING[kind], getattr(transformers, class_name), ids)

        class M(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.m = model

            def forward(self, input_ids):
                return self.m(input_ids=input_ids, use_cache=False, return_dict=True).logits

        with torch.no_grad():
            logits = M()(ids)
            program = torch.export.export(M(), (ids,), strict=False)
            again = program.module()(ids)
        # Of some models the exported program computes something else than the model: it is what hocket is held to.
        row["torch_error"] = float((again - logits).abs().max() / logits.abs().max())
        logits = again
        folder = os.path.join(out, kind)
        os.makedirs(folder, exist_ok=True)
        torch.export.save(program, os.path.join(folder, "static.pt2"))
        save_file(dict(input_ids=ids, logits=logits.contiguous()), os.path.join(folder, "expected.safetensors"))
        plan = dict(getattr(model, "_tp_plan", None) or {})
        plan = {k: v for k, v in plan.items() if isinstance(v, str)}
        with open(os.path.join(folder, "tp_plan.json"), "w") as f:
            json.dump(plan, f, indent=1)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(model.config.to_dict(), f, indent=1, default=str)
        with open(os.path.join(folder, "static.txt"), "w") as f:
            f.write(str(program))
        row["bytes"] = os.path.getsize(os.path.join(folder, "static.pt2"))
        row["ops"] = sorted({str(n.target) for n in program.graph.nodes if n.op == "call_function"})
    except BaseException as e:
        row["refused"] = f"{type(e).__name__}: {e}"[:500]
        if os.environ.get("TRACE"):
            traceback.print_exc()
    signal.alarm(0)
    row["seconds"] = round(time.time() - start, 1)
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--only", default="")
    a = p.parse_args()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as names
    import transformers  # noqa: F401  before the processes part
    import torch  # noqa: F401
    import safetensors.torch  # noqa: F401

    only = set(filter(None, a.only.split(",")))
    tasks = []
    for index, (kind, name) in enumerate(sorted(names.items())):
        if index % a.every == 0 and (not only or kind in only):
            tasks.append((index, kind, name if isinstance(name, str) else name[0], a.out))
    os.makedirs(a.out, exist_ok=True)
    rows = []
    with multiprocessing.get_context("fork").Pool(a.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(export, tasks, chunksize=1):
            rows.append(row)
            print(row["index"], row["kind"], row.get("refused", "exported"), row["seconds"], flush=True)
            rows.sort(key=lambda r: r["index"])
            with open(os.path.join(a.out, "index.json"), "w") as f:
                json.dump(rows, f, indent=1)
    print(sum("refused" not in r for r in rows), "of", len(rows), "exported")


if __name__ == "__main__":
    sys.exit(main())
