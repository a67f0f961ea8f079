// Attention that also stores attention_lse, the logarithm of the sum of the exponentials of a query's scores.

template <int B> struct FlashLSEArgs {
  AttentionArgs<B> a;
  u64 lse;            // address of f32
  i64 sn[2], bn[B];   // strides along tokens and heads, and of the batch dimensions
};

// FlashWithLSE is a block that processes all keys. Every query sees a key.
template <class T, int B, int DH> struct FlashWithLSE : FlashWhole<T, B, DH> {
  typedef FlashLSEArgs<B> Args;
  __device__ __forceinline__ FlashWithLSE(const Args& x) : FlashWhole<T, B, DH>(x.a) {}
  DEV const AttentionArgs<B>& attention(const Args& x) { return x.a; }

  // sums returns the address of the result of the first query of the batch entry.
  __device__ __forceinline__ f32* sums(const Args& x) const {
    f32* at = (f32*)x.lse;
    u32 t = this->number() / ((this->rows + 127) / 128) / ((u32)x.a.heads / (u32)x.a.share);
#pragma unroll
    for (int d = B - 1; d >= 0; d--) {
      const u32 i = d ? t % (u32)x.a.e[d] : t;
      t /= (u32)x.a.e[d];
      at += i * x.bn[d];
    }
    return at;
  }

  __device__ __forceinline__ void keep(const Args& x, const FlashRows<T, B, DH>& r) const {
    r.store(x.a, *this);
    f32* to = sums(x);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 row = this->row() + 8 * h;
      const QueryRow<B> is(x.a, this->kv, row);
      if (row < this->rows && threadIdx.x % 4 == 0) to[is.query * x.sn[0] + is.head * x.sn[1]] = r.shift[h] * 0.69314718055994531f + logOf(r.sum[h]);
    }
  }

  __device__ __forceinline__ void asTold(const Args& x, const FlashRows<T, B, DH>&) const {
    f32* to = sums(x);
    for (u32 row = this->first; row < this->first + 128 && row < this->rows; row++) {
      const QueryRow<B> is(x.a, this->kv, row);
      T* out = this->of.out + is.query * x.a.so[0] + is.head * x.a.so[1];
      attend<T, 1>(x.a, this->of, is.query, is.head, 0, x.a.tk, [&](i64 d, f32 o, f32 top, f32 sum, bool) {
        out[d * x.a.so[2]] = Num<T>::put(o / sum);
        if (d == 0) to[is.query * x.sn[0] + is.head * x.sn[1]] = top + logOf(sum);
      });
      __syncthreads();
    }
  }
};
