#!/usr/bin/env python3
"""Runs the models of `export.py` with hocket and prints a table: ok, refused (and why) or wrong.

    python3 tools/zoo/table.py --hocket ./hocket [-n 2] [--plan] [--machine cuda] DIR [NAME …]
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

LIMIT = 2e-5  # of the largest logit; 50 times that is "near"


def read(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            kind = {"F32": "<f4", "I64": "<i8", "I32": "<i4"}[t["dtype"]]
            lo, hi = t["data_offsets"]
            out[name] = np.frombuffer(data[lo:hi], kind).reshape(t["shape"])
    return out


def run(a, name):
    d = os.path.join(a.dir, name)
    with tempfile.TemporaryDirectory() as out:
        cmd = [a.hocket, "run", os.path.join(d, "static.pt2"), "-n", str(a.n), "--save", out,
               "--in", f"input_ids={d}/expected.safetensors#input_ids"]
        if a.machine:
            cmd += ["-m", a.machine]
        if a.plan:
            cmd += ["--plan", os.path.join(d, "tp_plan.json")]
        try:
            r = subprocess.run(cmd, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return name, "hung", ""
        if r.returncode:
            return name, "refused", f"exit {r.returncode}: {r.stderr.strip()}"
        want = read(os.path.join(d, "expected.safetensors"))["logits"].astype(np.float64)
        got = read(os.path.join(out, "outputs.safetensors"))["out0"].astype(np.float64)
    if got.shape != want.shape:
        return name, "wrong", f"shape {got.shape}, not {want.shape}"
    error = np.abs(got - want).max() / np.abs(want).max()
    if not error < 50 * LIMIT:
        return name, "wrong", f"{error:.1e}"
    return name, "ok" if error < LIMIT else "near", f"{error:.1e}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("names", nargs="*")
    p.add_argument("--hocket", default="hocket")
    p.add_argument("-n", type=int, default=1)
    p.add_argument("--plan", action="store_true")
    p.add_argument("--machine", default="")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--width", type=int, default=240)
    p.add_argument("--jobs", type=int, default=2)
    a = p.parse_args()
    index = {r["kind"]: r["index"] for r in json.load(open(os.path.join(a.dir, "index.json")))}
    names = a.names or sorted(n for n in index if os.path.exists(os.path.join(a.dir, n, "static.pt2"))
                              and index[n] % a.every == 0)
    count = {}
    with ThreadPoolExecutor(a.jobs) as pool:
        for name, verdict, text in pool.map(lambda n: run(a, n), names):
            count[verdict] = count.get(verdict, 0) + 1
            print(f"{index[name]:4} {name:20} {verdict:8} {' '.join(text.split())[:a.width]}", flush=True)
    print(", ".join(f"{n} {v}" for v, n in sorted(count.items())), "of", len(names))


if __name__ == "__main__":
    sys.exit(main())
