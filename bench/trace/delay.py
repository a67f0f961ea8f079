"""Two ranks, of which rank 1 spins before every third all_reduce: see README.md."""
import json
import os
import subprocess
import sys

STEPS = 24


def record(out):
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    x = torch.ones(1 << 22, dtype=torch.bfloat16, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for step in range(STEPS):
            if rank == 1 and step % 3 == 2:
                torch.cuda._sleep(4_000_000)
            x.mul_(0.5)
            dist.all_reduce(x)
        torch.cuda.synchronize()
    os.makedirs(out, exist_ok=True)
    profile.export_chrome_trace(os.path.join(out, f"delay.rank{rank}.json"))
    dist.destroy_process_group()


def kernels(path):
    """The begin and the end of each collective, in microseconds of the rank's own clock."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    list_ = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    list_.sort(key=lambda e: e["args"]["correlation"])
    return [(e["ts"], e["ts"] + e["dur"]) for e in list_]


def judge(out, hocket):
    paths = [os.path.join(out, f"delay.rank{r}.json") for r in (0, 1)]
    report = json.loads(subprocess.run([hocket, "trace", "--json", *paths], check=True, capture_output=True).stdout)
    residual = report["alignment"]["residual_us"]
    a, b = (kernels(p) for p in paths)
    bad = 0
    for k in range(2, STEPS, 3):
        c = report["collectives"][k]
        # Both left the collective before together; since then each clock counts for itself.
        want = (b[k][0] - b[k - 1][1]) - (a[k][0] - a[k - 1][1])
        got = c["by_rank"][0]["wait_us"]
        blamed = c["late"] and c["late"]["rank"] == 1 and "spin_kernel" in c["late"]["after"]
        ok = blamed and abs(got - want) <= residual
        bad += not ok
        print(f"collective {k}: waited {got:.1f} us, {want:.1f} by the ranks' own clocks, {'ok' if ok else 'WRONG'}: {c['late']}")
    print(f"residual {residual:.2f} us; {bad} wrong")
    return bad


if __name__ == "__main__":
    if sys.argv[1] == "--judge":
        sys.exit(1 if judge(sys.argv[2], sys.argv[3]) else 0)
    record(sys.argv[1])
