// Times GEMMs of few rows in CUDA graphs over rotating weights: a plain read kernel, cuBLASLt, and the variants of kernels.cu.
// See README.md. Run: ./bench kernels.cubin out.tsv [designs]
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>
#define CK(x) do { auto e_ = (x); if (e_ != cudaSuccess) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
#define LT(x) do { auto e_ = (x); if (e_ != CUBLAS_STATUS_SUCCESS) { printf("%s:%d cublas %d\n", __FILE__, __LINE__, (int)e_); exit(1); } } while (0)
typedef unsigned long long u64; typedef long long i64; typedef __nv_bfloat16 bf;
struct Args { u64 out, x, w, bias, residual; i64 m, n, k, om, xm, wn, rm, constant; };
// SkinnyArgs of skinny.cuh; the designs take Args.
struct Part { u64 out, w, up, bias, upBias; i64 n, om, wn, upn, first; };
struct Skinny { u64 x, residual; i64 m, k, xm, rm, constant, slices; Part part[3]; };
struct Variant { const char* name; char design; int rows, cols, threads, smem, gated, split; cudaKernel_t f = nullptr; };
static Variant variants[] = {
#include "variants.h"
};
struct Shape { const char* name; i64 n, k; };
static Shape shapes[] = {{"qkv", 3072, 4096}, {"o", 4096, 2048}, {"gateup", 14336, 4096}, {"down", 4096, 7168}};
static const size_t POOL = 480ull << 20;
static bf *pool, *xs, *ys; static double* ref; static cudaStream_t st; static FILE* tsv; static double readRate = 0;
__global__ void fillRandom(bf* p, size_t n, unsigned seed, float scale) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    unsigned h = (unsigned)i * 2654435761u + seed; h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
    unsigned g = h * 747796405u + 2891336453u; g ^= g >> 15; g *= 0x2c1b3c6du; g ^= g >> 12;
    float a = (h >> 8) * (1.f / 16777216), b = ((g >> 8) + 1) * (1.f / 16777217);
    p[i] = __float2bfloat16(scale * sqrtf(-2 * logf(b)) * cospif(2 * a));
  }
}
template <int U> __global__ void readKernel(const uint4* p, size_t n, unsigned* out) {
  unsigned s = 0; size_t step = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  for (; i + (U - 1) * step < n; i += U * step) {
    uint4 v[U];
#pragma unroll
    for (int u = 0; u < U; u++) v[u] = __ldcs(p + i + u * step);
#pragma unroll
    for (int u = 0; u < U; u++) s ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  for (; i < n; i += step) { uint4 v = p[i]; s ^= v.x ^ v.y ^ v.z ^ v.w; }
  if (s == 0x12345) *out = s;
}
__global__ void reference(double* y, const bf* x, i64 xm, const bf* w, i64 m, i64 n, i64 k) {  // a warp for each element
  i64 e = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; int l = threadIdx.x % 32;
  if (e >= m * n) return;
  double s = 0;
  for (i64 j = l; j < k; j += 32) s += (double)__bfloat162float(x[e / n * xm + j]) * (double)__bfloat162float(w[e % n * k + j]);
  for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (!l) y[e] = s;
}
static void launch(Variant& v, const Args& a, bool early) {
  i64 n = a.n;
  cudaLaunchConfig_t c{}; c.gridDim = dim3((unsigned)((n + v.cols - 1) / v.cols * v.split)); c.blockDim = dim3(v.threads); c.dynamicSmemBytes = v.smem; c.stream = st;
  cudaLaunchAttribute at; at.id = cudaLaunchAttributeProgrammaticStreamSerialization; at.val.programmaticStreamSerializationAllowed = 1;
  if (early) c.attrs = &at, c.numAttrs = 1;
  Skinny s{a.x, a.residual, a.m, a.k, a.xm, a.rm, a.constant, 1, {{a.out, a.w, a.w + a.n * a.wn * 2, a.bias, 0, a.n, a.om, a.wn, a.wn, 0}}};
  bool own = v.design == 'F' || v.design == 'G';
  void* args[] = {own ? (void*)&s : (void*)&a};
  CK(cudaLaunchKernelExC(&c, (const void*)v.f, args));
}
// us of a graph that f records, median and least of reps replays.
static double timeGraph(const std::function<void()>& f, int reps = 15) {
  cudaGraph_t g; cudaGraphExec_t x; cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
  CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal)); f(); CK(cudaStreamEndCapture(st, &g)); CK(cudaGraphInstantiate(&x, g, 0));
  std::vector<float> t;
  for (int r = 0; r < reps + 3; r++) {
    CK(cudaEventRecord(a, st)); CK(cudaGraphLaunch(x, st)); CK(cudaEventRecord(b, st)); CK(cudaEventSynchronize(b));
    float ms; CK(cudaEventElapsedTime(&ms, a, b)); if (r >= 3) t.push_back(ms * 1e3f);
  }
  CK(cudaGetLastError()); CK(cudaGraphExecDestroy(x)); CK(cudaGraphDestroy(g)); CK(cudaEventDestroy(a)); CK(cudaEventDestroy(b));
  std::sort(t.begin(), t.end()); return t[t.size() / 2];
}
static int copiesOf(const Shape& s) { return (int)std::min<i64>(POOL / (s.n * s.k * 2), std::max<i64>(4, (240ll << 20) / (s.n * s.k * 2) + 1)); }
static int nodesOf(const Shape& s) { int c = copiesOf(s); return c * std::max(1, 24 / c); }
static Args argsOf(const Shape& s, int m, int i, bool constant) {
  return Args{(u64)(ys + (i % 4) * 16 * 14336), (u64)xs, (u64)(pool + (i % copiesOf(s)) * s.n * s.k), 0, 0, m, s.n, s.k, s.n, s.k, s.k, 0, constant};
}
static void row(const Shape& s, int m, const char* who, double us) {
  double gb = s.n * s.k * 2 / us / 1e3;
  if (tsv) fprintf(tsv, "%d\t%lld\t%lld\t%s\t%.2f\t%.0f\t%.3f\n", m, s.n, s.k, who, us, gb, gb / readRate), fflush(tsv);
}
struct LtGemm {
  cublasLtMatmulDesc_t d; cublasLtMatrixLayout_t a, b, c; std::vector<cublasLtMatmulHeuristicResult_t> found; int best = 0; double us = 1e9;
};
static cublasLtHandle_t lt; static void* ws; static const size_t WS = 32 << 20;
static void ltRun(LtGemm& g, int i, const Args& a) {
  float one = 1, zero = 0;
  LT(cublasLtMatmul(lt, g.d, &one, (void*)a.w, g.a, (void*)a.x, g.b, &zero, (void*)a.out, g.c, (void*)a.out, g.c, &g.found[i].algo, ws, WS, st));
}
static LtGemm& ltOf(const Shape& s, int m) {
  static std::map<std::pair<std::string, int>, LtGemm> made; auto& g = made[{s.name, m}];
  if (!g.found.empty()) return g;
  LT(cublasLtMatmulDescCreate(&g.d, CUBLAS_COMPUTE_32F, CUDA_R_32F)); cublasOperation_t t = CUBLAS_OP_T;
  LT(cublasLtMatmulDescSetAttribute(g.d, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
  LT(cublasLtMatrixLayoutCreate(&g.a, CUDA_R_16BF, s.k, s.n, s.k)); LT(cublasLtMatrixLayoutCreate(&g.b, CUDA_R_16BF, s.k, m, s.k)); LT(cublasLtMatrixLayoutCreate(&g.c, CUDA_R_16BF, s.n, m, s.n));
  cublasLtMatmulPreference_t p; LT(cublasLtMatmulPreferenceCreate(&p)); LT(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WS, sizeof WS));
  g.found.resize(16); int n = 0; LT(cublasLtMatmulAlgoGetHeuristic(lt, g.d, g.a, g.b, g.c, g.c, p, 16, g.found.data(), &n)); g.found.resize(n);
  double first = 0;
  for (int i = 0; i < n; i++) {
    double us = timeGraph([&] { for (int j = 0; j < nodesOf(s); j++) ltRun(g, i, argsOf(s, m, j, 1)); }, 7) / nodesOf(s);
    if (!i) first = us;
    if (us < g.us) g.us = us, g.best = i;
  }
  g.us = timeGraph([&] { for (int j = 0; j < nodesOf(s); j++) ltRun(g, g.best, argsOf(s, m, j, 1)); }) / nodesOf(s);
  row(s, m, "cublaslt-first", first); row(s, m, "cublaslt-best", g.us);
  return g;
}
static double silu(double v) { return v / (1 + exp(-v)); }
static bf round1(double v) { return __float2bfloat16((float)v); }
// check returns the largest relative error (norm) of a variant at m, and whether rows have the bits that they have alone.
static bool check(Variant& v, const Shape& s, int m, bool early, std::map<std::string, std::vector<bf>>& bits) {
  size_t cols = v.gated ? s.n / 2 : s.n, count = m * cols;
  Args a = argsOf(s, m, 1, 1); a.out = (u64)ys; if (v.gated) a.n = s.n / 2, a.om = s.n / 2;
  std::vector<bf> y(count), z(count);
  for (int r = 0; r < 2; r++) {
    CK(cudaMemsetAsync(ys, 0xff, 16 * 14336 * 2 * 4, st));
    launch(v, a, early); CK(cudaStreamSynchronize(st)); CK(cudaGetLastError());
    CK(cudaMemcpy(r ? z.data() : y.data(), ys, count * 2, cudaMemcpyDeviceToHost));
  }
  unsigned short guard[8]; CK(cudaMemcpy(guard, ys + count, 16, cudaMemcpyDeviceToHost));
  bool over = false; for (auto g : guard) over |= g != 0xffff;
  bool repeat = !memcmp(y.data(), z.data(), count * 2);
  reference<<<(unsigned)((m * s.n * 32 + 255) / 256), 256, 0, st>>>(ref, (bf*)a.x, s.k, (bf*)a.w, m, s.n, s.k); CK(cudaStreamSynchronize(st));
  std::vector<double> want(m * s.n); CK(cudaMemcpy(want.data(), ref, want.size() * 8, cudaMemcpyDeviceToHost));
  double e2 = 0, w2 = 0, worst = 0;
  for (size_t i = 0; i < count; i++) {
    double w = want[i];
    if (v.gated) { size_t r = i / cols, c = i % cols; double g = __bfloat162float(round1(want[r * s.n + c])), u = __bfloat162float(round1(want[r * s.n + cols + c])); w = __bfloat162float(round1(silu(g))) * u; }
    double d = __bfloat162float(y[i]) - w; e2 += d * d; w2 += w * w; worst = std::max(worst, std::fabs(d));
    if (!(std::fabs(d) < 1e9)) e2 = INFINITY;
  }
  // Bits by number of warps (they decide the order): a row is the same whatever m, tiles, steps.
  std::string key = std::string(1, v.design) + s.name + (v.design == 'C' ? "" : strchr(v.name, 'w') ? std::string(strchr(v.name, 'w'), 2) : "") + "k" + std::to_string(v.split); if (strstr(v.name, "w16")) key += "6";
  bool same = true; auto& k = bits[key];
  if (k.size() < count) { if (!k.empty()) same = !memcmp(k.data(), y.data(), k.size() * 2); k = y; } else same = !memcmp(k.data(), y.data(), count * 2);
  double rel = std::sqrt(e2 / w2); bool ok = rel < (v.gated ? 8e-3 : 4e-3) && repeat && !over && same;
  if (!ok) printf("WRONG %s %s m=%d rel %.2e worst %.2e repeat %d beyond %d same-as-other-m %d\n", v.name, s.name, m, rel, worst, repeat, over, same);
  return ok;
}
int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string mode = argc > 3 ? argv[3] : ""; tsv = argc > 2 ? fopen(argv[2], "w") : nullptr;
  cudaDeviceProp pr; CK(cudaGetDeviceProperties(&pr, 0)); int drv, rt; CK(cudaDriverGetVersion(&drv)); CK(cudaRuntimeGetVersion(&rt));
  CK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
  printf("%s, %d SMs, driver %d, runtime %d\n", pr.name, pr.multiProcessorCount, drv, rt);
  CK(cudaMalloc(&pool, POOL)); CK(cudaMalloc(&xs, 16 * 14336 * 2)); CK(cudaMalloc(&ys, 16 * 14336 * 2 * 8)); CK(cudaMalloc(&ref, 16 * 14336 * 8)); CK(cudaMalloc(&ws, WS));
  unsigned seed = (unsigned)time(nullptr); printf("seed %u\n", seed);
  fillRandom<<<1320, 256, 0, st>>>(pool, POOL / 2, seed, 0.018f); fillRandom<<<64, 256, 0, st>>>(xs, 16 * 14336, seed + 77, 1.f); CK(cudaStreamSynchronize(st));
  LT(cublasLtCreate(&lt));
  cudaLibrary_t lib; CK(cudaLibraryLoadFromFile(&lib, argv[1], nullptr, nullptr, 0, nullptr, nullptr, 0));
  for (auto& v : variants) { CK(cudaLibraryGetKernel(&v.f, lib, v.name)); if (v.smem > 48 << 10) CK(cudaFuncSetAttribute((const void*)v.f, cudaFuncAttributeMaxDynamicSharedMemorySize, v.smem)); }
  // The rate of a plain read of the whole pool.
  auto readBest = [&](bool print) {
    double best = 0;
    for (int per : {1, 2, 4, 8, 16}) for (int threads : {256, 512, 1024}) for (int u : {4, 8}) {
      if (per * threads > 4096) continue;
      double us = timeGraph([&] { for (int i = 0; i < 2; i++) if (u == 4) readKernel<4><<<per * pr.multiProcessorCount, threads, 0, st>>>((uint4*)pool, POOL / 16, (unsigned*)ws); else readKernel<8><<<per * pr.multiProcessorCount, threads, 0, st>>>((uint4*)pool, POOL / 16, (unsigned*)ws); }, 9) / 2;
      double gb = POOL / us / 1e3;
      if (gb > best) { best = gb; if (print) printf("read %d x %d threads, %d loads: %.0f GB/s\n", per, threads, u, gb); }
    }
    return best;
  };
  readRate = readBest(true); printf("read rate %.0f GB/s\n", readRate);
  if (FILE* f = fopen("rate", "w")) fprintf(f, "%f", readRate), fclose(f);
  if (tsv) fprintf(tsv, "m\tn\tk\twho\tus\tGB/s\tshare\n0\t%zu\t1\tread\t%.2f\t%.0f\t1\n", POOL / 2, POOL / readRate / 1e3, readRate);
  for (auto& s : shapes) {  // a read kernel for each weight, as products are issued
    double best = 1e9;
    for (int per : {1, 2, 4}) best = std::min(best, timeGraph([&] { for (int j = 0; j < nodesOf(s); j++) readKernel<8><<<per * pr.multiProcessorCount, 512, 0, st>>>((uint4*)argsOf(s, 1, j, 1).w, s.n * s.k / 8, (unsigned*)ws); }) / nodesOf(s));
    row(s, 0, "read-each", best); printf("read of one weight each launch %s: %.2f us, %.3f of the rate\n", s.name, best, s.n * s.k * 2 / best / 1e3 / readRate);
  }
  // Correct first.
  std::map<std::string, bool> good; int bad = 0;
  { std::map<std::string, std::vector<bf>> bits;
    for (auto& v : variants) { good[v.name] = true; for (auto& s : shapes) for (int m : {1, 2, 3, 5, 8, 9, 13, 16}) if (m <= v.rows && !(v.gated && strcmp(s.name, "gateup")) && !check(v, s, m, m % 2, bits)) good[v.name] = false, bad++; }
    printf("checks done, %d wrong\n", bad); }
  auto timeVariant = [&](Variant& v, const Shape& s, int m, bool early, bool constant) {
    return timeGraph([&] { for (int j = 0; j < nodesOf(s); j++) { Args a = argsOf(s, m, j, constant); if (v.gated) a.n = s.n / 2, a.om = s.n / 2; launch(v, a, early && j > 0); } }) / nodesOf(s);
  };
  struct Pick { int v; double us; };
  std::map<std::pair<std::string, int>, Pick> picks;
  if (mode == "designs") {
    for (int m : {1, 8, 12, 16}) {
      printf("\nm=%d: us (share of the read rate), early with constant weights\n%-20s", m, "");
      for (auto& s : shapes) printf("%16s", s.name);
      printf("\n");
      for (int i = 0; i < (int)(sizeof variants / sizeof *variants); i++) {
        auto& v = variants[i];
        if (m > v.rows || (m <= 8 && v.rows > 8)) continue;
        printf("%-20s", v.name);
        for (auto& s : shapes) {
          if (v.gated && strcmp(s.name, "gateup")) { printf("%16s", ""); continue; }
          double us = timeVariant(v, s, m, true, true);
          printf("%8.2f (%.3f)", us, s.n * s.k * 2 / us / 1e3 / readRate); row(s, m, v.name, us);
        }
        printf("\n");
      }
    }
    return bad ? 2 : 0;
  }
  // planned is the form that hocket's planner takes (internal/kernels/skinny.go).
  auto planned = [&](const Shape& s, int m, bool gated) {
    std::string name = gated ? "skinnySiluMul_" : "skinnyStore_"; i64 sms = pr.multiProcessorCount;
    name += m <= 8 ? (!gated && s.k >= 4096 ? "r8t4s5" : "r8t2s4") : (!gated && 16 * sms < s.n && s.n <= 24 * sms ? "r16t3s5" : "r16t2s3");
    for (int i = 0; i < (int)(sizeof variants / sizeof *variants); i++) if (name == variants[i].name) return i;
    printf("no %s\n", name.c_str()); exit(1);
  };
  printf("\nus (share of the read rate): constant weights, twice; weights not constant; without early launch; cuBLASLt best of its guesses\n");
  for (int m : {1, 2, 4, 8, 9, 12, 16}) for (int q = 0; q < 5; q++) {
    bool gated = q == 4; auto& s = shapes[gated ? 2 : q]; int i = planned(s, m, gated); auto& v = variants[i];
    picks[{gated ? "gated" : s.name, m}] = {i, 0};
    double t[4] = {timeVariant(v, s, m, true, true), timeVariant(v, s, m, true, true), timeVariant(v, s, m, true, false), timeVariant(v, s, m, false, false)};
    const char* how[] = {"", " again", " not constant", " not early"}; double gb = s.n * s.k * 2 / 1e3 / readRate;
    printf("m=%-2d %-7s %-20s", m, gated ? "gated" : s.name, v.name);
    for (int h = 0; h < 4; h++) row(s, m, (std::string(v.name) + how[h]).c_str(), t[h]), printf(" %7.2f (%.3f)", t[h], gb / t[h]);
    if (!gated) { auto& g = ltOf(s, m); printf("   cuBLASLt %7.2f (%.3f, %d of %zu)", g.us, gb / g.us, g.best, g.found.size()); }
    printf("\n");
  }
  // Layers: q-k-v, o, gate-up with silu·mul, down, each reading what the one before wrote; two layers of weights in turns, six in all.
  printf("\nsix layers as one graph\n");
  for (int m : {1, 8, 16}) {
    bf *y[5]; for (int i = 0; i < 5; i++) y[i] = ys + i * 16 * 14336;
    size_t off[5] = {0}; for (int i = 0; i < 4; i++) off[i + 1] = off[i] + shapes[i].n * shapes[i].k;
    auto chain = [&](int way) { for (int l = 0; l < 6; l++) for (int i = 0; i < 4; i++) {
      auto& s = shapes[i]; const bf* w = pool + (l % 2) * off[4] + off[i];
      i64 in = i == 1 ? shapes[0].n : s.k; bf* x = y[(i + 3) % 4]; if (i == 0 && l == 0) x = xs;
      Args a{(u64)y[i], (u64)x, (u64)w, 0, 0, m, s.n, s.k, s.n, in, s.k, 0, 1};
      if (way == 2) { if (i == 1) a.x = (u64)xs; ltRun(ltOf(s, m), ltOf(s, m).best, a); continue; }
      Variant* v = &variants[picks[{s.name, m}].v];
      if (i == 2) { v = &variants[picks[{"gated", m}].v]; a.n = s.n / 2; a.om = s.n / 2; }
      if (way == 1) a.constant = 0;
      launch(*v, a, way < 2 && (l || i));
    } };
    double bound = off[4] * 2 * 6 / readRate / 1e3;
    double t0 = timeGraph([&] { chain(0); }), again = timeGraph([&] { chain(0); }), t1 = timeGraph([&] { chain(1); }), t2 = timeGraph([&] { chain(2); });
    printf("m=%-2d read %.1f us; own %.1f (%.3f) and %.1f, not constant %.1f (%.3f), cuBLASLt without silu-mul %.1f (%.3f)\n", m, bound, t0, bound / t0, again, t1, bound / t1, t2, bound / t2);
  }
  printf("read rate at the end %.0f GB/s\n", readBest(false));
  return bad ? 2 : 0;
}
