"""The programs of docs/hangs.md: each is refused before it runs, or ends within the stall limit with rank, call and line
named. HOCKET_LIBRARY names what is tested. HOCKET_TEST_MACHINE=cuda runs them on GPUs, two, or one that the ranks share.
"""

import atexit
import functools
import os
import pathlib
import re
import runpy
import signal
import sys
import threading
import time
import traceback
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import processes  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

MACHINE = os.environ.get("HOCKET_TEST_MACHINE", "cpu")
STALL = 10  # seconds
REFUSED = 3  # the exit code of a program that an exception ends
PLACE = r"\S*{}\.py:\d+"

# What the ranks' outputs match, by machine: those of both, or of rank 0 and of rank 1.
WANT = {
    "unaligned": {"cpu": (r"DisagreeError: .*ranks disagree on the next call: .*all_reduce\(f32\[16, 64\], sum\) at {}.*"
                          r"all_reduce\(f32\[32, 64\], sum\) at {}",),
                  "cuda": (r"(PeerError|DisagreeError|MachineError|DeviceLostError).*rank [01].* at {}",)},
    "branch": {"cpu": (r"DisagreeError: .*ranks disagree on the next call: .*all_reduce\(f32\[8, 64\], sum\) at {}.*"
                       r"all_gather\(f32\[8, 64\]\) at {}",),
               "cuda": (r"DisagreeError: .*all_reduce.* at {}.*all_gather.* at {}",)},
    "streams": {"cpu": (r"DisagreeError: .*ranks disagree on .*all_reduce\(f32\[8\], sum\) at {}.*all_reduce\(f32\[16\], sum\) at {}",),
                "cuda": (r"^\[2\.0\] \[2\.0\]$",)},  # hocket orders the calls
    "orders": {"cpu": (r"DisagreeError: .*ranks disagree on the order in which groups are called: .*"
                       r"all_reduce\(f32\[1024\], sum\) at {}.*of group (shards|experts).*which waits for rank",),
               "cuda": (r"(PeerError|DisagreeError|MachineError|DeviceLostError).*rank [01].* at {}",)},
    "capture": {"cpu": (r"DisagreeError: .*ranks disagree on the next call: .*all_reduce\(f32\[16, 64\], sum\) at {}.*"
                        r"all_reduce\(f32\[17, 64\], sum\) at {}",),
                "cuda": (r"PeerError: .*rank 1 .*MachineError: .*make the call once before", r"MachineError: .*make the call once before")},
    "memory": {"cpu": (r"PeerError: .*rank 1 .*left the world before all_reduce\(f32\[1024\], sum\) at {}.*"
                       r"memory.*\({}\)", r"memory"),
               "cuda": (r"PeerError: .*rank 1 .*its last call failed: .*memory.*\({}\)", r"OutOfMemoryError|out of memory")},
}

LATE = {"unaligned"}  # on GPUs found by the rank whose kernel waits in vain


class Forked:
    """A Python program in a child of this process, which has imported torch for it, to the end of its interpreter. Options
    are those of hocket.init: the library reads the environment of this process."""

    def __init__(self, argv, **options):
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        import hocket
        hocket.init = functools.partial(hocket.init, **options)
        sys.argv, sys.stdout, sys.stderr = argv, open(1, "w", closefd=False), open(2, "w", closefd=False)
        code = 0
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except BaseException as e:
            sys.last_exc = sys.last_value = e
            traceback.print_exc()
            code = REFUSED
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def output(self):
        """What the process printed. One that does not end is killed; one that did not end by an exception says so."""
        killed = threading.Timer(300, os.kill, (self.pid, signal.SIGKILL))
        killed.start()
        with open(self.reading) as f:
            text = f.read()
        status = os.waitpid(self.pid, 0)[1]
        killed.cancel()
        return text if status == REFUSED << 8 else f"ended with status {os.waitstatus_to_exitcode(status)}:\n{text}"


@unittest.skipIf(torch is None or MACHINE == "cuda" and not torch.cuda.is_available(), "torch, or a GPU, is not there")
class Hangs(unittest.TestCase):
    def test_hangs(self):
        environment = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "HOCKET_STALL_TIMEOUT": f"{STALL}s",
                       "HOCKET_TEAM_TIMEOUT": f"{STALL}s", "HOCKET_JOIN_TIMEOUT": "100s"}
        if MACHINE == "cuda" and torch.cuda.device_count() == 1:
            environment["HOCKET_RANKS_PER_GPU"] = "2"
        started, running = time.time(), {}
        for name in WANT:
            argv = [str(ROOT / "examples/hangs" / f"{name}.py"), MACHINE]
            if MACHINE == "cuda":  # one at a time
                outputs = [text for _, text in processes.ended(processes.start(argv, 2, **environment))]
                self.ends(name, outputs, started)
                started = time.time()
                continue
            running[name] = [Forked(argv, rank=r, size=2, id=f"{name} {os.getpid()} {started}", timeout=100, stall_timeout=STALL)
                             for r in range(2)]
        for name, both in running.items():
            self.ends(name, [p.output() for p in both], started)

    def ends(self, name, outputs, started):
        with self.subTest(name):
            took = time.time() - started
            if MACHINE == "cuda" or os.environ.get("HOCKET_TEST_SHOW"):
                print(f"== {name}: {took:.1f} s", *(f"-- rank {r}\n{t}" for r, t in enumerate(outputs)), sep="\n", flush=True)
            want = [w.replace("{}", PLACE.format(name)) for w in WANT[name][MACHINE]]
            if name in LATE and MACHINE == "cuda":  # the rank that is early may have ended well
                outputs = ["\n".join(outputs)]
            for rank, text in enumerate(outputs):
                self.assertNotRegex(text, "^ended with status")
                self.assertRegex(text, re.compile(want[rank % len(want)], re.MULTILINE))
            self.assertLess(took, 60 + 2 * STALL)  # most of it is the start of processes on a busy machine


if __name__ == "__main__":
    unittest.main()
