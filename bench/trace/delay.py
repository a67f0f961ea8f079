"""Two ranks, of which rank 1 is held back before every third all_reduce: see README.md.

    torchrun --nproc-per-node 2 delay.py OUT
    python3 delay.py --judge OUT path/to/hocket
"""
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

DELAYS = 50, 100, 200, 400, 800, 1080, 1600, 3000  # microseconds
STEPS = 3 * len(DELAYS)
TICKS = 256

# Each thread block is one thread. globaltimer is the device's clock, in nanoseconds.
SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 now() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}
extern "C" __global__ void stamp_kernel(u64* at, u64) { *at = now(); }
extern "C" __global__ void spin_kernel(u64* at, u64 ns) {
  const u64 begun = now();
  u64 t = begun;
  while (t - begun < ns) t = now();
  at[0] = begun;
  at[1] = t;
}
extern "C" __global__ void ticks_kernel(u64* at, u64 n) {
  u64 last = now();
  for (u64 i = 0; i < n; i++) {
    u64 t = now();
    while (t == last) t = now();
    at[i] = last = t;
  }
}
"""


class Kernels:
    """SOURCE, compiled by nvcc and launched on torch's current stream by the driver."""

    def __init__(self, torch):
        self.torch, self.driver, self.module = torch, ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        major, minor = torch.cuda.get_device_capability()
        with tempfile.TemporaryDirectory() as folder:
            source, cubin = os.path.join(folder, "delay.cu"), os.path.join(folder, "delay.cubin")
            with open(source, "w") as f:
                f.write(SOURCE)
            subprocess.run([nvcc, "-cubin", f"-arch=sm_{major}{minor}", "-o", cubin, source], check=True)
            self.call("cuModuleLoad", ctypes.byref(self.module), cubin.encode())

    def call(self, name, *args):
        result = getattr(self.driver, name)(*args)
        if result != 0:
            raise RuntimeError(f"{name} returned {result}")

    def launch(self, name, at, n=0):
        """Launches a kernel that writes to the tensor at."""
        f = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(f), self.module, name.encode())
        values = ctypes.c_uint64(at.data_ptr()), ctypes.c_uint64(n)
        args = (ctypes.c_void_p * 2)(*(ctypes.addressof(v) for v in values))
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        one = (ctypes.c_uint(1),) * 6
        self.call("cuLaunchKernel", f, *one, ctypes.c_uint(0), stream, args, None)


def record(out):
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    x = torch.ones(1 << 22, dtype=torch.bfloat16, device="cuda")
    stamps = torch.zeros(STEPS, 4, dtype=torch.int64, device="cuda")
    ticks = torch.zeros(TICKS, dtype=torch.int64, device="cuda")
    kernels = Kernels(torch)

    def steps():
        # The host issues all of it before the first step begins, so that devices wait for nothing else.
        kernels.launch("spin_kernel", ticks, 30_000_000)
        for step in range(STEPS):
            kernels.launch("stamp_kernel", stamps[step, 0])
            x.mul_(0.5)
            if rank == 1 and step % 3 == 2:
                kernels.launch("spin_kernel", stamps[step, 2], DELAYS[step // 3] * 1000)
            kernels.launch("stamp_kernel", stamps[step, 1])
            dist.all_reduce(x)
        torch.cuda.synchronize()

    steps()  # to warm up
    dist.barrier()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        steps()
    kernels.launch("ticks_kernel", ticks, TICKS)
    torch.cuda.synchronize()
    os.makedirs(out, exist_ok=True)
    profile.export_chrome_trace(os.path.join(out, f"delay.rank{rank}.json"))
    values = ticks.tolist()
    with open(os.path.join(out, f"stamps.rank{rank}.json"), "w") as f:
        tick = min(b - a for a, b in zip(values, values[1:]))
        json.dump({"tick_ns": tick, "stamps_ns": stamps.tolist()}, f)
    dist.destroy_process_group()


def collectives(path):
    """The begin and the end of each collective, in microseconds of the rank's own profile."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    found = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    found.sort(key=lambda e: e["args"]["correlation"])
    return [(e["ts"], e["ts"] + e["dur"]) for e in found]


def judge(out, hocket):
    paths = [os.path.join(out, f"delay.rank{r}.json") for r in (0, 1)]
    report = json.loads(subprocess.run([hocket, "trace", "--json", *paths], check=True, capture_output=True).stdout)
    residual = report["alignment"]["residual_us"]
    a, b = (collectives(p) for p in paths)
    own = []
    for r in (0, 1):
        with open(os.path.join(out, f"stamps.rank{r}.json")) as f:
            own.append(json.load(f))
    tick = max(o["tick_ns"] for o in own) / 1e3
    blamed, profiled, stamped = [], [], []
    for k in range(2, STEPS, 3):
        c = report["collectives"][k]
        got = c["by_rank"][0]["wait_us"]
        # Both left the collective before together; since then each clock counts for itself.
        profile = (b[k][0] - b[k - 1][1]) - (a[k][0] - a[k - 1][1])
        zero, one = (o["stamps_ns"][k] for o in own)
        device = ((one[1] - one[0]) - (zero[1] - zero[0])) / 1e3
        late = c["late"] or {"rank": None, "after": "nobody"}
        blamed.append(late["rank"] == 1 and "spin_kernel" in late["after"])
        profiled.append(got - profile)
        stamped.append(got - device)
        print(f"all_reduce {k}: spun {(one[3] - one[2]) / 1e3:.2f} us; rank 0 waited {got:.2f} us, {got - device:+.2f} "
              f"from the devices' clocks, {got - profile:+.2f} from the profiles'; "
              f"rank {late['rank']}: {late['after']}")
    off = statistics.median(abs(v) for v in stamped)
    checks = {
        "rank 1 and its kernel are blamed for each delay": all(blamed),
        # ts and dur are rounded to nanoseconds.
        "waits are right within the residual, by the profiles' clocks": max(map(abs, profiled)) <= residual + 0.01,
        "their median error is, by the devices' clocks": off <= residual + tick,
    }
    print(f"residual {residual:.2f} us; clocks tick every {tick * 1e3:.0f} ns; by the devices' clocks waits are off by "
          f"{off:.2f} us in the median, {max(map(abs, stamped)):.2f} us at most")
    for text, ok in checks.items():
        print("ok   " if ok else "WRONG", text)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    if sys.argv[1] == "--judge":
        sys.exit(judge(sys.argv[2], sys.argv[3]))
    record(sys.argv[1])
