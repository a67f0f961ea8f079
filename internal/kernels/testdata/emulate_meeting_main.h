typedef void (*Run)(const u64*);
struct Entry { Run run; bool meets; };
extern Entry entries[];

// Meeting is the state of a barrier of the threads of a block or of a warp.
struct Meeting { unsigned live; int all, result; std::vector<unsigned> here; std::vector<u64> room; };

struct Launch { unsigned blocks, threads; Run run; std::vector<u64> args; };

// Stream runs launches one after another.
struct Stream {
  std::vector<Launch> launches;
  std::vector<Meeting> meetings;
  size_t next, first, live;  // next: index of the next launch; first: its first thread; live: number of its threads that have not ended
  unsigned late;             // a block that is far slower than the others, if the seed is odd
};

struct Thread {
  jmp_buf place;
  const Launch* launch;
  unsigned block, thread;
  Meeting *ofBlock, *ofWarp;
  Stream* stream;
  bool started, waits, ended;
};

static std::vector<Thread> threads;
static std::vector<unsigned> ready;  // threads that may continue
static unsigned current;
static jmp_buf home;
static unsigned long long seed;

static bool skewed;
static unsigned draw(unsigned n) {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(seed >> 33) % n;
}

static void emulatedYield() {
  if (!_setjmp(threads[current].place)) _longjmp(home, 1);
}

static int meet(Meeting* m, int x) {
  m->all = (m->here.empty() || m->all) && x;
  if (m->here.size() + 1 == m->live) {
    m->result = m->all;
    for (unsigned t : m->here) threads[t].waits = false, ready.push_back(t);
    m->here.clear();
    return m->result;
  }
  m->here.push_back(current);
  threads[current].waits = true;
  emulatedYield();
  return m->result;
}
static void __syncthreads() { meet(threads[current].ofBlock, 1); }
static int __syncthreads_and(int x) { return meet(threads[current].ofBlock, x != 0); }
static void __syncwarp() { meet(threads[current].ofWarp, 1); }
template <class A> static A shuffled(A v, unsigned from) {
  Meeting* m = threads[current].ofWarp;
  m->room.resize(32);
  memcpy(&m->room[threadIdx.x % 32], &v, sizeof v);
  meet(m, 1);
  if (from < 32) memcpy(&v, &m->room[from], sizeof v);
  meet(m, 1);
  return v;
}
template <class A> static A __shfl_sync(unsigned, A v, int from) { return shuffled(v, from); }
template <class A> static A __shfl_down_sync(unsigned, A v, unsigned by) { return shuffled(v, threadIdx.x % 32 + by); }
static int __all_sync(unsigned, int x) { return meet(threads[current].ofWarp, x); }

// emulatedRoom returns the shared memory of the block, which is initially filled with a conspicuous pattern.
static void* emulatedRoom() {
  Meeting* m = threads[current].ofBlock;
  if (m->room.empty()) m->room.assign(32 << 10, 0x7fff7fff7fff7fff);
  return m->room.data();
}

// Joined is multicast memory: one address for the memory of several members.
struct Joined { u64 at, bytes; std::vector<u64> parts; };
static std::vector<Joined> joined;

// emulatedPart returns the address of a member's part of multicast memory; 0 if there is none.
static u64 emulatedPart(u64 at, int member) {
  for (const Joined& j : joined)
    if (at >= j.at && at < j.at + j.bytes) return (size_t)member < j.parts.size() ? j.parts[member] + (at - j.at) : 0;
  exit(6);
}

static void body() {
  Thread& t = threads[current];
  alignas(16) u64 args[512];
  memcpy(args, t.launch->args.data(), t.launch->args.size() * 8);
  t.launch->run(args);
  t.ended = true;
  emulatedYield();
}

static char* stacks;
enum { stackBytes = 1 << 16 };

// start creates the threads of the stream's next launch.
static void start(Stream& s) {
  if (s.next == s.launches.size()) return;
  const Launch& l = s.launches[s.next++];
  size_t at = s.first, used = 0;
  s.live = l.blocks * l.threads;
  s.late = skewed ? draw(l.blocks) : l.blocks;
  s.meetings.assign(2 * s.live, Meeting());
  for (unsigned b = 0; b < l.blocks; b++) {
    Meeting* ofBlock = &s.meetings[used++];
    ofBlock->live = l.threads;
    for (unsigned t = 0; t < l.threads; t++, at++) {
      if (t % 32 == 0) s.meetings[used++].live = l.threads - t < 32 ? l.threads - t : 32;
      Thread& x = threads[at];
      x.launch = &l, x.block = b, x.thread = t, x.ofBlock = ofBlock, x.ofWarp = &s.meetings[used - 1], x.stream = &s;
      x.started = x.waits = x.ended = false;
      ready.push_back(at);
    }
  }
}

// resume runs the current thread until it waits, yields or ends.
static void resume() {
  Thread& x = threads[current];
  if (_setjmp(home)) return;
  if (x.started) _longjmp(x.place, 1);
  x.started = true;
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + current * (size_t)stackBytes;
  context.uc_stack.ss_size = stackBytes;
  makecontext(&context, body, 0);
  setcontext(&context);
}

static void runAll(std::vector<Stream>& streams) {
  size_t n = 0;
  for (Stream& s : streams) {
    s.first = n;
    size_t most = 0;
    for (const Launch& l : s.launches) most = l.blocks * l.threads > most ? l.blocks * l.threads : most;
    n += most;
  }
  stacks = (char*)mmap(0, n * stackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  threads.resize(n);
  for (Stream& s : streams) start(s);
  while (!ready.empty()) {
    const unsigned k = draw(ready.size());
    current = ready[k];
    Thread& x = threads[current];
    if (x.block == x.stream->late && draw(16) != 0) continue;
    threadIdx.x = x.thread, blockIdx.x = x.block, blockDim.x = x.launch->threads, gridDim.x = x.launch->blocks;
    resume();
    if (!x.waits && !x.ended) continue;
    ready[k] = ready.back(), ready.pop_back();
    if (x.ended && --x.stream->live == 0) start(*x.stream);
  }
  for (const Stream& s : streams)
    if (s.live != 0) exit(7);  // threads wait for a thread that has ended
}

static u64 word() {
  u64 v;
  if (fread(&v, 8, 1, stdin) != 1) exit(3);
  return v;
}

// Input: address and size of the memory, its contents; the number of joined memories, and for each its address, its
// size, the number of its parts and their addresses; a seed; the number of streams, and for each the number of
// launches, and for each launch the entry, blocks, threads, number of argument words and the words. Output: the memory.
int main() {
  u64 base = word(), bytes = word();
  char* mem = (char*)mmap((void*)base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (mem != (char*)base || fread(mem, 1, bytes, stdin) != bytes) return 4;
  joined.resize(word());
  for (Joined& j : joined) {
    j.at = word(), j.bytes = word();
    j.parts.resize(word());
    for (u64& v : j.parts) v = word();
  }
  seed = word();
  skewed = seed % 2 == 1;
  std::vector<Stream> streams(word());
  for (Stream& s : streams) {
    s.next = 0;
    s.launches.resize(word());
    for (Launch& l : s.launches) {
      l.run = entries[word()].run;
      l.blocks = (unsigned)word(), l.threads = (unsigned)word();
      l.args.resize(word());
      for (u64& v : l.args) v = word();
    }
  }
  runAll(streams);
  return fwrite(mem, 1, bytes, stdout) == bytes ? 0 : 5;
}
