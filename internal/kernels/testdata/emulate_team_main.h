static u64 word() {
  u64 v;
  if (fread(&v, 8, 1, stdin) != 1) exit(3);
  return v;
}

static void body() {
  now->run(now->args);
  now->over = true;
  for (;;) giveWay();
}

static u64 seed = 1;
static u64 draw() {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return seed;
}

// Launches of a member run one after another; members do not wait for each other
// between them.
struct Launch { Run run; unsigned blocks, threads; std::vector<u64> args; };
struct Member {
  std::vector<Launch> launches;
  size_t next = 0;
  std::vector<Block> blocks;
  std::vector<Thread*> threads;
};

static std::vector<char*> stacks;

static void begin(Member& m) {
  Launch& l = m.launches[m.next++];
  for (Thread* t : m.threads) stacks.push_back((char*)t->context.uc_stack.ss_sp), delete t;
  m.threads.clear();
  m.blocks.assign(l.blocks, Block{0, l.blocks, l.threads, 0, 0, 1, 1});
  for (unsigned b = 0; b < l.blocks; b++)
    for (unsigned i = 0; i < l.threads; i++) {
      m.blocks[b].index = b;
      Thread* t = new Thread{{}, &m.blocks[b], i, false, l.run, l.args.data()};
      getcontext(&t->context);
      char* stack = stacks.empty() ? (char*)malloc(1 << 16) : stacks.back();
      if (!stacks.empty()) stacks.pop_back();
      t->context.uc_stack.ss_sp = stack, t->context.uc_stack.ss_size = 1 << 16;
      makecontext(&t->context, body, 0);
      m.threads.push_back(t);
    }
}

// turn gives the threads of a member some turns; false when all launches are over.
static bool turn(Member& m) {
  bool busy = false;
  for (Thread* t : m.threads)
    if (!t->over) {
      busy = true;
      if (draw() % 3 == 0) continue;
      now = t, threadIdx.x = t->index, blockIdx.x = t->block->index, blockDim.x = t->block->threads, gridDim.x = t->block->grid;
      swapcontext(&scheduler, &t->context);
    }
  if (busy) return true;
  if (m.next == m.launches.size()) return false;
  begin(m);
  return true;
}

// Input: address and bytes of memory, its contents, a seed, the number of
// members, and for each the number of launches, and for each the entry, blocks,
// threads, number of argument words, words. Output: memory.
int main() {
  u64 base = word(), bytes = word();
  char* mem = (char*)mmap((void*)base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (mem != (char*)base || fread(mem, 1, bytes, stdin) != bytes) return 4;
  seed = word();
  std::vector<Member> members(word());
  for (Member& m : members)
    for (u64 n = word(); n > 0; n--) {
      Launch l = {entries[word()]};
      l.blocks = (unsigned)word(), l.threads = (unsigned)word();
      for (u64 i = word(); i > 0; i--) l.args.push_back(word());
      m.launches.push_back(l);
    }
  for (bool busy = true; busy;) {
    busy = false;
    for (Member& m : members)
      if (draw() % 4) busy = turn(m) || busy;
      else busy = true;
  }
  return fwrite(mem, 1, bytes, stdout) == bytes ? 0 : 5;
}
