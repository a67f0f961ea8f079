// y = scale · x / (1 + exp(-x))
extern "C" __global__ void swish(const float* x, float* y, long long n, float scale) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = scale * x[i] / (1.0f + expf(-x[i]));
}
