// Definitions that the sources need for a syntax check as CUDA without a toolkit.
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)
struct Index { unsigned x, y, z; };
extern const __device__ Index threadIdx, blockIdx, blockDim, gridDim;
__device__ void __syncthreads();
__device__ int __syncthreads_and(int);
__device__ int __syncthreads_or(int);
__device__ void __syncwarp();
__device__ int __all_sync(unsigned, int);
template <class A> __device__ A __shfl_sync(unsigned, A, int);
template <class A> __device__ A __shfl_xor_sync(unsigned, A, int);
template <class A> __device__ A __shfl_down_sync(unsigned, A, unsigned);
__device__ void __nanosleep(unsigned);
__device__ decltype(sizeof 0) __cvta_generic_to_shared(const void*);
__device__ unsigned long long atomicCAS(unsigned long long*, unsigned long long, unsigned long long);
__device__ unsigned __activemask();
__device__ int __ffs(int);
extern "C" {
__device__ void* memcpy(void*, const void*, decltype(sizeof 0));
__device__ float __fmul_rn(float, float); __device__ double __dmul_rn(double, double);
__device__ double rint(double); __device__ double exp(double); __device__ double log1p(double); __device__ double erfc(double); __device__ double erf(double); __device__ double tanh(double); __device__ double sin(double); __device__ double cos(double); __device__ double log(double); __device__ double floor(double); __device__ double pow(double, double); __device__ double sqrt(double); __device__ void sincos(double, double*, double*);
__device__ float expf(float); __device__ float log1pf(float); __device__ float erff(float); __device__ float tanhf(float); __device__ float sinf(float); __device__ float cosf(float); __device__ float logf(float); __device__ float floorf(float); __device__ float powf(float, float); __device__ float __fdividef(float, float); __device__ float sqrtf(float); __device__ float fmaxf(float, float);
}
