"""Tests of groups, gradients, one-byte types and uneven collectives on torch's tensors on GPUs: four processes as 2 × 2, which share
one GPU or two, against gloo and arithmetic; with two GPUs also two processes against NCCL. Without GPUs they are skipped.

HOCKET_TEST_MACHINE=cpu runs what captures nothing on the CPU machine. HOCKET_TEST_CALLS is the number of mixed calls, by default
10,000, and HOCKET_TEST_SECONDS how long a test may call. If HOCKET_TEST_CALLS is set, fewer calls are a failure.
"""

import os
import pathlib
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import processes  # noqa: E402

try:
    import numpy
    import torch
    GPUS = torch.cuda.device_count()
except ImportError:
    numpy = torch = None
    GPUS = 0

MACHINE = os.environ.get("HOCKET_TEST_MACHINE", "cuda")
CALLS = int(os.environ.get("HOCKET_TEST_CALLS", "10000"))
SECONDS = float(os.environ.get("HOCKET_TEST_SECONDS", "40"))
ENOUGH = CALLS if "HOCKET_TEST_CALLS" in os.environ else 1
ROWS, COLUMNS = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


@unittest.skipIf(MACHINE == "cuda" and GPUS < 1 or torch is None, "torch sees no GPU")
class Groups(unittest.TestCase):
    def passes(self, what, n=4):
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": processes.port(), "OMP_NUM_THREADS": "2",
                       "HOCKET_STALL_TIMEOUT": "30s", "NCCL_NVLS_ENABLE": "0"}
        if n > GPUS > 0:
            environment["HOCKET_RANKS_PER_GPU"] = -(-n // GPUS)
        began = time.time()
        got = processes.launch(__file__, n, what, **environment)
        for rank, (code, text) in enumerate(got):
            self.assertEqual((code, text.strip().splitlines()[-1:]), (0, [f"{rank} right"]), text)
        said = [line for line in got[0][1].splitlines() if line != "0 right"]
        print(f"{what}: {n} processes on {GPUS or 'no'} GPUs, {time.time() - began:.1f} s", *said, sep="\n  ", flush=True)

    def test_1_types(self):
        self.passes("types")

    def test_2_gradients(self):
        self.passes("gradients")

    def test_3_training(self):
        self.passes("training")

    def test_4_mixed(self):
        self.passes("mixed")

    @unittest.skipIf(MACHINE != "cuda", "nothing is captured on the CPU machine")
    def test_5_captured(self):
        self.passes("captured")

    @unittest.skipIf(MACHINE != "cuda", "there are no streams on the CPU machine")
    def test_6_streams(self):
        self.passes("streams")

    @unittest.skipIf(GPUS < 2, "NCCL has one rank on a GPU, and two are wanted")
    def test_7_nccl(self):
        self.passes("nccl", 2)


class Run:
    """What each member has: its rank, its groups of hocket's, gloo for reference."""

    def __init__(self, backend="gloo"):
        import hocket
        import torch.distributed as dist
        self.hocket, self.dist = hocket, dist
        rank = int(os.environ["HOCKET_RANK"])
        self.where = f"cuda:{rank % GPUS}" if MACHINE == "cuda" else "cpu"
        if MACHINE == "cuda":
            torch.cuda.set_device(rank % GPUS)
        hocket.init(MACHINE)
        self.rank, self.size = hocket.rank(), hocket.world_size()
        dist.init_process_group(backend, rank=self.rank, world_size=self.size)

    def grid(self):
        """Groups 2 × 2: of hocket's, a torch group, all; the same for gloo; their ranks."""
        tp = [self.hocket.new_group(g, "tp") for g in ROWS][self.rank // 2]
        rows, columns = [self.dist.new_group(g) for g in ROWS], [self.dist.new_group(g) for g in COLUMNS]
        theirs = [rows[self.rank // 2], columns[self.rank % 2], self.dist.group.WORLD]
        return [tp, theirs[1], None], theirs, [ROWS[self.rank // 2], COLUMNS[self.rank % 2], [0, 1, 2, 3]]

    def put(self, values, dtype):
        """A tensor of these values where collectives take it."""
        return torch.as_tensor(numpy.ascontiguousarray(values)).to(dtype).to(self.where)

    def finish(self):
        self.hocket.synchronize() if MACHINE == "cuda" else None
        self.dist.barrier()
        self.dist.destroy_process_group()

    def longest(self, seconds):
        """The longest of what all processes took."""
        t = torch.tensor([seconds], dtype=torch.float64, device=self.where if self.dist.get_backend() == "nccl" else "cpu")
        self.dist.all_reduce(t, self.dist.ReduceOp.MAX)
        return t.item()


def draws(seed, *shape):
    return numpy.random.default_rng(seed).integers(0, 256, shape)


def refuses(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
    else:
        raise AssertionError(f"not refused: {words}")


def member_types():
    """Elements of one byte, and uneven blocks."""
    import test_torch
    run = Run()
    hocket, r, n = run.hocket, run.rank, run.size
    for rows, width in ((1, 1), (3, 1), (2, 5), (4, 8), (0, 3), (1000, 33)):
        every = [draws(rank, rows * n, width) for rank in range(n)]
        mine = [v[:rows] for v in every]

        def check(got, want):
            want = numpy.asarray(want) % 256
            assert got.device.type == MACHINE and numpy.array_equal(got.cpu().numpy(), want), (rows, width, got, want)

        def make(v):
            return run.put(v, torch.uint8)

        check(hocket.all_gather(make(mine[r])), numpy.concatenate(mine))
        check(hocket.all_to_all(make(every[r])), numpy.concatenate([v[r * rows : (r + 1) * rows] for v in every]))
        check(hocket.broadcast(make(mine[r]), root=n - 1), mine[n - 1])
        counts = [rows + i for i in range(n)]
        parts = [draws(100 + i, c, width) for i, c in enumerate(counts)]
        check(hocket.all_gather_v(make(parts[r]), counts), numpy.concatenate(parts))
        for dtype in (torch.bfloat16, torch.int64):  # all 256 values are bf16's
            got = hocket.all_gather_v(run.put(parts[r], dtype), counts)
            assert torch.equal(got.cpu(), torch.tensor(numpy.concatenate(parts)).to(dtype)), dtype
        check(hocket.all_reduce(make(mine[r])), sum(mine))
        check(hocket.all_reduce(make(mine[r]), "min", out=make(0 * mine[r])), numpy.min(mine, axis=0))
        check(hocket.reduce_scatter(make(every[r])), sum(every)[r * rows : (r + 1) * rows])
    wide = [draws(rank, 4, 3) - 128 for rank in range(n)]
    for op, of in (("sum", sum), ("max", lambda v: numpy.max(v, axis=0)), ("avg", lambda v: numpy.trunc(sum(v) / n))):
        want = torch.tensor(numpy.asarray(of(wide))).long().to(torch.int8)
        assert torch.equal(hocket.all_reduce(run.put(wide[r], torch.int8), op).cpu(), want), op
    both = [torch.arange(7) % 2 == (rank == 0) for rank in range(n)]
    assert torch.equal(hocket.all_reduce(both[r].clone().to(run.where)).cpu(), torch.stack(both).any(0))
    assert torch.equal(hocket.all_reduce(both[r].clone().to(run.where), "min").cpu(), torch.stack(both).all(0))
    assert torch.equal(hocket.all_gather(both[r].to(run.where)).cpu(), torch.cat(both))
    for name in ("float8_e4m3fn", "float8_e5m2"):
        if hasattr(torch, name):
            kind = getattr(torch, name)
            got = hocket.all_gather(run.put(draws(r, 6), torch.uint8).view(kind))
            want = torch.cat([torch.tensor(draws(rank, 6)).to(torch.uint8) for rank in range(n)])
            assert got.dtype == kind and torch.equal(got.view(torch.uint8).cpu(), want)
            refuses(hocket.UnsupportedError, "convert to bf16", lambda: hocket.all_reduce(got))
    test_torch.uneven(r, n, run.where)
    test_torch.communicator(run.dist, r, run.where)
    refuses(hocket.UnsupportedError, "avg of bool", lambda: hocket.all_reduce(both[r].clone().to(run.where), "avg"))
    refuses(hocket.InputError, "out has", lambda: hocket.all_gather(both[r].to(run.where), out=torch.zeros(4, dtype=torch.bool)))
    run.finish()


def member_gradients():
    """Gradients of whole numbers in f64, against what the definition of each collective gives."""
    run = Run()
    hocket, r = run.hocket, run.rank
    groups, _, members = run.grid()
    for group, peers in zip(groups, members):
        n, me = len(peers), peers.index(r)
        x, w = ({p: torch.tensor(draws(seed + p, n, 3, 2)).double() for p in peers} for seed in (0, 50))
        whole = sum(w.values())

        def gradient(f, weight):
            t = x[r].to(run.where).clone().requires_grad_()
            (f(t) * weight.to(run.where)).sum().backward()
            return t.grad.cpu()

        def same(what, got, want):
            assert torch.equal(got, want), (what, n, got, want)

        same("all_reduce", gradient(lambda t: hocket.all_reduce(t * 1, group=group), w[r]), w[r])
        same("avg", gradient(lambda t: hocket.all_reduce(t * 1, "avg", group=group), w[r]), w[r] / n)
        same("all_reduce, all_reduce", gradient(lambda t: hocket.all_reduce(t * 1, group=group, grad="all_reduce"), w[r]), whole)
        same("replicate", gradient(lambda t: hocket.replicate(t, group=group), w[r]), whole)
        same("reduce_scatter", gradient(lambda t: hocket.reduce_scatter(t, group=group), w[r][:1]),
             torch.cat([w[p][:1] for p in peers]))
        same("all_to_all", gradient(lambda t: hocket.all_to_all(t, group=group), w[r]),
             torch.stack([w[p][me] for p in peers]))
        wide = {p: torch.tensor(draws(90 + p, n * n, 3, 2)).double() for p in peers}
        mine = slice(me * n, me * n + n)
        same("all_gather", gradient(lambda t: hocket.all_gather(t, group=group), wide[r]), sum(wide.values())[mine])
        same("slice", gradient(lambda t: hocket.all_gather(t, group=group, grad="slice"), wide[r]), wide[r][mine])
        counts = list(range(1, n + 1))
        rows, at = sum(counts), sum(counts[:me])
        got = gradient(lambda t: hocket.all_gather_v(t[: me + 1], counts, group=group), wide[r][:rows])
        want = torch.zeros(n, 3, 2, dtype=torch.float64)
        want[: me + 1] = sum(wide.values())[at : at + me + 1]
        same("all_gather_v", got, want)
    refuses(hocket.UnsupportedError, "broadcast has no gradient",
            lambda: hocket.broadcast(torch.ones(4, device=run.where, requires_grad=True)))
    run.finish()


def train(where, r, tp, dp, batch, reduce, replicate, average):
    """The losses of 50 steps of a layer and of one that is split over tp ranks; dp ranks have parts of the batch."""
    rng = torch.Generator().manual_seed(2)
    embed, up, down, out = ((torch.randn(s, generator=rng) / 4).to(where) for s in ((16, 32), (64, 16), (16, 64), (16, 16)))
    target, inputs = ((torch.randn(s, generator=rng)).to(where) for s in ((batch, 16), (batch, 32)))
    up, down = up.chunk(tp)[r % tp].clone(), down.chunk(tp, 1)[r % tp].clone()
    inputs, target = inputs.chunk(dp)[r // tp], target.chunk(dp)[r // tp]
    params = [p.requires_grad_() for p in (embed, up, down, out)]
    optimizer, losses = torch.optim.SGD(params, lr=0.1, momentum=0.9), []
    for _ in range(50):
        x = torch.tanh(inputs @ embed.T)
        y = reduce(torch.nn.functional.gelu(replicate(x) @ up.T) @ down.T)
        loss = ((x + y) @ out.T - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in params:
            average(p.grad)
        optimizer.step()
        losses.append(average(loss.detach().clone()).item())
    return losses


def reference(dist, tp, dp, on_host):
    """Megatron's two functions, and the mean over a group, by torch.distributed."""

    def add(t, group):
        h = t.cpu() if on_host else t
        dist.all_reduce(h, group=group)
        return t.copy_(h)

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.mark_dirty(t)
            return add(t, tp)

        @staticmethod
        def backward(ctx, g):
            return g

    class Replicate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.view_as(t)

        @staticmethod
        def backward(ctx, g):
            return add(g.clone(), tp)

    return Reduce.apply, Replicate.apply, lambda t: add(t, dp).div_(dist.get_world_size(dp)) if dp is not None else t


def member_training():
    """Tensor × data parallel: hocket's collectives, gloo's, and one process alone."""
    run = Run()
    hocket, r = run.hocket, run.rank
    groups, theirs, _ = run.grid()
    ours = train(run.where, r, 2, 2, 8, lambda t: hocket.all_reduce(t, group=groups[0]),
                 lambda t: hocket.replicate(t, group=groups[0]), lambda t: hocket.all_reduce(t, "avg", group=groups[1]))
    by_gloo = train(run.where, r, 2, 2, 8, *reference(run.dist, theirs[0], theirs[1], True))
    same = lambda t: t
    alone = train(run.where, 0, 1, 1, 8, same, same, same)
    assert numpy.allclose(ours, by_gloo, rtol=1e-6, atol=0), (ours, by_gloo)
    assert numpy.allclose(ours, alone, rtol=1e-3) and ours[-1] < ours[0] / 2, (ours, alone)
    print(f"losses {ours[0]:.6f} … {ours[-1]:.6f}, gloo's {by_gloo[-1]:.6f}, largest difference "
          f"{max(abs(a - b) for a, b in zip(ours, by_gloo)):.1e}, alone {alone[-1]:.6f}")
    run.finish()


TYPES = [torch.int32, torch.uint8, torch.float32, torch.bfloat16] if torch else []
REDUCE = {"sum": sum, "max": lambda v: numpy.max(v, axis=0)}


class Draw:
    """One collective drawn at random, alike in all processes, and what comes of it. All values are whole and small: sums are exact."""

    def __init__(self, rng, members, rank):
        self.which, self.call, self.op = int(rng.integers(3)), int(rng.integers(5)), ("sum", "max")[int(rng.integers(2))]
        self.dtype, self.n, self.seed = TYPES[int(rng.integers(4))], (1, 24, 4096)[int(rng.integers(3))], int(rng.integers(1 << 30))
        self.peers, self.rank = members[self.which], rank
        self.me = self.peers.index(rank)
        self.root = int(rng.integers(2))

    def __repr__(self):
        return f"call {self.call} of group {self.peers}, {self.dtype}, {self.n}, {self.op}"

    def values(self, seed):
        """The operands of the peers, and the result of this process."""
        k, n, me = len(self.peers), self.n, self.me
        every = [numpy.random.default_rng((self.seed, seed, p)).integers(0, 30, (k * n,)) for p in self.peers]
        want = (lambda: REDUCE[self.op](every), lambda: numpy.concatenate(every), lambda: REDUCE[self.op](every)[me * n : (me + 1) * n],
                lambda: numpy.concatenate([v[me * n : (me + 1) * n] for v in every]), lambda: every[self.root])[self.call]()
        return every[me], want

    def __call__(self, hocket, groups, t):
        group = groups[self.which]
        if self.call == 0:
            return hocket.all_reduce(t, self.op, group=group)
        if self.call == 1:
            return hocket.all_gather(t, group=group)
        if self.call == 2:
            return hocket.reduce_scatter(t, self.op, group=group)
        if self.call == 3:
            return hocket.all_to_all(t, group=group)
        return hocket.broadcast(t, self.root, group=group)

    def gloo(self, dist, theirs, mine):
        """The same by gloo, where it has it."""
        if self.call == 0 and self.dtype in (torch.int32, torch.float32):
            t = torch.tensor(mine).to(self.dtype)
            dist.all_reduce(t, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[self.op], group=theirs[self.which])
            return t
        if self.call == 1 and self.dtype != torch.bfloat16:
            t = torch.tensor(mine).to(self.dtype)
            parts = [torch.empty_like(t) for _ in self.peers]
            dist.all_gather(parts, t, group=theirs[self.which])
            return torch.cat(parts)
        return None


def member_mixed():
    run = Run()
    hocket, r = run.hocket, run.rank
    groups, theirs, members = run.grid()
    rng, began, done, compared, calling = numpy.random.default_rng(5), time.time(), 0, 0, 0.0
    while done < CALLS and run.longest(time.time() - began) < SECONDS:
        block, wrong = [], torch.zeros(100, dtype=torch.bool, device=run.where)
        for i in range(100):
            d = Draw(rng, members, r)
            mine, want = d.values(0)
            t = run.put(mine, d.dtype)
            before = time.time()
            got = d(hocket, groups, t)
            calling += time.time() - before
            wrong[i] = (got != run.put(want, d.dtype)).any()
            block.append(d)
            if i % 25 == 0:
                by_gloo = d.gloo(run.dist, theirs, mine)
                if by_gloo is not None:
                    compared += 1
                    assert torch.equal(got.cpu(), by_gloo), (done + i, d)
        assert not bool(wrong.any()), [(done + i, block[i]) for i in wrong.nonzero().view(-1).tolist()]
        done += 100
    assert done >= ENOUGH, f"only {done} calls in {SECONDS} s"
    print(f"{done} calls, {compared} of them compared with gloo's, {time.time() - began:.1f} s, "
          f"{1e6 * calling / done:.0f} µs a call on the host")
    run.finish()


def captured(draws, hocket, groups, buffers):
    """A graph of calls, and their results. The operands are copied first: replays begin with the same."""
    for d, b in zip(draws, buffers):  # each kind once before: then it is ready
        d(hocket, groups, b.clone())
    hocket.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        results = [d(hocket, groups, b.clone()) for d, b in zip(draws, buffers)]
    return g, results


def member_captured():
    run = Run()
    hocket, r = run.hocket, run.rank
    groups, _, members = run.grid()
    rng, began, done, graphs = numpy.random.default_rng(6), time.time(), 0, 0
    while done < CALLS and run.longest(time.time() - began) < SECONDS:
        draws = [Draw(rng, members, r) for _ in range(25)]
        buffers = [run.put(d.values(0)[0], d.dtype) for d in draws]
        g, results = captured(draws, hocket, groups, buffers)
        graphs += 1
        for turn in range(1, 21):
            values = [d.values(turn) for d in draws]
            for b, (mine, _), d in zip(buffers, values, draws):
                b.copy_(run.put(mine, d.dtype))
            g.replay()
            wrong = torch.stack([(y != run.put(want, d.dtype)).any() for y, (_, want), d in zip(results, values, draws)])
            assert not bool(wrong.any()), (graphs, turn, [draws[i] for i in wrong.nonzero().view(-1).tolist()])
            done += len(draws)
        hocket.synchronize()
        del g, results
    assert done >= ENOUGH, f"only {done} calls in {SECONDS} s"
    print(f"{done} calls in replays of {graphs} graphs, {time.time() - began:.1f} s")
    run.finish()


def member_streams():
    """Two groups at the same time on two streams: eager, then as branches of one graph."""
    run = Run()
    hocket, r = run.hocket, run.rank
    groups, _, members = run.grid()
    streams = [torch.cuda.Stream() for _ in range(2)]
    operands, wants = [], []
    for peers in members[:2]:
        every = [draws(p, 1 << 16) % 30 for p in peers]
        operands.append(run.put(every[peers.index(r)], torch.float32))
        wants.append(run.put(sum(every), torch.float32))
    torch.cuda.synchronize()
    began = time.time()
    for turn in range(200):
        results = []
        for s, group, t in zip(streams, groups, operands):
            with torch.cuda.stream(s):
                results.append(hocket.all_reduce(t, out=torch.empty_like(t), group=group))
        if turn % 20 == 0:
            torch.cuda.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(results, wants)), turn
    torch.cuda.synchronize()
    eager, began = time.time() - began, time.time()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        main, results = torch.cuda.current_stream(), [torch.empty_like(t) for t in operands]
        for s, group, t, out in zip(streams, groups, operands, results):
            s.wait_stream(main)
            with torch.cuda.stream(s):
                for _ in range(10):
                    hocket.all_reduce(t, out=out, group=group)
            main.wait_stream(s)
    for turn in range(20):
        for t in results:
            t.zero_()
        g.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(results, wants)), turn
    print(f"2 × 200 calls eager {eager:.1f} s, 2 × 200 in one graph {time.time() - began:.1f} s")
    hocket.synchronize()
    run.finish()


def member_nccl():
    """Two processes on two GPUs, two groups of both, against NCCL; the training of the MLP, too."""
    run = Run("nccl")
    hocket, dist, r = run.hocket, run.dist, run.rank
    groups, theirs = [hocket.new_group([0, 1], "a"), dist.new_group([0, 1])], [dist.new_group([0, 1]) for _ in range(2)]
    rng, began = numpy.random.default_rng(7), time.time()
    members = [[0, 1]] * 3
    done = 0
    while done < CALLS and (done % 100 or run.longest(time.time() - began) < SECONDS):
        step = done
        d = Draw(rng, members, r)
        mine, want = d.values(step)
        t = run.put(mine, d.dtype)
        got = d(hocket, [*groups, None], t.clone())
        assert torch.equal(got, run.put(want, d.dtype)), (step, d)
        if d.call == 0:
            dist.all_reduce(t, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[d.op], group=theirs[step % 2])
            assert torch.equal(got, t), (step, d)
        done += 1
    assert done >= ENOUGH, f"only {done} calls in {SECONDS} s"
    ours = train(run.where, r, 2, 1, 8, lambda t: hocket.all_reduce(t, group=groups[0]),
                 lambda t: hocket.replicate(t, group=groups[1]), lambda t: t)
    by_nccl = train(run.where, r, 2, 1, 8, *reference(dist, theirs[0], None, False))
    assert numpy.allclose(ours, by_nccl, rtol=1e-6, atol=0), (ours, by_nccl)
    print(f"{done} calls in two groups, {time.time() - began:.1f} s; losses {ours[0]:.6f} … {ours[-1]:.6f}, NCCL's {by_nccl[-1]:.6f}")
    hocket.synchronize()
    sys.stdout.write(f"{r} right\n"), sys.stdout.flush()
    hocket.shutdown()
    os._exit(0)  # torch's NCCL waits otherwise for what has ended


if __name__ == "__main__":
    processes.main(globals(), unittest)
