"""Tests of collectives and programs on torch's tensors on GPUs: run with torch on a machine with two GPUs, they start themselves
under torchrun. HOCKET_LIBRARY and HOCKET_COMMAND name what is tested. Without GPUs they are skipped.

HOCKET_TEST_INTERRUPTS is the number of interrupted calls, and HOCKET_TEST_BINDS of calls during which another thread binds."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import steps_want  # noqa: E402

try:
    import torch
    GPUS = torch.cuda.device_count()
except ImportError:
    torch, GPUS = None, 0


def torchrun(what, n=2):
    """Runs a function of this file under torchrun; its exit code and output."""
    port = str(20000 + os.getpid() % 20000)
    p = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), "--master-port", port, __file__,
                        "member", what], capture_output=True, text=True, timeout=300, check=False,
                       env={**os.environ, "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "4"})
    return p.returncode, p.stdout + p.stderr


@unittest.skipIf(GPUS < 1, "torch sees no GPU")
class Memory(unittest.TestCase):
    """One process: whose memory is used, and for how long."""

    def passes(self, what):
        p = subprocess.run([sys.executable, __file__, "alone", what], capture_output=True, text=True, timeout=550, check=False)
        self.assertEqual((p.returncode, p.stdout.strip().splitlines()[-1:]), (0, [f"{what} is right"]), p.stdout + p.stderr)

    def test_memory_interrupted(self):
        self.passes("memory_interrupted")

    def test_memory_bound(self):
        self.passes("memory_bound")

    def test_memory_captured(self):
        self.passes("memory_captured")


@unittest.skipIf(GPUS < 2, f"{GPUS} GPUs that torch sees; two are wanted")
class GPUs(unittest.TestCase):
    def passes(self, what):
        code, text = torchrun(what)
        self.assertEqual((code, text.count(f"{what} is right")), (0, 2), text)

    def test_against_nccl(self):
        self.passes("against_nccl")

    def test_graph(self):
        self.passes("graph")

    def test_mixed(self):
        self.passes("mixed")

    def test_loaders(self):
        self.passes("loaders")

    def test_interrupted(self):
        self.passes("interrupted")

    def test_refused(self):
        self.passes("refused")

    def test_compiled(self):
        self.passes("compiled")

    def test_programs(self):
        self.passes("programs")

    def test_steps(self):
        """The script that test_hocket.py runs on the CPU machine."""
        p = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                            str(20000 + os.getpid() % 20000), str(ROOT / "python/tests/steps.py"), "cuda"],
                           capture_output=True, text=True, timeout=300, check=False,
                           env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "4"})
        self.assertEqual((p.returncode, sorted(p.stdout.splitlines())), (0, steps_want.lines()), p.stdout + p.stderr)

    def test_scaled(self):
        self.passes("scaled")

    def test_quantized(self):
        self.passes("quantized")

    def test_lends(self):
        self.passes("lends")

    def test_disagree(self):
        _, text = torchrun("disagree")
        self.assertEqual(text.count("DisagreeError: ranks disagree on prepared call"), 2, text)

    def test_killed(self):
        _, text = torchrun("killed")
        self.assertRegex(text, r"PeerError: .*rank 1 .*its process ended.*, after [0-4]\.\d s")


def ints(shape, dtype, seed):
    g = torch.Generator(device="cuda")
    g.manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=g, device="cuda").to(dtype)


def signs(shape, few, seed):
    """-1, 0 and 1 in bf16; of few, one is not 0."""
    g = torch.Generator(device="cuda")
    g.manual_seed(seed)
    some = torch.rand(shape, generator=g, device="cuda") * few < 1
    return (torch.randint(-1, 2, shape, generator=g, device="cuda") * some).to(torch.bfloat16)


def against_nccl(hocket, dist, rank, size):
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32):
        for n in (8, 24, 1000, 65536, 5 << 20):
            same(hocket, dist, ints((n,), dtype, rank), ints((n * size,), dtype, 50 + rank), size)
    x = torch.empty(4100, dtype=torch.bfloat16, device="cuda")[2:4098]  # no multiple of 16
    same(hocket, dist, x.copy_(ints((4096,), x.dtype, rank)), ints((4096,), x.dtype, 9), size)
    counts = [3, 5] + [2] * (size - 2)
    parts = [ints((c, 16), torch.bfloat16, i) for i, c in enumerate(counts)]
    assert torch.equal(hocket.all_gather_v(parts[rank], counts), torch.cat(parts))
    e = hocket.empty(1 << 20, dtype=torch.bfloat16)
    e.copy_(ints(e.shape, e.dtype, rank))
    w = e.clone()
    dist.all_reduce(w)
    assert torch.equal(hocket.all_reduce(e), w)
    for whole in hocket.empty((size, 5000), dtype=torch.float32), torch.empty(size, 5000, device="cuda"):  # in place
        own = whole[rank].copy_(ints((5000,), whole.dtype, rank))
        assert torch.equal(hocket.all_gather(own, out=whole), torch.stack([ints((5000,), whole.dtype, r) for r in range(size)]))
        parts = [ints((size, 5000), whole.dtype, 30 + r) for r in range(size)]
        whole.copy_(parts[rank])
        assert torch.equal(hocket.reduce_scatter(whole, out=own), sum(parts)[rank])
    import torch.distributed._symmetric_memory as symm
    a = hocket.adopt(symm.empty(1 << 20, dtype=torch.bfloat16, device="cuda"))
    for part in (a, a[4096:8192], a[:64]):
        w = part.copy_(ints(part.shape, part.dtype, rank)).clone()
        dist.all_reduce(w)
        assert torch.equal(hocket.all_reduce(part), w)
    for rows in (1, 32, 64, 200, 1000, 4097):  # the last are two launches
        t, r, weight = ints((rows, 8192), torch.bfloat16, rank), ints((rows, 8192), torch.bfloat16, 77), ints((8192,), torch.bfloat16, 5)
        out, s = hocket.all_reduce_rms_norm(t, r, weight, 1e-5)
        dist.all_reduce(t)
        f = (t + r).double()
        want = f * (f.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        assert torch.equal(s, t + r)
        assert ((out.double() - want).abs() <= want.abs() * 2**-7).all()


def same(hocket, dist, x, z, size):
    w = x.clone()
    dist.all_reduce(w)
    assert torch.equal(hocket.all_reduce(x, out=torch.empty_like(x)), w) and torch.equal(hocket.all_reduce(x.clone()), w)
    w = x.new_empty(x.numel() * size)
    dist.all_gather_into_tensor(w, x)
    assert torch.equal(hocket.all_gather(x), w)
    w = z.new_empty(z.numel() // size)
    dist.reduce_scatter_tensor(w, z)
    assert torch.equal(hocket.reduce_scatter(z), w)
    w = torch.empty_like(z)
    dist.all_to_all_single(w, z)
    assert torch.equal(hocket.all_to_all(z), w)
    w = x.clone()
    dist.broadcast(w, 1)
    assert torch.equal(hocket.broadcast(x.clone(), 1), w)


def graph(hocket, dist, rank, size):
    x = ints((4096,), torch.bfloat16, rank)
    w, st = x.clone(), x.clone()
    hocket.all_reduce(torch.empty_like(x))
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(3):
            hocket.all_reduce(st)
    for _ in range(3):
        dist.all_reduce(w)
    for _ in range(5):
        st.copy_(x)
        g.replay()
        assert torch.equal(st, w)


def free_memory():
    """What the GPU has free when torch keeps nothing that it does not use."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def mixed(hocket, dist, rank, size):
    """Collectives of hocket's and NCCL's in turns, while torch's allocator takes memory from the driver and gives it back."""
    draw, kept, free = random.Random(5), [], 0
    for i in range(10_000):
        if i == 2000:  # every kind has been called
            kept.clear()
            free = free_memory()
        n, dtype = draw.choice([16, 4096, 40000, 1 << 18]), draw.choice([torch.bfloat16, torch.float32])
        kept += [torch.empty(draw.randrange(1, 1 << draw.randrange(10, 24)), device="cuda") for _ in range(draw.randrange(3))]
        while len(kept) > 20:
            kept.pop(draw.randrange(len(kept)))
        if i % 100 == 0:
            torch.cuda.empty_cache()
        x = ints((n,), dtype, 2 * i + rank)
        op = draw.randrange(3)
        if op == 0:
            w = x.clone()
            dist.all_reduce(w)
            got = hocket.all_reduce(x)
        elif op == 1:
            w = x.new_empty(n * size)
            dist.all_gather_into_tensor(w, x)
            got = hocket.all_gather(x)
        else:
            w = x.new_empty(n // size)
            dist.reduce_scatter_tensor(w, x)
            got = hocket.reduce_scatter(x)
        assert torch.equal(got, w), (i, op, n, dtype)
    del x, w, got
    kept.clear()
    less = free - free_memory()
    assert less <= 0, f"{less} bytes less are free"


class Rows:
    """A dataset whose workers are no processes of hocket's or CUDA's; of a forked one, calls of hocket's are refused."""

    held = None  # a tensor on the GPU

    def __init__(self, hocket=None):
        self.hocket = hocket

    def __len__(self):
        return 32

    def __getitem__(self, i):
        assert not torch.cuda.is_initialized()
        assert torch.utils.data.get_worker_info() is not None
        if self.hocket:
            for call in (lambda: self.hocket.all_reduce(Rows.held), lambda: self.hocket.load(PAIRS.format(size=2)), self.hocket.barrier):
                try:
                    call()
                except self.hocket.UnsupportedError as e:
                    assert "forked" in str(e), e
                else:
                    raise AssertionError("hocket can be used in a forked child")
        else:
            assert "hocket" not in sys.modules
        return torch.full((4,), float(i))


def loaders(hocket, dist, rank, size):
    """Workers of torch's DataLoader by fork and by spawn, beside collectives."""
    import torch.utils.data as data
    Rows.held = ints((4096,), torch.bfloat16, rank)
    hocket.all_reduce(Rows.held)
    calls, free = 0, 0
    for context, epochs in (("fork", 4), ("spawn", 1), ("fork", 4)):
        rows = Rows(hocket) if context == "fork" else Rows()
        loader = data.DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context=context, timeout=100)
        for _ in range(epochs):
            steps = 0
            for step, batch in enumerate(loader):
                steps += 1
                assert batch[:, 0].tolist() == [4.0 * step + k for k in range(4)], batch
                for _ in range(50):
                    calls += 1
                    x = ints((4096,), torch.bfloat16, 2 * calls + rank)
                    w = x.clone()
                    dist.all_reduce(w)
                    assert torch.equal(hocket.all_reduce(x), w), calls
            assert steps == 8, steps
            free = free or free_memory()
    less = free - free_memory()
    assert less <= 0, f"{less} bytes less are free"


