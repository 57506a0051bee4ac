// The C interface that ctypes calls. Nothing throws across it: a call that failed gives null or -1, and
// pagemesh_last_error says why.
#include <cstring>
#include <stdexcept>

#include "abi_guard.hpp"
#include "step.hpp"

using namespace pagemesh;

namespace {

std::vector<float> padded(const float* values, int64_t size, int64_t padded_size) {
  std::vector<float> copy(padded_size, 0.0f);
  std::copy_n(values, size, copy.begin());
  return copy;
}

}  // namespace

extern "C" {

enum LinearName : int32_t { kQkv = 0, kAttentionOut = 1, kGateUp = 2, kDown = 3, kHead = 4 };
enum VectorName : int32_t { kAttentionNorm = 0, kMlpNorm = 1, kQueryNorm = 2, kKeyNorm = 3, kFinalNorm = 4, kFrequencies = 5 };

int32_t pagemesh_best_path() { return static_cast<int32_t>(best_kernel_path()); }

Model* pagemesh_create(const Shape* shape, int32_t path, int32_t kv_format, int32_t num_threads) {
  Model* model = nullptr;
  guard([&] {
    if (!is_usable(static_cast<KernelPath>(path))) throw std::invalid_argument("this kernel path is not usable here");
    model = new Model(*shape, static_cast<KernelPath>(path), static_cast<KvFormat>(kv_format), num_threads);
  });
  return model;
}

void pagemesh_destroy(Model* model) { delete model; }

// [embedding_size][hidden_size] bf16, copied.
int32_t pagemesh_set_embedding(Model* model, const uint16_t* rows) {
  return guard([&] {
    const size_t num_bytes = model->shape().embedding_size * model->shape().hidden_size * 2;
    model->weights.embedding = Buffer(num_bytes + 64);
    std::memcpy(model->weights.embedding.as<char>(), rows, num_bytes);
  });
}

int32_t pagemesh_set_vector(Model* model, int64_t layer, int32_t name, const float* values) {
  return guard([&] {
    const Shape& shape = model->shape();
    switch (name) {
      case kAttentionNorm:
        model->weights.layers.at(layer).attention_norm = padded(values, shape.hidden_size, shape.hidden_stride());
        break;
      case kMlpNorm:
        model->weights.layers.at(layer).mlp_norm = padded(values, shape.hidden_size, shape.hidden_stride());
        break;
      case kQueryNorm: model->weights.layers.at(layer).query_norm = padded(values, shape.head_size, shape.head_size); break;
      case kKeyNorm: model->weights.layers.at(layer).key_norm = padded(values, shape.head_size, shape.head_size); break;
      case kFinalNorm: model->weights.final_norm = padded(values, shape.hidden_size, shape.hidden_stride()); break;
      case kFrequencies: model->weights.frequencies = padded(values, shape.head_size / 2, shape.head_size / 2); break;
      default: throw std::invalid_argument("no such vector");
    }
  });
}

// Takes the place of a layer's linear, packed.
static void place_linear(Model* model, int64_t layer, int32_t name, Linear linear) {
  switch (name) {
    case kQkv: model->weights.layers.at(layer).qkv = std::move(linear); break;
    case kAttentionOut: model->weights.layers.at(layer).attention_out = std::move(linear); break;
    case kGateUp: model->weights.layers.at(layer).gate_up = std::move(linear); break;
    case kDown: model->weights.layers.at(layer).down = std::move(linear); break;
    case kHead: model->weights.head = std::move(linear); break;
    default: throw std::invalid_argument("no such linear");
  }
}

// Moves a packed linear (abi_linear.cpp) to its place; what is left of it must still be freed.
int32_t pagemesh_set_linear(Model* model, int64_t layer, int32_t name, Linear* linear) {
  return guard([&] {
    if ((linear->order == ColumnOrder::gate_up) != (name == kGateUp)) throw std::invalid_argument("wrong column order");
    place_linear(model, layer, name, std::move(*linear));
  });
}

int32_t pagemesh_allocate(Model* model, int64_t num_blocks) {
  return guard([&] { model->allocate(num_blocks); });
}

void pagemesh_poison(Model* model, const int32_t* blocks, int64_t count) {
  for (int64_t index = 0; index < count; ++index) model->poison(blocks[index]);
}

// For tests: one token's key and value [head_size] of a layer and head.
void pagemesh_read_kv(const Model* model, int64_t layer, int64_t block, int64_t head, int64_t slot, float* key,
                      float* value) {
  model->cache().read(layer, block, head, slot, key, value);
}

int64_t pagemesh_block_bytes(const Model* model) { return model->cache().block_bytes(); }
int64_t pagemesh_weight_bytes(const Model* model) { return model->weight_bytes(); }
int64_t pagemesh_activation_bytes(const Model* model) { return model->activation_bytes(); }
int64_t pagemesh_logits_stride(const Model* model) { return model->logits_stride(); }

int32_t pagemesh_step(Model* model, const Batch* batch) {
  return guard([&] { model->step(*batch); });
}

}  // extern "C"
