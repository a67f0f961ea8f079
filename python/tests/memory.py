"""Interrupts at random moments, and canaries around arrays, for test_memory.py and test_cuda.py."""

import gc
import random
import signal
import threading
import time
import weakref

import numpy

CANARY = 1234567.0
MARGIN = 64  # elements before and behind an array
PROGRAM = """dim T
mesh tp[{ranks}]
func f(%x: f32[T, 64], %w: f32[64/tp, 64]) -> f32[T, 64] {{
  %y = linear %x, %w
  return %y
}}
"""


class Interrupt(KeyboardInterrupt):
    pass


class Interrupts:
    """Raises an exception in the main thread, a number of times, wherever that is."""

    def __init__(self):
        self.left, self.started, self.result = 0, False, None

    def __enter__(self):
        self.was = signal.signal(signal.SIGALRM, self._come)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.was or signal.SIG_DFL)

    def _come(self, *_):
        if self.left:
            self.left -= 1
            if self.left:
                signal.setitimer(signal.ITIMER_REAL, self.every)
            raise Interrupt

    def during(self, call, times, after, every):
        """Calls, and raises times interrupts on the way or soon after. Returns the result; None if it was interrupted."""
        signal.setitimer(signal.ITIMER_REAL, 0)  # of the last call
        self.started, self.result, self.every = False, None, every
        self.left = times
        self._guarded(call, times, after)
        return self.result

    def _guarded(self, call, levels, after):
        """Calls. An interrupt that comes too late for one level is caught by the next."""
        try:
            if levels:
                self._guarded(call, levels - 1, after)
            if not self.started:
                self.started = True
                signal.setitimer(signal.ITIMER_REAL, after)
                self.result = call()
            while self.left:
                time.sleep(0.0001)
        except Interrupt:
            pass


class Canaries:
    """Arrays with margins that must not be written."""

    def __init__(self, draw):
        self.draw, self.free, self.made, self.refs = draw, [], [], []

    def array(self, shape, value=None):
        n = int(numpy.prod(shape))
        base = Base(n + 2 * MARGIN)
        a = base[MARGIN:MARGIN + n]
        if value is not None:
            a[:] = value
        self.made.append(base)
        self.refs.append(weakref.ref(base))
        return a.reshape(shape).view(numpy.ndarray)

    @property
    def alive(self):
        """The arrays that something holds."""
        self.refs = [r for r in self.refs if r() is not None]
        return self.refs

    def check(self):
        """Checks the margins of all arrays and drops them. Then allocates others in their place, and checks the last ones."""
        for base in self.made:
            assert (base[:MARGIN] == CANARY).all() and (base[-MARGIN:] == CANARY).all(), "memory around an array was written"
        sizes = [len(base) for base in self.made]
        self.made.clear()
        for old in self.free:
            assert (old == CANARY).all(), "memory that was freed was written"
        self.free = self.free[-8:] + [numpy.full(n, CANARY, "f4") for n in sizes]

    def stopped(self):
        """Checks that an interrupted call no longer writes."""
        before = [base.copy() for base in self.made]
        time.sleep(0.002)
        for base, was in zip(self.made, before):
            assert numpy.array_equal(base, was), "a call writes after its interrupt"


class Base(numpy.ndarray):
    """An array with canaries everywhere."""

    def __new__(cls, n):
        base = numpy.ndarray.__new__(cls, n, "f4")
        base[:] = CANARY
        return base


def interrupted(hocket, count, ranks, seed=1, rows=(1, 16, 700)):
    """Calls a model, with one or two interrupts each, and binds. Returns how many calls were interrupted."""
    draw = random.Random(seed)
    guarded, kept = Canaries(draw), hocket._tensors.empty

    def empty(like, dtype, shape):
        a = guarded.array(shape)
        return a, hocket._tensors.view(a)

    hocket._tensors.empty, early = empty, 0
    try:
        with hocket.load(PROGRAM.format(ranks=ranks)) as m, Interrupts() as interrupts:
            values, took = [1.0], {}
            m.bind("w", guarded.array((64, 64), 1.0))
            for r in rows:  # plans are loaded
                m(numpy.ones((r, 64), "f4"))
                began = time.time()
                m(numpy.ones((r, 64), "f4"))
                took[r] = time.time() - began
            for i in range(count):
                r, times = draw.choice(rows), draw.choice((1, 1, 2))
                after, every = draw.uniform(1e-6, took[r] * 1.2), draw.uniform(1e-6, took[r] * 0.5)
                v = float(draw.randrange(1, 100))
                if draw.randrange(8) == 0:
                    values.append(v)
                    if interrupts.during(lambda: m.bind("w", guarded.array((64, 64), v)) or True, times, after / 8, every):
                        values = [v]
                else:
                    x = guarded.array((r, 64), v)
                    y = interrupts.during(lambda: m(x), times, after, every)
                    early += y is None
                    if draw.randrange(8) == 0:
                        guarded.stopped()
                    assert (x == v).all(), "an argument was written"
                    if y is not None:
                        assert (y == y[0, 0]).all() and y[0, 0] in [64 * v * w for w in values], (y, v, values)
                    x = y = None
                guarded.check()
            v = values = interrupts.result = None
        gc.collect()
        assert not guarded.alive, f"{len(guarded.alive)} arrays are held for ever"
    finally:
        hocket._tensors.empty = kept
    return early


def bound(hocket, count, array, ranks=1, threads=2, finish=None):
    """Calls a model in threads while a parameter is bound to new arrays and the memory of the old ones is reused.
    Returns the numbers of calls and of binds."""
    calls, wrong, over = [0] * threads, [], threading.Event()
    values = [float(v) for v in range(1, 9)]
    with hocket.load(PROGRAM.format(ranks=ranks), dims={"T": 16}) as m:
        m.bind("w", array((64, 64), 1.0))

        def work(k):
            try:
                x = array((16, 64), 1.0)
                while not over.is_set():
                    y = m(x)
                    low, high = float(y.min()), float(y.max())
                    calls[k] += 1
                    if low != high or low / 64 not in values:
                        wrong.append((low, high))
            except BaseException as e:
                wrong.append(e)

        all_threads = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
        for t in all_threads:
            t.start()
        i, junk = 0, []
        while sum(calls) < count and len(wrong) < 20 and any(t.is_alive() for t in all_threads):
            i += 1
            m.bind("w", array((64, 64), values[i % len(values)]))
            junk = junk[-4:] + [array((64, 64), float("nan"))]
        over.set()
        for t in all_threads:
            t.join()
        if finish:
            finish()
    assert not wrong, f"{len(wrong)} of {sum(calls)} with {i} binds: {wrong[:5]}"
    return sum(calls), i
