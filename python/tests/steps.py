"""Eight steps of a program with weights, state and arguments, in two processes: hocket launch -n 2 -- python3 steps.py [cuda]

The same on the CPU machine and on GPUs: each process gives blocks of its rank, and finds its state updated."""

import os
import sys

import torch

import hocket

PROGRAM = """dim T = 1
dim H = 8
dim K = 32
mesh tp[2]
func step(%x: f32[T, H], %at: i32[T], %w: f32[H/tp, H], %one: i32[1], %cache: inout f32[K, H/tp], %n: inout i32[1]) -> (f32[T, H], f32[H/tp]) {
  %y = linear %x, %w
  index_copy %y, %at into %cache
  %m = add %n, %one
  copy %m into %n
  %g = all_gather %y, axis=1, over=tp
  %s = sum %cache, axis=0
  return %g, %s
}
"""
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if "cuda" in sys.argv else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
hocket.init(device.type)
r, T = hocket.rank(), 4
whole = (torch.arange(64, device=device) % 5 - 2).float().view(8, 8)
cache, n = torch.zeros(32, 4, device=device), torch.zeros(1, dtype=torch.int32, device=device)
step = hocket.load(PROGRAM)
step.bind("w", whole[4 * r : 4 * r + 4].contiguous(), dims={"T": T})  # a weight: this rank's block
step.bind("cache", cache, dims={"T": T})  # state, likewise
step.bind("one", torch.ones(1, dtype=torch.int32, device=device), dims={"T": T})
x = (torch.arange(32, device=device) % 3 - 1).float().view(T, 8)
for i in range(8):
    at = torch.arange(T * i, T * i + T, dtype=torch.int32, device=device)
    y, s, given = step(x, at, n=n, dims={"T": T})  # an argument that is inout is updated, and comes back
    assert given is n
    x = (x + y).remainder(7) - 3
    print(r, i, n.item(), *y.sum(1).int().tolist(), *s.int().tolist(), *cache.sum(1).int().tolist()[T * i : T * i + T])
