// A Llama-family decoder and one step of it: ids of many rows in, logits of the sampled rows out.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "activations.hpp"
#include "attention.hpp"
#include "kv_cache.hpp"
#include "linear.hpp"
#include "threads.hpp"

namespace pagemesh {

struct Shape {
  int64_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_size, embedding_size;
  int64_t window;  // 0: none
  float norm_epsilon;

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t query_size() const { return num_heads * head_size; }
  int64_t hidden_stride() const { return round_up(hidden_size, kPanelColumns); }
};

struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;  // padded with zeros to hidden_stride
  std::vector<float> query_norm, key_norm;      // [head_size], empty where there is none
  Linear qkv, attention_out, gate_up, down;
};

struct Weights {
  Buffer embedding;  // [embedding_size][hidden_size] bf16
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  Linear head;
  std::vector<float> frequencies;  // [head_size / 2] radians per position
};

// Row r has the tokens [row_begin[r], row_begin[r + 1]) and the blocks table[table_begin[r]...].
struct Batch {
  int64_t num_rows;
  const int32_t *ids, *row_begin, *starts, *table, *table_begin;
  const uint8_t* is_sampled;  // [num_rows]: the last token's logits are wanted
  int64_t vocab_size;         // logits that count; the embedding may be padded beyond them
  float* logits;              // [sampled rows][logits_stride()]
  int32_t* likeliest;         // [sampled rows]: see argmax.hpp
  uint8_t* is_finite;         // [num_rows]: all hidden states of the row are numbers
};

class Model {
 public:
  Model(Shape shape, KernelPath path, KvFormat kv_format, int num_threads);

  Weights weights;

  void allocate(int64_t num_blocks) { cache_.allocate(num_blocks); }
  void poison(int64_t block) { cache_.poison(block); }
  void step(const Batch& batch);

  const Shape& shape() const { return shape_; }
  Team& team() { return team_; }
  const KvCache& cache() const { return cache_; }
  // Memory, rounded up to huge pages: of the weights, and of what flows through a step of the largest so far.
  int64_t weight_bytes() const;
  int64_t activation_bytes() const;
  int64_t logits_stride() const { return round_up(shape_.embedding_size, kPanelColumns); }

 private:
  struct StoreItem {
    const Span* span;
    int64_t first, count;  // tokens of the span, all in one block
  };

  void plan(const Batch& batch);
  void reserve(int64_t num_tokens);
  void run(int thread, const Batch& batch);
  void embed(int thread, const Batch& batch);
  void normalize_rows(int thread, const std::vector<float>& weight, const Linear& reader);
  void prepare_rows(int thread, const Linear& reader, const Activations& rows);
  void store_keys(int thread, int64_t layer);
  void store_token(int64_t layer, const Span& span, int64_t index);
  void attend(int thread, int64_t layer);
  void sample(int thread, const Batch& batch);
  void check(int thread, const Batch& batch);
  template <class Finish>
  void apply(int thread, const Linear& linear, Activations& input, int64_t num_rows, Finish finish);

  Shape shape_;
  KernelPath path_;
  Team team_;
  KvCache cache_;

  // The plan of the step.
  int64_t step_number_ = 0, num_tokens_ = 0;
  std::vector<Span> spans_;
  std::vector<StoreItem> store_items_;
  std::vector<AttentionItem> attention_items_;
  std::vector<int64_t> sampled_tokens_;

  // What flows through it.
  int64_t capacity_ = 0;
  Buffer residual_, qkv_, queries_, cosines_, sines_;
  Activations normed_, attended_, gated_, sampled_;
  struct Scratch {
    Buffer waiting;  // [rows of a pass][32] fp32: sums
    AttentionScratch attention;
  };
  std::vector<Scratch> scratch_;  // of each thread
};

}  // namespace pagemesh
