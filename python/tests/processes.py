"""Tests of several processes: a file of tests starts itself again as their members."""

import os
import subprocess
import sys
import time


def launch(file, n, what, **env):
    """Runs member_WHAT of a file in n processes; their exit codes and outputs."""
    return ended(start([file, "member", what], n, **env))


def start(argv, n, **env):
    """Starts a Python program in n processes."""
    base = {**os.environ, **{k: str(v) for k, v in env.items()}, "HOCKET_RUN_ID": f"{argv} {os.getpid()} {time.time()}",
            "HOCKET_WORLD_SIZE": str(n)}
    return [subprocess.Popen([sys.executable, *argv], env={**base, "HOCKET_RANK": str(r)}, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT) for r in range(n)]


def ended(procs):
    """The exit codes and outputs of processes, once they have ended."""
    out = []
    for p in procs:
        try:
            text, _ = p.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            p.kill()
            text = p.communicate()[0] + "\ntimed out"
        out.append((p.returncode, text))
    return out


def right(test, file, n, what, **env):
    """Has a test fail unless all members end well and say so."""
    for rank, (code, text) in enumerate(launch(file, n, what, **env)):
        test.assertEqual((code, text.strip().splitlines()[-1:]), (0, [f"{rank} right"]), text)


def port():
    """A port, which no connection is given."""
    return 10000 + os.getpid() % 20000


def main(names, unittest):
    """The end of a file of tests: a member, or all tests."""
    if sys.argv[1:2] == ["member"]:
        names["member_" + sys.argv[2]]()
        print(os.environ["HOCKET_RANK"], "right")
    else:
        unittest.main()
