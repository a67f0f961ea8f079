// Counters in device memory that other processes raise.

struct RaiseArgs { u64 at, by; };

// raise adds to a word, after all earlier work of its stream.
DEV void raise(const RaiseArgs& a) {
  if (threadIdx.x == 0) raise64((u64*)a.at, a.by);
}

struct AwaitArgs { u64 at, least, abort, timeout, fault, tag, words; };

// await waits like join for a sum of words, but does not change them, because other launches may wait for the same words.
DEV void await(const AwaitArgs& a) {
  if (threadIdx.x != 0) return;
  const u64 began = nanoseconds();
  u64 now;
  for (u32 polls = 1; (i64)(now = acquireSum(a.at, a.words)) < (i64)a.least; polls++) {
    if (polls % 64) continue;
    const bool told = acquire64((const u64*)a.abort) != 0;
    if (!told && nanoseconds() - began <= a.timeout) continue;
    fault(a.fault, told ? faultAborted : faultTimeout, a.tag, a.least, now, nanoseconds() - began);
    if (!told) release64((u64*)a.abort, 1);
    return;
  }
}
