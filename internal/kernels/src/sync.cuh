// Synchronisation between devices: words that peers raise, waits, and words that report faults.

DEV void raise64(u64* p, u64 by) {
#ifdef __CUDA_ARCH__
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(by) : "memory");
#else
  *p += by;
#endif
}

DEV u64 acquire64(const u64* p) {
#ifdef __CUDA_ARCH__
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
#else
  return *(const volatile u64*)p;
#endif
}

DEV void release64(u64* p, u64 v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  *(volatile u64*)p = v;
#endif
}

// acquireSum returns the sum of n words, 32 bytes apart. Each word is changed by one GPU only, which needs no atomic
// operation on the memory of the words.
DEV u64 acquireSum(u64 at, u64 n) {
  u64 sum = 0;
  for (u64 i = 0; i < n; i++) sum += acquire64((const u64*)(at + 32 * i));
  return sum;
}

DEV u64 nanoseconds() {
#ifdef __CUDA_ARCH__
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
#else
  return emulatedNanoseconds();
#endif
}

// A fault consists of six words in the memory of one device: kind, tag, three words that depend on the kind, and the
// bell, which is the address of a word of host memory, or 0 for none. The first thread that claims kind writes the
// other words, then sets the last bit of kind and the word of the bell. The words are valid only if that bit is set.
// After every run the host reads only the word of the bell.
struct Fault { u64 kind, tag, word[3], bell; };
enum { faultReady = 1, faultTimeout = 2, faultAborted = 4, faultRange = 6, faultCounts = 8, faultPosition = 10, faultTwice = 12, faultLength = 14, faultWritten = 16, faultOutside = 18, faultIndex = 20, faultGroups = 22, faultAdded = 24 };

DEV void fault(u64 at, u64 kind, u64 tag, u64 a, u64 b, u64 c) {
  Fault* f = (Fault*)at;
  if (!f || atomicCAS(&f->kind, (u64)0, kind) != 0) return;
  f->tag = tag;
  f->word[0] = a;
  f->word[1] = b;
  f->word[2] = c;
  release64(&f->kind, kind | faultReady);
  if (f->bell) release64((u64*)f->bell, 1);
}

struct JoinArgs {
  u64 list;                      // address of a list: the number of flags to raise, at most 31, and their addresses; 0: none
  u64 flag, count;               // waits until flag is at least count, and then subtracts count; 0: does not wait
  u64 abort;                     // address of a word; if the word is not 0, the wait ends
  u64 timeout;                   // ends the wait after this time in nanoseconds; 0: never
  u64 fault, tag;
  u64 words;                     // 0: flag is one word; n: it is the sum of n words, and the wait does not subtract
};

// A flag counts raises that no wait has consumed. Each wait consumes the raises that belong to its launch, so replays
// of a graph need no sequence numbers. The waiting thread sees all writes that precede the raises. A wait that times
// out sets the abort word, so that other threads do not wait for signals that will not be sent.
DEV void join(const JoinArgs& a) {
  const u64* list = (const u64*)a.list;
  if (list && threadIdx.x < list[0]) raise64((u64*)list[1 + threadIdx.x], 1);
  if (!a.count || threadIdx.x != 0) return;
  const u64 began = nanoseconds(), words = a.words ? a.words : 1;
  u64 now;
  for (u32 polls = 1; (i64)(now = acquireSum(a.flag, words)) < (i64)a.count; polls++) {
    if (polls % 64) continue; // the abort word is in host memory, which is slow to read
    if (a.abort && acquire64((const u64*)a.abort)) {
      fault(a.fault, faultAborted, a.tag, a.count, now, nanoseconds() - began);
      return;
    }
    if (a.timeout && nanoseconds() - began > a.timeout) {
      fault(a.fault, faultTimeout, a.tag, a.count, now, nanoseconds() - began);
      if (a.abort) release64((u64*)a.abort, 1);
      return;
    }
  }
  if (!a.words) raise64((u64*)a.flag, 0 - a.count);
}

struct PoisonArgs { u64 at, bytes, pattern; };

// poison repeats the 8 bytes of pattern, aligned to addresses divisible by 8.
DEV void poison(const PoisonArgs& a) {
  const u64 end = a.at + a.bytes, lo = (a.at + 7) / 8 * 8, hi = end / 8 * 8;
  const u64 id = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
  for (u64 p = lo + id * 8; p < hi; p += step * 8) *(u64*)p = a.pattern;
  if (id != 0) return;
  for (u64 p = a.at; p < end && p < lo; p++) *(u8*)p = (u8)(a.pattern >> p % 8 * 8);
  for (u64 p = hi > lo ? hi : lo; p < end; p++) *(u8*)p = (u8)(a.pattern >> p % 8 * 8);
}
