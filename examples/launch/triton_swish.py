"""Writes what Triton makes of a kernel like swish.cu to a directory: swish.ptx, swish.cubin, swish.json."""
import json
import pathlib
import re
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def swish(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 2 * v / (1 + tl.exp(-v)), mask=i < n)


out = pathlib.Path(sys.argv[1])
x = torch.zeros(1003, device="cuda")  # no multiple of 16, which Triton would take for granted
k = swish[(4,)](x, torch.empty_like(x), 1003, BLOCK=256)
(out / "swish.ptx").write_text(k.asm["ptx"])
(out / "swish.cubin").write_bytes(k.asm["cubin"])
head = re.search(r"\.entry\s+\w+\s*\((.*?)\)", k.asm["ptx"], re.S).group(1)
meta = {"params": head.count(".param"), "threads": 32 * k.metadata.num_warps, "shared": k.metadata.shared}
(out / "swish.json").write_text(json.dumps(meta))