def interrupted(hocket, dist, rank, size):
    """Ctrl-C on one rank while both call: a call was given whole or not at all, which its result tells; from there the rank
    goes on, and no result is another."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    draw, count, free, within = random.Random(7), 2000, 0, 0
    for turn in range(10):
        n = 1000 + 8 * (turn % 5)  # the first call of a size has the ranks meet
        x = ints((n,), torch.bfloat16, 2 * turn + rank)
        w = x.clone()
        dist.all_reduce(w)
        outs = torch.full((count, n), 99.0, dtype=x.dtype, device="cuda")  # no sum
        torch.cuda.synchronize()
        i, awaited = 0, rank == draw.randrange(size)
        timer = threading.Timer(draw.uniform(0, 0.06), os.kill, (os.getpid(), signal.SIGINT))
        while i < count or awaited:
            try:
                if awaited:
                    timer.start()
                while i < count:
                    hocket.all_reduce(x, out=outs[i])
                    i += 1
                hocket.synchronize()
                late = time.time() + 20
                while awaited and time.time() < late:
                    time.sleep(0.001)
                assert not awaited, "no KeyboardInterrupt"
            except KeyboardInterrupt:
                awaited = False
                within += i < count
                torch.cuda.synchronize()  # the other rank makes all its calls
                if i < count and outs[i, 0] != 99:
                    i += 1
                assert bool((outs[i:] == 99).all()), (turn, i)
        hocket.synchronize()
        assert torch.equal(outs, w.expand_as(outs)), (turn, (outs != w).any(1).nonzero()[:8].tolist())
        del outs
        free = free_memory() if turn == 4 else free
    less = free - free_memory()
    assert less <= 0, f"{less} bytes less are free"
    some = torch.tensor([within], device="cuda")
    dist.all_reduce(some)
    assert some.item() > 2, f"{some.item()} of 10 interrupts came while there were calls to make"


def refused(hocket, dist, rank, size):
    x = ints((64, 8), torch.bfloat16, rank)
    for call, kind in ((lambda: hocket.all_reduce(x.t()), hocket.InputError), (lambda: hocket.all_reduce(x.to(torch.complex64)), hocket.InputError),
                       (lambda: hocket.all_reduce(x, op="prod"), hocket.InputError), (lambda: hocket.all_reduce(x, out=x[:8]), hocket.InputError),
                       (lambda: hocket.reduce_scatter(x[:3]), hocket.InputError)):
        try:
            call()
        except kind:
            continue
        raise AssertionError("not refused")
    y = ints((12345,), torch.bfloat16, rank)
    g = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(g):
            hocket.all_reduce(y)
        raise AssertionError("not refused while captured")
    except hocket.Error as e:
        assert "make the call once before" in str(e), e


def compiled(hocket, dist, rank, size):
    import hocket.ops  # noqa: F401
    x = ints((64, 256), torch.bfloat16, rank)
    w = x.clone()
    dist.all_reduce(w)
    f = torch.compile(lambda a: torch.ops.hocket.all_reduce(a * 1, "sum") + 0, fullgraph=True)
    assert torch.equal(f(x), w)


PAIRS = """dim T = 512
dim H = 256
dim F = 1024
dim R = {size}
mesh tp[R]
func mlp(%x: bf16[T/tp, H], %w1: bf16[F/tp, H], %w2: bf16[H, F/tp], %k: i32[8], %n: inout i32[8]) -> bf16[T/tp, H] {{
  %h = linear %x, %w1
  %g = relu %h
  %y = linear %g, %w2
  %m = add %n, %k
  copy %m into %n
  return %y
}}
func row(%x: bf16[T, F/tp], %w2: bf16[H, F/tp]) -> bf16[T, H] {{
  %y = linear %x, %w2
  return %y
}}
"""


def programs(hocket, dist, rank, size):
    """AG + linear, linear + RS and linear + AR from torch: eager, captured, and without a wait on the host."""
    text = PAIRS.format(size=size)
    x, w1, w2 = (signs(s, few, seed + rank) for s, few, seed in (((512 // size, 256), 1, 0), ((1024 // size, 256), 1, 10),
                                                                ((256, 1024 // size), 64, 20)))

    def want(t):
        whole = t.new_empty(512, 256)
        dist.all_gather_into_tensor(whole, t)
        y = (torch.relu(whole @ w1.t()).float() @ w2.t().float())
        dist.all_reduce(y)
        return y[rank * t.shape[0]:(rank + 1) * t.shape[0]]

    def same(got, t):  # every sum is a whole number, or half of one, that bf16 holds
        ref = want(t)
        assert ref.abs().max() <= 256 and torch.equal(got.float(), ref), ((got.float() - ref).abs().max(), ref.abs().max())

    for strategy in ("sequential", "exchange", "chunked"):
        with hocket.load(text, func="mlp", strategy=strategy) as m:
            n = torch.zeros(8, dtype=torch.int32, device="cuda")
            m.bind("w1", w1)
            m.bind("w2", w2)
            m.bind("k", torch.ones(8, dtype=torch.int32, device="cuda"))
            m.bind("n", n)
            same(m(x), x)
            torch.cuda._sleep(200_000_000)
            began = time.time()
            a, b = m(x), m(x * 0.5)
            took = time.time() - began
            assert not torch.cuda.current_stream().query(), f"the host waited: {took}"
            same(a, x)
            same(b, x * 0.5)
            st = x.clone()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                y = m(st) + 0
                z = m(y.sign())
            for scale in (1, 0.5, -1):
                st.copy_(x * scale)
                g.replay()
                same(y, st)
                same(z, y.sign())
            m.synchronize()
            assert n.tolist() == [9] * 8, n
            for bad in (x.float(), x[:8], x.cpu(), x.t()):
                try:
                    m(bad)
                except hocket.InputError:
                    continue
                raise AssertionError("not refused")
            del g
    with hocket.load(text, func="row", strategy="exchange") as m:
        h = signs((512, 1024 // size), 1, 40 + rank)
        y, ref = m(h, w2), h.float() @ w2.t().float()
        dist.all_reduce(ref)
        assert torch.equal(y.float(), ref)


SCALED = """mesh tp[{size}]
func gather(%x: f8e4m3[512/tp, 1024], %w: f8e4m3[1024/tp, 1024], %sx: f32[512/tp{kx}], %sw: f32[{nw}/tp{kw}]) -> bf16[512, 1024/tp] {{
  %y = linear %x, %w, %sx, %sw
  return %y
}}
func scatter(%x: f8e4m3[512, 1024/tp], %w: f8e4m3[1024, 1024/tp], %sx: f32[512{kxs}], %sw: f32[{nw}{kws}]) -> f32[512/tp, 1024] {{
  %y: f32[512, 1024] partial(tp, sum) = linear %x, %w, %sx, %sw
  return %y
}}
"""


def spread(s, rows, cols):
    """Scales as a matrix with so many rows and columns."""
    s = s[:, None] if s.dim() == 1 else s
    return s.repeat_interleave(rows // s.shape[0], 0).repeat_interleave(cols // s.shape[1], 1).double()


def scaled(hocket, dist, rank, size):
    """Linears of torch's 8-bit tensors with scales of rows and of blocks: eager, captured, and with graph=True. Each result is
    within the rounding of f64 arithmetic."""
    def all_of(t):
        parts = [torch.empty_like(t.view(torch.uint8) if t.element_size() == 1 else t) for _ in range(size)]
        dist.all_gather(parts, t.view(torch.uint8) if t.element_size() == 1 else t)
        return torch.cat([p.view(t.dtype) for p in parts])

    def values(seed, *shape):
        g = torch.Generator(device="cuda")
        g.manual_seed(seed)
        return (torch.randn(shape, generator=g, device="cuda") * 8).to(torch.float8_e4m3fn)

    def scales(seed, *shape):
        g = torch.Generator(device="cuda")
        g.manual_seed(seed)
        return torch.rand(shape, generator=g, device="cuda") + 0.25

    m, n, k = 512, 1024, 1024
    for block in (False, True):
        text = SCALED.format(size=size, kx=", 8" if block else "", kxs=", 8/tp" if block else "", nw=8 if block else n,
                             kw=", 8" if block else "", kws=", 8/tp" if block else "")
        along = lambda rows, cols: (rows, cols // 128) if block else (rows,)
        cases = {
            "gather": (values(rank, m // size, k), values(10 + rank, n // size, k), scales(20 + rank, *along(m // size, k)),
                       scales(30 + rank, *((n // size // 128, k // 128) if block else (n // size,)))),
            "scatter": (values(40 + rank, m, k // size), values(50 + rank, n, k // size), scales(60 + (rank if block else 0), *along(m, k // size)),
                        scales(70 + (rank if block else 0), *((n // 128, k // size // 128) if block else (n,)))),
        }
        for func, (x, w, sx, sw) in cases.items():
            wide = lambda x, sx: x.double() * spread(sx, *x.shape)
            if func == "gather":
                a, b = wide(all_of(x), all_of(sx)), wide(w, sw)
                want, size_of, step = a @ b.t(), a.abs() @ b.abs().t(), 2**-8
            else:
                want, size_of, step = wide(x, sx) @ wide(w, sw).t(), wide(x, sx).abs() @ wide(w, sw).abs().t(), 2**-23
                dist.all_reduce(want)
                dist.all_reduce(size_of)
                rows = slice(rank * m // size, (rank + 1) * m // size)
                want, size_of = want[rows], size_of[rows]
            bound = want.abs() * step + size_of * 2**-11  # tensor cores keep 13 bits of a term

            def right(y):
                assert ((y.double() - want).abs() <= bound).all(), (func, block, ((y.double() - want).abs() / bound).max())

            for strategy in ("sequential", "exchange", "chunked"):
                first = None
                for graph in (False, True):
                    with hocket.load(text, func=func, strategy=strategy, graph=graph) as model:
                        model.bind("w", w)
                        model.bind("sw", sw)
                        for _ in range(4):
                            y = model(x=x, sx=sx)
                            right(y)
                            first = y.clone() if first is None else first
                            assert torch.equal(y, first), (func, strategy, graph)
                        if graph:
                            continue
                        g = torch.cuda.CUDAGraph()
                        with torch.cuda.graph(g):
                            z = model(x=x, sx=sx) + 0
                        for _ in range(3):
                            z.zero_()
                            g.replay()
                            assert torch.equal(z, first), (func, strategy)
                        model.synchronize()


def quantized(hocket, dist, rank, size):
    """hocket.export quantizes a module's weights on the GPU. Its results are those of the module on quantized operands."""
    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512, bias=False)

        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    torch.manual_seed(3)
    module = Mlp().to("cuda", torch.bfloat16).eval()
    x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)

    def round8(t, block, weight):
        high, wide = (128 if block and weight else 1), (128 if block else t.shape[1])
        v = t.float().view(t.shape[0] // high, high, t.shape[1] // wide, wide)
        s = v.abs().amax((1, 3), keepdim=True) / 448
        return ((v / s).to(torch.float8_e4m3fn).float() * s).view(t.shape).double()

    for form in "fp8-row", "fp8-block":
        block = form == "fp8-block"
        product = lambda a, b: (round8(a, block, False) @ round8(b, block, True).t()).bfloat16()
        h = torch.nn.functional.gelu(product(x, module.up.weight) + module.up.bias)
        want = x + product(h, module.down.weight)
        plan = {"up": "colwise", "down": "rowwise"}
        with hocket.export(module, (x,), plan=plan, quantize=form) as m:
            assert "up: f8e4m3" in m.text, m.text
            got = m(x)
        # A value of h that is rounded otherwise moves one element of 8 bits by a step.
        error, exact = (got - want).double().abs().mean(), (module(x) - want).double().abs().mean()
        assert error < exact / 4, (form, error, exact)


def lends(hocket, dist, rank, size):
    """Lent results: in one place, right behind each call and replay, and while another stream's model runs."""
    text = PAIRS.format(size=size)
    h, w = signs((512, 1024 // size), 1, 40 + rank), signs((256, 1024 // size), 64, 20 + rank)
    ref = h.float() @ w.t().float()
    dist.all_reduce(ref)
    for strategy in ("sequential", "exchange", "chunked"):
        m = hocket.load(text, func="row", strategy=strategy, lend=True)
        other = hocket.load(text, func="row", strategy=strategy)
        y, last = m(h, w), 1
        assert torch.equal(y.float(), ref)
        for scale in (2, -1, 0.5):
            torch.cuda._sleep(20_000_000 * rank)  # a rank is late to read
            before = y.clone()
            z = m(h * scale, w)
            assert z.data_ptr() == y.data_ptr() and torch.equal(z.float(), ref * scale)
            assert torch.equal(before.float(), ref * last)
            last = scale
            assert torch.equal(other(h, w).float(), ref) and torch.equal(z.float(), ref * scale)
        try:
            m(h, z.view(-1)[:w.numel()].view(w.shape))
            raise AssertionError("a lent result is an argument")
        except hocket.InputError as e:
            assert "pass a copy" in str(e), e
        st, g = h.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            z = m(st, w)
            twice = z * 2
        for scale in (1, -1, 0.5):
            st.copy_(h * scale)
            g.replay()
            assert torch.equal(z.float(), ref * scale) and torch.equal(twice, z * 2)
        m.synchronize()
        g.reset()
        m.close()
        assert torch.equal(z.float(), ref * 0.5)  # there as long as z is
        del y, z
        other.close()
        assert not m._world.closing


def disagree(hocket, dist, rank, size):
    try:
        hocket.all_reduce(ints((64 + 64 * rank,), torch.bfloat16, 0))
    except hocket.Error as e:
        print(f"{type(e).__name__}: {e}", flush=True)


def killed(hocket, dist, rank, size):
    x = ints((4096,), torch.bfloat16, rank)
    hocket.all_reduce(x)
    hocket.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.time()
    try:
        while time.time() < began + 60:
            hocket.all_reduce(x)
            hocket.synchronize()
    except hocket.Error as e:
        print(f"{type(e).__name__}: {e}, after {time.time() - began:.1f} s", flush=True)


def memory_interrupted(hocket):
    """Arrays in the host's memory, and a machine of GPUs."""
    import memory
    count = int(os.environ.get("HOCKET_TEST_INTERRUPTS", "1000"))
    print(memory.interrupted(hocket, count, min(GPUS, 2)), "of", count, "calls were interrupted")


def memory_bound(hocket):
    """Weights on a GPU are bound on another stream than that of the calls, and their memory is used for others there."""
    import memory
    streams = {}

    def array(shape, value):
        here = threading.current_thread()
        if here not in streams:
            streams[here] = torch.cuda.Stream()
            torch.cuda.set_stream(streams[here])
        t = torch.full(shape, value, device="cuda")
        torch.cuda.current_stream().synchronize()
        return t

    print(*memory.bound(hocket, int(os.environ.get("HOCKET_TEST_BINDS", "1000")), array, finish=torch.cuda.synchronize))


def memory_captured(hocket):
    """A captured run has its model and what was bound, whatever comes of them."""
    import gc
    import memory
    m = hocket.load(memory.PROGRAM.format(ranks=1), dims={"T": 16})
    m.bind("w", torch.full((64, 64), 2.0, device="cuda"))
    x = torch.ones(16, 64, device="cuda")
    m(x)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = m(x)
    m.bind("w", torch.full((64, 64), 3.0, device="cuda"))
    others = [torch.full((64, 64), float("nan"), device="cuda") for _ in range(64)]
    assert bool((m(x) == 3 * 64).all())
    del m
    gc.collect()
    hocket.load(memory.PROGRAM.format(ranks=1)).close()
    others += [torch.full((64, 64), float("nan"), device="cuda") for _ in range(64)]
    for scale in (1, 2):
        x.fill_(scale)
        g.replay()
        assert bool((y == scale * 2 * 64).all()), y
    g.reset()


def alone(what):
    import hocket
    hocket.init("cuda")
    globals()[what](hocket)
    hocket.shutdown()
    print(what, "is right")


def member(what):
    import torch.distributed as dist
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    import hocket
    hocket.init("cuda", timeout=60, stall_timeout=20)
    globals()[what](hocket, dist, rank, size)
    if what in ("disagree", "killed"):
        os._exit(0)
    hocket.synchronize()
    sys.stdout.write(what + " is right\n"), sys.stdout.flush()  # in one piece
    hocket.shutdown()
    os._exit(0)  # torch's NCCL waits for graphs that are there still


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member(sys.argv[2])
    elif sys.argv[1:2] == ["alone"]:
        alone(sys.argv[2])
    else:
        unittest.main()
