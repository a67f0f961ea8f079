"""Tests of hocket.fsdp: torch's FSDP2 where torch has it (2.9 or newer), on GPUs or the CPU machine; with an older torch a
small imitation that calls collectives as FSDP2 does. HOCKET_TEST_MACHINE=cpu tests on the CPU machine.

Run alone: python3 python/tests/test_fsdp.py.
"""

import abc
import copy
import os
import pathlib
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import hocket  # noqa: E402
import processes  # noqa: E402

try:
    import torch
    import torch.distributed as dist
    GPUS = torch.cuda.device_count()
except ImportError:
    torch, GPUS = None, 0
try:
    from torch.distributed.fsdp import FSDPModule
    REAL = hasattr(FSDPModule, "set_custom_all_gather")
except (ImportError, ValueError):  # as in hocket.fsdp
    REAL = False

MACHINE = os.environ.get("HOCKET_TEST_MACHINE") or ("cuda" if GPUS > 1 else "cpu")


def joined(test, n, what):
    processes.right(test, __file__, n, what, MASTER_ADDR="127.0.0.1", MASTER_PORT=processes.port(), OMP_NUM_THREADS="1",
                    NCCL_NVLS_ENABLE="0", HOCKET_STALL_TIMEOUT="60s")


class Memory(unittest.TestCase):
    def test_same_blocks(self):
        """Two ranks take the same blocks, although the addresses of one ascend and those of the other descend."""
        from hocket._cuda import _Free
        taken = []
        for addresses in range(1, 9), range(8, 0, -1):
            number = {a: i for i, a in enumerate(addresses)}
            free, rest = _Free(), iter(addresses)
            a, b, c = (free.take(n, lambda n: next(rest)) for n in (100, 100, 200))
            free.blocks += [c, b, a]
            again = [free.take(n, lambda n: next(rest)) for n in (80, 90, 150, 150)]
            taken.append([number[address] for _, _, address in again])
        self.assertEqual(taken, [[0, 1, 2, 3]] * 2)


@unittest.skipIf(torch is None, "torch is not installed")
class Imitation(unittest.TestCase):
    @unittest.skipIf(REAL, "torch has FSDP2")
    def test_imitation(self):
        for n in (1, 2, 3):
            joined(self, n, "imitation")

    @unittest.skipIf(REAL, "torch has FSDP2")
    def test_old(self):
        import hocket.fsdp
        with self.assertRaisesRegex(hocket.UnsupportedError, "this is torch 1.13.*, whose FSDP2 has no hooks.*2.9 or newer"):
            hocket.fsdp.use(torch.nn.Linear(2, 2))


@unittest.skipIf(not REAL, "torch has no FSDP2 with hooks for communication")
class Real(unittest.TestCase):
    def test_training(self):
        """Steps of a model whose ranks have different rows, compared with the whole model and with torch's communication."""
        for n in (2,) if MACHINE == "cuda" else (2, 3):
            joined(self, n, "training")

    @unittest.skipIf(MACHINE == "cuda" and GPUS < 4, "four GPUs are wanted")
    def test_two_dimensions(self):
        joined(self, 4, "two_dimensions")

    def test_refused(self):
        joined(self, 2, "refused")


def begin(backend=None):
    rank, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_WORLD_SIZE"])
    if MACHINE == "cuda":
        torch.cuda.set_device(rank)
    hocket.init(MACHINE)
    dist.init_process_group(backend or ("nccl" if MACHINE == "cuda" else "gloo"), rank=rank, world_size=size)
    return rank, size, torch.device(MACHINE, rank) if MACHINE == "cuda" else torch.device("cpu")


def end():
    hocket.synchronize() if MACHINE == "cuda" else None
    dist.barrier()
    dist.destroy_process_group()


# The sizes do not divide by the number of ranks.
def layers(width=13, hidden=29, depth=3):
    torch.manual_seed(3)
    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width))
                                 for _ in range(depth)])


def rows(step, rank, width=13):
    return torch.randn(5, width, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model, x):
    return (model(x).float() ** 2).mean()


def reference(size, steps, factor):
    """Losses and weights of the whole model, trained on all ranks' rows; gradients are the sum over the ranks / factor."""
    model = layers().double()
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        each = [loss_of(model, rows(step, r).double()) for r in range(size)]
        (sum(each) / factor).backward()
        optimizer.step()
        losses.append([l.item() for l in each])
    return losses, [p.detach() for p in model.parameters()]


def trained(device, rank, steps, shard, ours, change=lambda model: None):
    """Losses of this rank and the weights after training by FSDP, with hocket's communication or torch's."""
    from torch.distributed.fsdp import fully_shard
    import hocket.fsdp
    model = layers().to(device)
    for layer in model:
        fully_shard(layer, **shard)
    fully_shard(model, **shard)
    if ours:
        assert hocket.fsdp.use(model) is model
    change(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, rows(step, rank).to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.full_tensor().detach().cpu() for p in model.parameters()]


