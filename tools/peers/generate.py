"""The time to the first token and per token of a model of transformers, as `hocket bench MODEL --prompt T=128,512` measures its own.

    python3 tools/peers/generate.py --prompt 128,512 --batch 1,8 > generate.jsonl
    hocket bench llama.hkt -m cuda --prompt T=128,512 --batch B=1,8 --dim S=528 --peers generate.jsonl

The model is a Llama 3 of 8B, or that of the folder CONFIG (a config.json), in bf16 with random weights, on one GPU. It
keeps keys and values in a static cache with room for the longest prompt and the further tokens. Each round clears the cache,
uploads ids and positions, runs the whole prompt, and reads back the likeliest next token: the time to the first token. Then
it does the same for single tokens, each of which waits for the one before. Ids are drawn beforehand, as hocket draws them,
so every way computes the same. Ways: eager calls, torch's CUDA graphs, torch.compile. Prints two lines of JSON for each way, prompt and
batch, and a line of text where a way fails or its logits are not those of the eager calls.
"""
import argparse
import inspect
import json
import statistics
import sys
import time

import torch
import transformers

LLAMA_8B = dict(vocab_size=128256, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                intermediate_size=14336, max_position_embeddings=131072, rope_theta=500000.0)


def numbers(text):
    return [int(word) for word in text.split(",")]


KEEP = 1  # the tokens of a run whose logits are computed, from the last; 0 for all


def logits(model, cache, ids, at, more):
    """The logits of the last token of each sequence. more names further arguments for the positions."""
    return model(input_ids=ids, position_ids=at.unsqueeze(0), past_key_values=cache, use_cache=True, logits_to_keep=KEEP,
                 **{name: at for name in more}).logits[:, -1]


class Eager:
    """A call for runs of one shape: of the prompt, or of one token."""
    name, issued = "transformers", "eager"

    def __init__(self, model, cache, batch, tokens):
        self.model, self.cache = model, cache
        self.more = [n for n in ("cache_position",) if n in inspect.signature(model.forward).parameters]
        self.ids = torch.zeros(batch, tokens, dtype=torch.int64, device="cuda")
        self.at = torch.zeros(tokens, dtype=torch.int64, device="cuda")

    def compute(self):
        return logits(self.model, self.cache, self.ids, self.at, self.more)

    def __call__(self, ids, begin):
        """Uploads ids and positions, runs the model, and reads the next tokens back."""
        self.ids.copy_(ids)
        self.at.copy_(torch.arange(begin, begin + ids.shape[1]))
        self.logits = self.compute()
        return self.logits.argmax(-1).tolist()


class Graph(Eager):
    """The same call, captured in a CUDA graph at its first use after a warm-up."""
    name, issued = "transformers, CUDA graph", "graph"
    graph = None

    def compute(self):
        if self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    super().compute()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = super().compute()
        self.graph.replay()
        return self.result


class Compiled(Eager):
    """The same call, compiled with graphs of its own."""
    name, issued = "transformers, torch.compile", "graph"

    def __init__(self, *args):
        super().__init__(*args)
        self.compiled = torch.compile(logits, mode="reduce-overhead", dynamic=False)

    def compute(self):
        torch.compiler.cudagraph_mark_step_begin()
        return self.compiled(self.model, self.cache, self.ids, self.at, self.more).clone()


def generation(calls, cache, ids, prompt):
    """Generates once: the microseconds to the first token, and of each further token, and the logits of the last one."""
    cache.reset()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    calls[0](ids[:, :prompt], 0)
    first = time.perf_counter()
    for at in range(prompt, ids.shape[1]):
        calls[1](ids[:, at:at + 1], at)
    end = time.perf_counter()
    further = ids.shape[1] - prompt
    return (first - begin) * 1e6, (end - first) * 1e6 / further, calls[1].logits.float()


def spread(samples):
    """The distance between the quartiles."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low


def measure(way, model, cache, ids, prompt, rounds):
    """The figures of a way for one prompt and batch, and the last logits."""
    calls = [way(model, cache, ids.shape[0], prompt), way(model, cache, ids.shape[0], 1)]
    for _ in range(3):  # compiles and captures
        generation(calls, cache, ids, prompt)
    times = [generation(calls, cache, ids, prompt) for _ in range(rounds)]
    return {"first_token": [t[0] for t in times], "per_token": [t[1] for t in times]}, times[-1][2]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config", nargs="?", help="a folder with a config.json; by default a Llama 3 of 8B")
    p.add_argument("--prompt", type=numbers, default=[128, 512, 2048])
    p.add_argument("--batch", type=numbers, default=[1, 8])
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--layers", type=int, help="another number of layers than that of the configuration")
    p.add_argument("--all-logits", action="store_true", help="compute the logits of all tokens of the prompt, not only of the last")
    a = p.parse_args()
    global KEEP
    KEEP = 0 if a.all_logits else 1
    if a.tokens < 1 or a.rounds < 1 or min(a.prompt + a.batch) < 1:
        p.error("--prompt, --batch, --tokens and --rounds must be at least 1")
    config = transformers.AutoConfig.from_pretrained(a.config) if a.config else transformers.LlamaConfig(**LLAMA_8B)
    if a.layers:
        config.num_hidden_layers = a.layers
    torch.manual_seed(1)
    torch._dynamo.config.cache_size_limit = 4 * (len(a.prompt) + 1) * len(a.batch)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    print(torch.__version__, transformers.__version__, torch.cuda.get_device_name(), file=sys.stderr)
    with torch.inference_mode():
        for batch in a.batch:
            for prompt in a.prompt:
                ids = torch.randint(config.vocab_size, (batch, prompt + a.tokens))
                expected = None
                for way in (Eager, Graph, Compiled):
                    try:
                        cache = transformers.StaticCache(config=config, max_cache_len=max(a.prompt) + a.tokens)
                        figures, last = measure(way, model, cache, ids, prompt, a.rounds)
                    except Exception as e:
                        print(way.name, f"prompt {prompt}, batch {batch}: cannot:", (str(e).splitlines() or [repr(e)])[0][:150], flush=True)
                        continue
                    expected = last if expected is None else expected
                    difference, size = (last - expected).abs().max().item(), expected.std().item()
                    if not difference < size:  # ways round differently, but a wrong position changes logits by more
                        print(way.name, f"prompt {prompt}, batch {batch}: wrong: logits differ by {difference:.3g}", flush=True)
                        continue
                    for op, samples in figures.items():
                        print(json.dumps({"op": op, "name": way.name, "ranks": 1, "prompt": prompt, "batch": batch, "dtype": "bf16",
                                          "issued": way.issued, "us": round(statistics.median(samples), 1),
                                          "spread_us": round(spread(samples), 1)}), flush=True)


if __name__ == "__main__":
    main()
