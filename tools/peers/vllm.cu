// A C interface to vLLM's custom all-reduce, for `torchrun -m hocket.bench all_reduce --vllm ./vllm.so`.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -shared -Xcompiler -fPIC -I FOLDER -o vllm.so tools/peers/vllm.cu
//
// FOLDER holds vLLM's csrc/custom_all_reduce.cuh, with custom_collective_common.cuh where it includes that. The caller
// owns all memory. A call returns null, or a message that stays valid until the thread's next call.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "custom_all_reduce.cuh"

namespace {

struct Reducer {
  vllm::CustomAllreduce custom;
  std::vector<char*> inputs;  // where this rank maps the input buffer of each rank
  size_t input_bytes;

  Reducer(void** signals, void* rank_data, size_t rank_data_bytes, void** buffers, size_t bytes, int rank, int ranks)
      : custom(reinterpret_cast<vllm::Signal**>(signals), rank_data, rank_data_bytes, rank, ranks, true),
        input_bytes(bytes) {
    for (int i = 0; i < ranks; i++) inputs.push_back(static_cast<char*>(buffers[i]));
    custom.register_buffer(buffers);
  }

  // Calls in a graph read their peer pointers from rank data that is written here, after the capture. vLLM does this
  // with IPC handles; here every input lies in the one buffer whose peer pointers are known.
  void fill() {
    std::vector<vllm::RankData> data(custom.graph_unreg_buffers_.size());
    custom.check_rank_data_capacity(data.size());
    const char* own = inputs[custom.rank_];
    for (size_t i = 0; i < data.size(); i++) {
      const char* input = static_cast<const char*>(custom.graph_unreg_buffers_[i]);
      if (input < own || input >= own + input_bytes) throw std::runtime_error("a captured input is not registered");
      for (size_t r = 0; r < inputs.size(); r++) data[i].ptrs[r] = inputs[r] + (input - own);
    }
    check(cudaMemcpy(custom.d_rank_data_base_, data.data(), data.size() * sizeof(data[0]), cudaMemcpyHostToDevice));
    custom.d_rank_data_base_ += data.size();
    custom.graph_unreg_buffers_.clear();
  }

  static void check(cudaError_t e) {
    if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
  }
};

template <typename F> const char* guarded(F f) {
  thread_local std::string message;
  try {
    f();
    return nullptr;
  } catch (const std::exception& e) {
    message = e.what();
    return message.c_str();
  }
}

}  // namespace

extern "C" {

// The bytes of flags at the start of a signal buffer. The rest of the buffer is the two-stage kernel's.
size_t vllm_signal_bytes() { return sizeof(vllm::Signal); }

// Makes a reducer on the current device, for GPUs that NVLink connects all to all. signals and buffers are pointers by
// rank, to zeroed signal buffers and to input buffers of `bytes` bytes; rank_data is memory of this device for the peer
// pointers of every captured call.
const char* vllm_make(void** made, void** signals, void* rank_data, size_t rank_data_bytes, void** buffers,
                      size_t bytes, int rank, int ranks) {
  return guarded([&] { *made = new Reducer(signals, rank_data, rank_data_bytes, buffers, bytes, rank, ranks); });
}

// Sums bf16: input is the start of the registered buffer, or while the stream is captured anywhere in it.
const char* vllm_all_reduce(void* made, void* stream, void* input, void* output, int elements) {
  return guarded([&] {
    static_cast<Reducer*>(made)->custom.allreduce(static_cast<cudaStream_t>(stream), static_cast<nv_bfloat16*>(input),
                                                  static_cast<nv_bfloat16*>(output), elements);
    Reducer::check(cudaGetLastError());
  });
}

// Makes the graphs captured since the last call ready to replay.
const char* vllm_captured(void* made) {
  return guarded([&] { static_cast<Reducer*>(made)->fill(); });
}

}  // extern "C"