def close(got, want, tolerance, what):
    for a, b in zip(got, want):
        a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
        assert (a - b).abs().max() <= tolerance * (1 + b.abs().max()), (what, (a - b).abs().max())


def prefetches(model):
    """FSDP asks for asynchronous collectives, and for several layers in advance."""
    for each in (model, *model):
        each._set_unshard_async_op(True)
    for i, layer in enumerate(model):
        layer.set_modules_to_forward_prefetch(list(model)[i + 1 : i + 3])


def member_training():
    rank, size, device = begin()
    from torch.distributed.fsdp import MixedPrecisionPolicy
    steps = 6
    losses, weights = reference(size, steps, size)
    mixed = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    half = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}
    f16 = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)}
    for what, shard, change, tolerance in (
            ("plain", {}, lambda m: None, 1e-5),
            ("not resharded", {"reshard_after_forward": False}, lambda m: None, 1e-5),
            ("prefetched", {}, prefetches, 1e-5),
            ("sums", {}, lambda m: [each.set_force_sum_reduction_for_comms(True) for each in (m, *m)], 1e-5),
            ("bf16 and f32", mixed, lambda m: None, 2e-2),
            ("bf16", half, lambda m: None, 2e-2),
            ("f16", f16, lambda m: None, 2e-3)):
        got, own = trained(device, rank, steps, shard, True, change)
        close(got, [each[rank] for each in losses], tolerance, what)
        close(own, weights, tolerance, what)
        # Two addends have one sum. gloo has no average, and does not reduce bf16 in f32.
        if size == 2 and MACHINE == "cuda":
            assert trained(device, rank, steps, shard, False, change)[0] == got, what

    # A factor that is not the number of ranks: PREMUL_SUM, which gloo has not.
    losses, weights = reference(size, steps, 5)
    got, own = trained(device, rank, steps, {}, True, lambda m: [each.set_gradient_divide_factor(5.0) for each in (m, *m)])
    close(own, weights, 1e-5, "divided by 5")

    # unshard and reshard by the caller, twice, and gradients that several backward passes accumulate.
    from torch.distributed.fsdp import fully_shard
    import hocket.fsdp
    model = hocket.fsdp.use(fully_shard(layers().to(device)))
    whole = layers()
    for _ in range(2):
        handle = model.unshard(async_op=True)
        handle.wait()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(model.parameters(), whole.parameters()))
        model.reshard()
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        loss_of(model, rows(step, rank).to(device)).backward()
    sum(loss_of(whole, rows(step, r)) for step in range(3) for r in range(size)).backward()
    close([p.grad.full_tensor().cpu() for p in model.parameters()], [p.grad / size for p in whole.parameters()], 1e-5, "accumulated")
    end()


def member_two_dimensions():
    """Ranks 2 × 2: parameters are split over the second dimension, and torch adds gradients over the first."""
    rank, size, device = begin()
    mesh = torch.distributed.device_mesh.init_device_mesh(device.type, (2, 2), mesh_dim_names=("replicate", "shard"))
    losses, weights = reference(size, 4, size)
    got, own = trained(device, rank, 4, {"mesh": mesh}, True)
    close(got, [each[rank] for each in losses], 1e-5, "two dimensions")
    close(own, weights, 1e-5, "two dimensions")
    end()


def member_refused():
    rank, size, device = begin()
    import hocket.fsdp
    refused(hocket.InputError, "Linear has no module of FSDP2: call", lambda: hocket.fsdp.use(torch.nn.Linear(2, 2)))
    reductions(device)
    end()


