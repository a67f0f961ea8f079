// Executes a schedule that another tool generated: each block executes its own list of steps. The elements of an
// operand are assigned to the threads of a block cyclically, beginning with its first element. Threads are synchronised
// between steps only by explicit steps, as schedules assume.

enum { scheduleAreas = 5, packetArea = 3 };

struct ScheduleArgs {
  Team team;
  u64 at[scheduleAreas][teamMost];  // by area and member: address of input, output, scratch, packets and messages
  u64 packetHalf;                   // size in bytes of a half of the packets
  // of each member: two halves of flags for each block of each member, followed by counters
  u64 words[teamMost], wordHalf;
  i64 cell;                         // size in bytes of a cell
  i64 closes;                       // if not 0, the members also synchronize at the end
};

// Steps are encoded as words. The first word has four bytes: the kind; the thread or, for a move, whether it is packed;
// the number of sources; the number of destinations. Words that depend on the kind follow. An operand has two words:
// the first has a byte each for its area, its member and whether it is raw; the second is its cell.
enum { stepEnd, stepSync, stepRaise, stepAwait, stepMove };

DEV u64 operandAt(const ScheduleArgs& a, const u32* w, u32 e) {
  const u32 area = w[0] & 0xff, member = w[0] >> 8 & 0xff;
  const u64 at = a.at[area][member], cell = (u64)w[1] * a.cell;
  return area == packetArea ? at + (e & 1) * a.packetHalf + 2 * cell : at + cell;
}

template <class T, class L> struct Terms {
  enum { V = sizeof(L) / sizeof(T) };
  typename Num<T>::Acc x[V];
  __device__ void set(L l) {
    const Pack<T, V> p = bitsAs<Pack<T, V>>(l);
#pragma unroll
    for (int v = 0; v < V; v++) x[v] = Num<T>::get(p.v[v]);
  }
  __device__ void more(L l) {
    const Pack<T, V> p = bitsAs<Pack<T, V>>(l);
#pragma unroll
    for (int v = 0; v < V; v++) x[v] = add(x[v], Num<T>::get(p.v[v]));
  }
  __device__ L sum() const {
    Pack<T, V> p;
#pragma unroll
    for (int v = 0; v < V; v++) p.v[v] = Num<T>::put(x[v]);
    return bitsAs<L>(p);
  }
};

// movePlain adds lines; each thread has U lines in flight.
template <class T, int U> DEV void movePlain(const ScheduleArgs& a, const u32* w, u32 from, u32 to, i64 lines, u32 e) {
  const i64 step = blockDim.x;
  const u32* const into = w + 2 * from;
  for (i64 i = threadIdx.x; i < lines; i += U * step) {
    Line l[U];
    const u64 first = operandAt(a, w, e);
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < lines) l[u] = loadLine(first + (i + u * step) * 16);
    if (from > 1) {
      Terms<T, Line> t[U];
#pragma unroll
      for (int u = 0; u < U; u++)
        if (i + u * step < lines) t[u].set(l[u]);
      for (u32 k = 1; k < from; k++) {
        const u64 next = operandAt(a, w + 2 * k, e);
#pragma unroll
        for (int u = 0; u < U; u++)
          if (i + u * step < lines) l[u] = loadLine(next + (i + u * step) * 16);
#pragma unroll
        for (int u = 0; u < U; u++)
          if (i + u * step < lines) t[u].more(l[u]);
      }
#pragma unroll
      for (int u = 0; u < U; u++)
        if (i + u * step < lines) l[u] = t[u].sum();
    }
    for (u32 k = 0; k < to; k++) {
      const u64 dst = operandAt(a, into + 2 * k, e);
#pragma unroll
      for (int u = 0; u < U; u++)
        if (i + u * step < lines) storeLine(dst + (i + u * step) * 16, l[u]);
    }
  }
}

