// What a link between two GPUs carries: kernels that store, kernels that load, copy
// engines, and both at once; one way and both ways.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -o link tools/peers/link.cu && ./link
//
// Each figure is GB/s of one direction: 64 MiB in each, in launches behind each
// other; the slower GPU's time, median of three rounds, best of the grids tried.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#define CHECK(call)                                                                  \
  do {                                                                               \
    const cudaError_t got = (call);                                                  \
    if (got != cudaSuccess) {                                                        \
      printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(got));            \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

// copies lines of 16 bytes, U at once a thread.
template <int U> __global__ void __launch_bounds__(1024) copies(uint4* to, const uint4* from, long n) {
  const long step = (long)gridDim.x * blockDim.x;
  for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += U * step) {
    uint4 v[U];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < n) v[u] = from[i + u * step];
#pragma unroll
    for (int u = 0; u < U; u++)
      if (i + u * step < n) to[i + u * step] = v[u];
  }
}

struct Gpu {
  uint4 *in, *out;
  cudaStream_t main, side;
  cudaEvent_t from, to, fork;
} gpu[2];

const long bytes = 64 << 20;

// rate is GB/s of what issue gives each of the GPUs that take part.
double rate(bool both, const std::function<void(int)>& issue) {
  std::vector<double> all;
  const int rounds = 3, many = 8;
  for (int r = 0; r < rounds; r++) {
    double worst = 0;
    for (int k = 0; k < many + 2; k++)
      for (int d = 0; d <= both; d++) {
        CHECK(cudaSetDevice(d));
        issue(d);
        if (k == 1) CHECK(cudaEventRecord(gpu[d].from, gpu[d].main));
        if (k == many + 1) CHECK(cudaEventRecord(gpu[d].to, gpu[d].main));
      }
    for (int d = 0; d <= both; d++) {
      CHECK(cudaSetDevice(d));
      CHECK(cudaStreamSynchronize(gpu[d].main));
      float ms;
      CHECK(cudaEventElapsedTime(&ms, gpu[d].from, gpu[d].to));
      worst = std::max(worst, (double)ms / many);
    }
    all.push_back(bytes / worst / 1e6);
  }
  std::sort(all.begin(), all.end());
  return all[rounds / 2];
}

void kernel(int unroll, int blocks, int threads, cudaStream_t s, uint4* to, const uint4* from, long n) {
  if (unroll == 2) copies<2><<<blocks, threads, 0, s>>>(to, from, n);
  if (unroll == 4) copies<4><<<blocks, threads, 0, s>>>(to, from, n);
  if (unroll == 8) copies<8><<<blocks, threads, 0, s>>>(to, from, n);
  CHECK(cudaGetLastError());
}

// bestGrid prints the best of many grids.
void bestGrid(const char* what, bool both, const std::function<void(int d, int unroll, int blocks, int threads)>& issue) {
  double best = 0;
  std::string grid;
  for (int blocks : {32, 64, 96, 132, 264})
    for (int threads : {256, 512, 1024})
      for (int unroll : {2, 4, 8}) {
        if (blocks * threads > 132 * 1024) continue;
        const double r = rate(both, [&](int d) { issue(d, unroll, blocks, threads); });
        if (r > best) best = r, grid = std::to_string(blocks) + "x" + std::to_string(threads) + "/" + std::to_string(unroll);
      }
  printf("%-34s %-9s %6.1f  %s\n", what, both ? "both ways" : "one way", best, grid.c_str());
}

int main() {
  for (int d = 0; d < 2; d++) {
    CHECK(cudaSetDevice(d));
    CHECK(cudaDeviceEnablePeerAccess(1 - d, 0));
    CHECK(cudaMalloc(&gpu[d].in, bytes));
    CHECK(cudaMalloc(&gpu[d].out, bytes));
    std::vector<unsigned> words(bytes / 4);
    for (unsigned& w : words) w = (unsigned)rand();
    CHECK(cudaMemcpy(gpu[d].in, words.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaStreamCreateWithFlags(&gpu[d].main, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&gpu[d].side, cudaStreamNonBlocking));
    for (cudaEvent_t* e : {&gpu[d].from, &gpu[d].to}) CHECK(cudaEventCreate(e));
    CHECK(cudaEventCreateWithFlags(&gpu[d].fork, cudaEventDisableTiming));
  }
  const long lines = bytes / 16;
  for (bool both : {false, true}) {
    bestGrid("stores", both, [&](int d, int u, int b, int t) { kernel(u, b, t, gpu[d].main, gpu[1 - d].out, gpu[d].in, lines); });
    bestGrid("loads", both, [&](int d, int u, int b, int t) { kernel(u, b, t, gpu[d].main, gpu[d].out, gpu[1 - d].in, lines); });
    for (bool pull : {false, true}) {
      const double r = rate(both, [&](int d) {
        CHECK(cudaMemcpyAsync(gpu[pull ? d : 1 - d].out, gpu[pull ? 1 - d : d].in, bytes, cudaMemcpyDeviceToDevice, gpu[d].main));
      });
      printf("%-34s %-9s %6.1f\n", pull ? "copy engines, pulling" : "copy engines, pushing", both ? "both ways" : "one way", r);
    }
    for (int percent : {30, 50, 70, 90}) {
      const long by = bytes / 100 * percent / 4096 * 4096, rest = (bytes - by) / 16;
      const std::string what = "stores, and engines for " + std::to_string(percent) + " %";
      bestGrid(what.c_str(), both, [&](int d, int u, int b, int t) {
        Gpu& g = gpu[d];
        CHECK(cudaEventRecord(g.fork, g.main));
        CHECK(cudaStreamWaitEvent(g.side, g.fork, 0));
        CHECK(cudaMemcpyAsync(gpu[1 - d].out + rest, g.in + rest, by, cudaMemcpyDeviceToDevice, g.side));
        kernel(u, b, t, g.main, gpu[1 - d].out, g.in, rest);
        CHECK(cudaEventRecord(g.fork, g.side));
        CHECK(cudaStreamWaitEvent(g.main, g.fork, 0));
      });
    }
  }
}