def refused(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
    else:
        raise AssertionError(f"not refused: {words}")


def reductions(device):
    """The reductions of a reduce-scatter, in one call of FSDP's each."""
    import hocket.fsdp
    _, Scatter = hocket.fsdp._kinds()
    rank, size, R = dist.get_rank(), dist.get_world_size(), dist.ReduceOp
    each = [torch.arange(2.0 * size) * (r + 1) for r in range(size)]
    total = sum(each)[2 * rank : 2 * rank + 2]
    made = dist._make_nccl_premul_sum if REAL else None  # older torch does not return the factor
    cases = [(R.SUM, total), (R.AVG, total / size), (R.MAX, each[-1][2 * rank : 2 * rank + 2])]
    cases += [(made(0.25), total / 4)] if made else []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for op, want in cases:
            out = torch.empty(2, dtype=dtype, device=device)
            scatter = Scatter()
            done = scatter(out, each[rank].to(device, dtype), group=dist.group.WORLD, op=op, async_op=dtype == torch.float64)
            assert (done is None) == (dtype != torch.float64)
            if done is not None:
                assert done.wait()
            close([out.cpu()], [want], {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-6), (op, dtype))
    t = torch.ones(size, device=device)
    refused(hocket.UnsupportedError, "gradients are reduced by", lambda: Scatter()(t[:1], t, dist.group.WORLD, R.PRODUCT))
    big = torch.full((size,), 60000.0, device=device, dtype=torch.float16)  # the sum of two overflows
    if made:
        out = torch.empty(1, dtype=torch.float16, device=device)
        Scatter()(out, big, dist.group.WORLD, made(1 / size))
        close([out.cpu()], [torch.tensor([60000.0])], 1e-3, "overflow")


class Layer:
    """A module of FSDP2 as torch 2.11 drives it: the order of allocations and calls, and a gather in place, are those of
    foreach_all_gather and foreach_reduce in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py."""

    def __init__(self, params, rank, size):
        self.rank, self.size = rank, size
        self.shapes = [p.shape for p in params]
        self.shards = [self.blocks(p)[rank].reshape(-1).clone() for p in params]

    def set_custom_all_gather(self, comm):
        assert isinstance(comm, api().AllGather)
        self.gather = comm

    def set_custom_reduce_scatter(self, comm):
        assert isinstance(comm, api().ReduceScatter)
        self.scatter = comm

    def blocks(self, p):
        """The ranks' blocks of rows of a parameter, filled up to equal lengths."""
        n = -(-p.shape[0] // self.size)
        whole = p.new_zeros(n * self.size, *p.shape[1:])
        whole[: p.shape[0]] = p
        return whole.chunk(self.size)

    @property
    def sizes(self):
        return [s.numel() for s in self.shards]

    def gathered(self, dtype, async_op):
        n = sum(self.sizes)
        out = self.gather.allocate((n * self.size,), dtype=dtype, device=torch.device("cpu"))
        own = out.narrow(0, n * self.rank, n)
        torch.cat([s.to(dtype) if dtype.is_floating_point else s.view(dtype) for s in self.shards], out=own)
        work = self.gather(output_tensor=out, input_tensor=own, group=dist.group.WORLD, async_op=async_op)
        if isinstance(work, dist.distributed_c10d.Work):
            work.wait()
        else:
            assert work is None and not async_op
        blocks = out.view(self.size, -1).split(self.sizes, 1)
        return [b.reshape(-1, *s[1:])[: s[0]] for b, s in zip(blocks, self.shapes)]

    def reduced(self, grads, dtype, op):
        cut = [self.blocks(g) for g in grads]
        n = sum(self.sizes)
        whole = self.scatter.allocate((n * self.size,), dtype=dtype, device=torch.device("cpu"))
        torch.cat([b[r].reshape(-1).to(dtype) for r in range(self.size) for b in cut], out=whole)
        out = self.scatter.allocate((n,), dtype=dtype, device=torch.device("cpu"))
        assert self.scatter(output_tensor=out, input_tensor=whole, group=dist.group.WORLD, op=op) is None
        return out.split(self.sizes)


def api():
    """The module of torch's with the classes to derive from."""
    return sys.modules["torch.distributed.fsdp._fully_shard._fsdp_api"]


def imitate():
    """Puts Layer in the place of torch's FSDPModule, with the bases of torch 2.11."""
    class Comm(abc.ABC):
        @abc.abstractmethod
        def allocate(self, size, *, dtype, device):
            ...

    class AllGather(Comm):
        @abc.abstractmethod
        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            ...

    class ReduceScatter(Comm):
        @abc.abstractmethod
        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            ...

    made = types.SimpleNamespace(AllGather=AllGather, ReduceScatter=ReduceScatter)
    base = "torch.distributed.fsdp"
    for name, contents in ((base, {"FSDPModule": Layer}), (base + "._fully_shard", {"_fsdp_api": made}),
                           (base + "._fully_shard._fsdp_api", vars(made))):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)


def member_imitation():
    imitate()
    rank, size, _ = begin()
    import hocket.fsdp
    whole = layers()
    params = [p.detach() for p in whole.parameters()]
    layer = Layer(params, rank, size)

    class Model:
        def modules(self):
            return [whole, layer]

    model = Model()
    assert hocket.fsdp.use(model) is model
    for async_op in (False, True, False):
        for dtype in (torch.float32, torch.bfloat16):
            assert all(torch.equal(g, p.to(dtype)) for g, p in zip(layer.gathered(dtype, async_op), params)), dtype
    wide, layer.shards = layer.shards, [s.view(torch.uint8) for s in layer.shards]
    layer.shapes = [(p.shape[0], *p.shape[1:-1], p.shape[-1] * 4) if p.ndim > 1 else (p.shape[0] * 4,) for p in params]
    got = layer.gathered(torch.uint8, False)
    assert all(torch.equal(g.contiguous().view(torch.float32), p) for g, p in zip(got, params))
    layer.shards, layer.shapes = wide, [p.shape for p in params]

    for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
        for r in range(size):
            loss_of(whole, rows(0, r)).backward()
        want = [p.grad / divisor for p in whole.parameters()]
        own = copy.deepcopy(whole)
        own.zero_grad()
        loss_of(own, rows(0, rank)).backward()
        got = layer.reduced([p.grad for p in own.parameters()], torch.float32, op)
        close(got, [layer.blocks(w)[rank].reshape(-1) for w in want], 1e-6, op)
        whole.zero_grad()
    if size > 1:
        reductions(torch.device("cpu"))
    end()


if __name__ == "__main__":
    processes.main(globals(), unittest)
