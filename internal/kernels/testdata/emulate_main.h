typedef void (*Run)(const u64*);
struct Entry { Run run; bool meets; int threads; };
extern Entry entries[];

static Run currentRun;
static const u64* currentArgs;

// A thread executes one block after another; its stack is reused.
static void thread() {
  for (;;) {
    currentRun(currentArgs);
    ended[current] = true;
    __syncthreads();
  }
}

static void start(int t) {
  static ucontext_t context, back;
  getcontext(&context);
  context.uc_stack.ss_sp = malloc(1 << 16);
  context.uc_stack.ss_size = 1 << 16;
  makecontext(&context, thread, 0);
  swapcontext(&back, &context);
}

static void resume(int t) {
  static bool started[mostThreads];
  current = t, threadIdx.x = t;
  if (_setjmp(home)) return;
  if (started[t]) _longjmp(places[t], 1);
  started[t] = true;
  start(t);
}

static void block(Entry e, const u64* args, unsigned b) {
  blockIdx.x = b;
  const int n = e.threads;
  if (!e.meets) {
    for (int t = 0; t < n; t++) threadIdx.x = t, e.run(args);
    return;
  }
  currentRun = e.run, currentArgs = args;
  for (int t = 0; t < n; t++) ended[t] = false;
  for (bool some = true; some; emulatedTurn++) {
    some = false;
    for (int k = 0; k < n; k++) {
      int t = b % 2 ? n - 1 - k : k;
      if (ended[t]) continue;
      some = true;
      resume(t);
    }
  }
}

static u64 word() {
  u64 v;
  if (fread(&v, 8, 1, stdin) != 1) exit(3);
  return v;
}

// Input: address and size of the memory, its contents, the number of launches, and for each launch the entry, the
// blocks, the number of argument words and the words. Output: the memory.
int main() {
  u64 base = word(), bytes = word();
  char* mem = (char*)mmap((void*)base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (mem != (char*)base || fread(mem, 1, bytes, stdin) != bytes) return 4;
  for (u64 n = word(); n > 0; n--) {
    Entry e = entries[word()];
    gridDim.x = (unsigned)word();
    alignas(16) static u64 args[512];
    u64 count = word();
    for (u64 i = 0; i < count; i++) args[i] = word();
    for (unsigned b = 0; b < gridDim.x; b++) block(e, args, b);
  }
  return fwrite(mem, 1, bytes, stdout) == bytes ? 0 : 5;
}