// movePacked is movePlain for operands of which some are packets: lines in which half of the words are data and half
// are the epoch. A raw packet is copied with its epochs unchanged.
template <class T, int U> DEV void movePacked(Patience& p, const ScheduleArgs& a, const u32* w, u32 from, u32 to, i64 halves, u32 e) {
  const i64 step = blockDim.x;
  const u32* const into = w + 2 * from;
  for (i64 i = threadIdx.x; i < halves; i += U * step) {
    Terms<T, Half> t[U];
    Half h[U];
    u32 flag[U][2];
#pragma unroll
    for (int u = 0; u < U; u++) flag[u][0] = flag[u][1] = e;
    for (u32 k = 0; k < from; k++) {
      const u32 word = w[2 * k];
      const u64 at = operandAt(a, w + 2 * k, e) + i * ((word & 0xff) == packetArea ? 16 : 8);
      if ((word & 0xff) == packetArea) {
        Line l[U];
#pragma unroll
        for (int u = 0; u < U; u++)
          if (i + u * step < halves) l[u] = look(at + u * step * 16);
#pragma unroll
        for (int u = 0; u < U; u++) {
          if (i + u * step >= halves) continue;
          if (word >> 16) flag[u][0] = l[u].y, flag[u][1] = l[u].w;
          while (!(word >> 16) && (l[u].y != e || l[u].w != e)) {
            if (waited(p, a.team, word >> 8 & 0xff, e)) break;
            l[u] = look(at + u * step * 16);
          }
          h[u] = Half{l[u].x, l[u].z};
        }
      } else {
#pragma unroll
        for (int u = 0; u < U; u++)
          if (i + u * step < halves) loadWhole(at + u * step * 8, h[u]);
      }
#pragma unroll
      for (int u = 0; u < U; u++) {
        if (i + u * step >= halves) continue;
        if (k == 0) t[u].set(h[u]);
        else t[u].more(h[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < U; u++)
      if (from > 1 && i + u * step < halves) h[u] = t[u].sum();
    for (u32 k = 0; k < to; k++) {
      const bool packets = (into[2 * k] & 0xff) == packetArea;
      const u64 at = operandAt(a, into + 2 * k, e) + i * (packets ? 16 : 8);
#pragma unroll
      for (int u = 0; u < U; u++) {
        if (i + u * step >= halves) continue;
        if (packets) push(at + u * step * 16, Line{h[u].lo, flag[u][0], h[u].hi, flag[u][1]});
        else storeWhole(at + u * step * 8, h[u]);
      }
    }
  }
}

// meetSchedule synchronizes the blocks with the same number of all members.
DEV void meetSchedule(Patience& p, const ScheduleArgs& a, u32 which, u32 e) {
  const u32 members = (u32)a.team.members, r = (u32)a.team.rank, q = threadIdx.x;
  __syncthreads();
  if (q < members && q != r) {
    const u64 at = (e & 1) * a.wordHalf + (which * teamMost * blocksMost + blockIdx.x) * 4;
    release32(a.words[q] + at + r * blocksMost * 4, e);
    waitFlag(p, a.team, a.words[r] + at + q * blocksMost * 4, q, e);
  }
  __syncthreads();
}

// counterAt returns the address of a word of 8 bytes that contains the epoch and the counter's value in this epoch.
DEV u64 counterAt(const ScheduleArgs& a, u32 member, u32 counter, u32 e) {
  return a.words[member] + (e & 1) * a.wordHalf + 2 * teamMost * blocksMost * 4 + counter * 8;
}

DEV void awaitCounter(Patience& p, const ScheduleArgs& a, u64 at, u32 peer, u32 value, u32 e) {
  for (;;) {
    const u64 now = acquire64((const u64*)at);
    if ((u32)(now >> 32) == e && (u32)now >= value) return;
    if (waited(p, a.team, peer, e)) return;
  }
}

// runSchedule executes the steps of the member's block. The list begins with the index of the first step of each block,
// and the steps follow.
template <class T, class S> DEV void runSchedule(const ScheduleArgs& a) {
  const u32 e = begin(a.team, lastEpoch(a.team));
  Patience p = {0, 0};
  meetSchedule(p, a, 0, e);
  const u32* const list = S::list();
  const u32* w = list + list[a.team.rank * gridDim.x + blockIdx.x];
  for (;;) {
    const u32 head = w[0], kind = head & 0xff;
    if (kind == stepEnd) break;
    w++;
    if (kind == stepSync) {
      __syncthreads();
    } else if (kind == stepMove) {
      const u32 from = head >> 16 & 0xff, to = head >> 24, packed = head >> 8 & 1;
      const i64 bytes = (i64)w[0] * a.cell;
      if (packed) movePacked<T, 4>(p, a, w + 1, from, to, bytes / 8, e);
      else movePlain<T, 4>(a, w + 1, from, to, bytes / 16, e);
      w += 1 + 2 * (from + to);
    } else {
      if (threadIdx.x == (head >> 8 & 0xff)) {
        if (kind == stepRaise) release64((u64*)counterAt(a, w[0], w[1], e), (u64)e << 32 | w[2]);
        else awaitCounter(p, a, counterAt(a, (u32)a.team.rank, w[1], e), w[0], w[2], e);
      }
      w += 3;
    }
  }
  if (a.closes) meetSchedule(p, a, 1, e);
  end(a.team, e);
}
