#include "step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "argmax.hpp"
#include "epilogue.hpp"
#include "norm.hpp"
#include "rope.hpp"

namespace pagemesh {
namespace {

constexpr int64_t kMaxChunkRows = 1024;
constexpr int64_t kMinChunkRows = 256;    // fewer are not worth reading all weights for
constexpr int64_t kChunkBytes = 1 << 20;  // of activations: half of L2, so that every panel finds them there

// Rows that pass by all panels before the next rows do. Where there are many, every thread has chunks of its own.
int64_t chunk_rows(const Linear& linear, int64_t num_rows, int64_t num_threads) {
  const int64_t most = std::clamp(kChunkBytes / (linear.num_k_steps * kTileDepth * 2) / kTileRows * kTileRows,
                                  kMinChunkRows, kMaxChunkRows);
  const int64_t of_thread = num_rows >= kMinChunkRows * num_threads ? ceil_div(num_rows, num_threads) : num_rows;
  return round_up(ceil_div(of_thread, ceil_div(of_thread, most)), kTileRows);
}

}  // namespace

Model::Model(Shape shape, KernelPath path, KvFormat kv_format, int num_threads)
    : shape_(shape),
      path_(path),
      team_(num_threads),
      cache_(shape.num_layers, shape.num_kv_heads, shape.head_size, kv_format) {
  weights.layers.resize(shape.num_layers);
  for (int thread = 0; thread < num_threads; ++thread)
    scratch_.push_back({Buffer(kMaxChunkRows * kPanelColumns * sizeof(float)), AttentionScratch(shape.head_size)});
}

void Model::step(const Batch& batch) {
  plan(batch);
  reserve(num_tokens_);
  team_.run([&](int thread) { run(thread, batch); });
}

void Model::plan(const Batch& batch) {
  ++step_number_;
  num_tokens_ = batch.row_begin[batch.num_rows];
  spans_.clear(), store_items_.clear(), attention_items_.clear(), sampled_tokens_.clear();
  for (int64_t row = 0; row < batch.num_rows; ++row) {
    const int64_t first = batch.row_begin[row], end = batch.row_begin[row + 1];
    spans_.push_back({first, end - first, batch.starts[row], batch.table + batch.table_begin[row]});
    if (batch.is_sampled[row]) sampled_tokens_.push_back(end - 1);
  }
  for (const Span& span : spans_) {
    for (int64_t token = 0; token < span.num_tokens;) {
      const int64_t room = kBlockTokens - (span.start + token) % kBlockTokens;
      const int64_t count = std::min(room, span.num_tokens - token);
      store_items_.push_back({&span, token, count});
      token += count;
    }
    for (int64_t token = 0; token < span.num_tokens; token += kMinChunkRows) {
      const int64_t end = std::min(token + kMinChunkRows, span.num_tokens) * shape_.group();
      for (int64_t head = 0; head < shape_.num_kv_heads; ++head)
        for (int64_t query = token * shape_.group(); query < end; query += kTileRows)
          attention_items_.push_back({&span, head, query, std::min(kTileRows, end - query)});
    }
  }
}

void Model::reserve(int64_t num_tokens) {
  if (num_tokens <= capacity_) return;
  capacity_ = round_up(num_tokens, 2 * kTileRows);
  const int64_t half = shape_.head_size / 2;
  residual_ = Buffer(capacity_ * shape_.hidden_stride() * sizeof(float));
  qkv_ = Buffer(capacity_ * weights.layers[0].qkv.num_panels * kPanelColumns * sizeof(float));
  queries_ = Buffer(shape_.num_kv_heads * (capacity_ * shape_.group() + kTileRows) * cache_.key_lines() * 4);
  cosines_ = Buffer(capacity_ * half * sizeof(float));
  sines_ = Buffer(capacity_ * half * sizeof(float));
  const LayerWeights& layer = weights.layers[0];
  auto renew = [&](Activations& activations, const Linear& reader) {
    activations = Activations(reader.in_size, kernels_of(reader.format, path_).form);
    activations.reserve(capacity_);
  };
  renew(normed_, layer.qkv);
  renew(attended_, layer.attention_out);
  renew(gated_, layer.down);
  renew(sampled_, weights.head);
}

int64_t Model::weight_bytes() const {
  int64_t sum = weights.embedding.size() + weights.head.num_bytes();
  for (const LayerWeights& layer : weights.layers)
    for (const Linear* linear : {&layer.qkv, &layer.attention_out, &layer.gate_up, &layer.down})
      sum += linear->num_bytes();
  return sum;
}

int64_t Model::activation_bytes() const {
  int64_t sum = 0;
  for (const Buffer* buffer : {&residual_, &qkv_, &queries_, &cosines_, &sines_}) sum += buffer->size();
  for (const Activations* activations : {&normed_, &attended_, &gated_, &sampled_}) sum += activations->num_bytes();
  for (const Scratch& scratch : scratch_) sum += scratch.waiting.size() + scratch.attention.num_bytes();
  return sum;
}

void Model::run(int thread, const Batch& batch) {
  embed(thread, batch);
  for (int64_t index = 0; index < shape_.num_layers; ++index) {
    const LayerWeights& layer = weights.layers[index];
    const AddRows add_residual{residual_.as<float>(), shape_.hidden_stride()};
    normalize_rows(thread, layer.attention_norm, layer.qkv);
    apply(thread, layer.qkv, normed_, num_tokens_,
          StoreRows{qkv_.as<float>(), layer.qkv.num_panels * kPanelColumns});
    store_keys(thread, index);
    attend(thread, index);
    prepare_rows(thread, layer.attention_out, attended_);
    apply(thread, layer.attention_out, attended_, num_tokens_, add_residual);
    normalize_rows(thread, layer.mlp_norm, layer.gate_up);
    apply(thread, layer.gate_up, normed_, num_tokens_, GateRows{&gated_});
    prepare_rows(thread, layer.down, gated_);
    apply(thread, layer.down, gated_, num_tokens_, add_residual);
  }
  check(thread, batch);
  sample(thread, batch);
}

// Rows in chunks, panels of a chunk: that many items.
template <class Finish>
void Model::apply(int thread, const Linear& linear, Activations& input, int64_t num_rows, Finish finish) {
  if (num_rows == 0) return;
  const FormatKernels kernels = kernels_of(linear.format, path_);
  const int64_t num_chunk_rows = chunk_rows(linear, num_rows, kernels.unpacks_panels ? 1 : team_.size());
  auto* waiting = scratch_[thread].waiting.as<float>();
  team_.each(thread, ceil_div(num_rows, num_chunk_rows) * linear.num_panels, [&](int64_t item) {
    const int64_t panel = item % linear.num_panels, first_row = item / linear.num_panels * num_chunk_rows;
    const int64_t count = std::min(num_chunk_rows, num_rows - first_row);
    const float* bias = linear.bias.data() + panel * kPanelColumns;
    const __m512 left_bias = _mm512_loadu_ps(bias), right_bias = _mm512_loadu_ps(bias + kLanes);
    const FinishBlock finish_block = [&](int64_t row_block, const float* sums) {
      const int64_t row = row_block * kTileRows;
      finish(PanelSums{sums, panel, row, std::min(kTileRows, num_rows - row), left_bias, right_bias});
    };
    kernels.multiply({&linear, &input, panel, first_row / kTileRows, count,
                      linear.panel((panel + 1) % linear.num_panels), waiting, &finish_block});
  });
}

void Model::embed(int thread, const Batch& batch) {
  const int64_t size = shape_.hidden_size, stride = shape_.hidden_stride(), half = shape_.head_size / 2;
  team_.each(thread, static_cast<int64_t>(spans_.size()), [&](int64_t row) {
    const Span& span = spans_[row];
    batch.is_finite[row] = 1;
    for (int64_t index = 0; index < span.num_tokens; ++index) {
      const int64_t token = span.first_token + index;
      const uint16_t* from = weights.embedding.as<uint16_t>() + batch.ids[token] * size;
      float* to = residual_.as<float>() + token * stride;
      for (int64_t column = 0; column < stride; column += kLanes) {
        const int64_t left = std::clamp<int64_t>(size - column, 0, kLanes);
        const auto within = static_cast<__mmask16>((1u << left) - 1);
        _mm512_storeu_ps(to + column, from_bf16(_mm256_maskz_loadu_epi16(within, from + column)));
      }
      rotation_of(span.start + index, weights.frequencies.data(), half, cosines_.as<float>() + token * half,
                  sines_.as<float>() + token * half);
    }
  });
}

void Model::normalize_rows(int thread, const std::vector<float>& weight, const Linear& reader) {
  const PrepareKernel prepare = kernels_of(reader.format, path_).prepare;
  const int64_t stride = shape_.hidden_stride();
  team_.each(thread, ceil_div(num_tokens_, kTileRows), [&](int64_t block) {
    for (int64_t row = block * kTileRows; row < std::min((block + 1) * kTileRows, num_tokens_); ++row) {
      normalize(residual_.as<float>() + row * stride, weight.data(), shape_.hidden_size, stride, shape_.norm_epsilon,
                [&](int64_t column16, __m512 values) { normed_.store(row, column16, values); });
      if (prepare != nullptr) prepare(normed_, row, 1);  // while the row is in L1
    }
  });
}

// For formats that read rows in a form of their own.
void Model::prepare_rows(int thread, const Linear& reader, const Activations& rows) {
  const PrepareKernel prepare = kernels_of(reader.format, path_).prepare;
  if (prepare == nullptr) return;
  team_.each(thread, ceil_div(num_tokens_, kTileRows), [&](int64_t block) {
    prepare(rows, block * kTileRows, std::min(kTileRows, num_tokens_ - block * kTileRows));
  });
}

void Model::store_keys(int thread, int64_t layer) {
  team_.each(thread, static_cast<int64_t>(store_items_.size()), [&](int64_t index) {
    const StoreItem& item = store_items_[index];
    for (int64_t token = item.first; token < item.first + item.count; ++token) store_token(layer, *item.span, token);
  });
}

// Norms (Qwen3) and turns one token's queries and keys; keys and values go to the cache, queries wait for `attend`.
void Model::store_token(int64_t layer, const Span& span, int64_t index) {
  const LayerWeights& weights_of = weights.layers[layer];
  const int64_t token = span.first_token + index, position = span.start + index, size = shape_.head_size;
  const int64_t half = size / 2, lines = cache_.key_lines(), group = shape_.group();
  float* row = qkv_.as<float>() + token * weights_of.qkv.num_panels * kPanelColumns;
  const float *cosines = cosines_.as<float>() + token * half, *sines = sines_.as<float>() + token * half;
  auto turn = [&](float* head, const std::vector<float>& norm, int32_t* pairs) {
    if (!norm.empty())
      normalize(head, norm.data(), size, size, shape_.norm_epsilon,
                [&](int64_t column16, __m512 values) { _mm512_storeu_ps(head + column16 * kLanes, values); });
    rotate(head, cosines, sines, half, pairs);
  };
  for (int64_t head = 0; head < shape_.num_heads; ++head) {
    const int64_t query = head / group * (capacity_ * group + kTileRows) + token * group + head % group;
    turn(row + head * size, weights_of.query_norm, queries_.as<int32_t>() + query * lines);
  }
  float *keys = row + shape_.query_size(), *values = keys + shape_.num_kv_heads * size;
  int32_t pairs[kMaxKeyLines];
  for (int64_t head = 0; head < shape_.num_kv_heads; ++head) {
    turn(keys + head * size, weights_of.key_norm, pairs);
    cache_.store(layer, span.table[position / kBlockTokens], head, position % kBlockTokens, pairs,
                 values + head * size);
  }
}

void Model::attend(int thread, int64_t layer) {
  const LayerAttention shared{&cache_,
                              step_number_,
                              layer,
                              queries_.as<int32_t>(),
                              capacity_ * shape_.group() + kTileRows,
                              shape_.group(),
                              shape_.window,
                              1.0f / std::sqrt(static_cast<float>(shape_.head_size)),
                              &attended_};
  const AttentionKernel kernel = attention_of(path_);
  team_.each(thread, static_cast<int64_t>(attention_items_.size()), [&](int64_t item) {
    kernel(shared, attention_items_[item], scratch_[thread].attention);
  });
}

// Marks rows in which any token's hidden state is not finite.
void Model::check(int thread, const Batch& batch) {
  const int64_t stride = shape_.hidden_stride();
  team_.each(thread, batch.num_rows, [&](int64_t row) {
    const float* from = residual_.as<float>() + batch.row_begin[row] * stride;
    const float* end = residual_.as<float>() + batch.row_begin[row + 1] * stride;
    for (; from < end; from += kLanes)
      if (!are_finite(_mm512_loadu_ps(from))) batch.is_finite[row] = 0;
  });
}

void Model::sample(int thread, const Batch& batch) {
  const PrepareKernel prepare = kernels_of(weights.head.format, path_).prepare;
  const int64_t stride = shape_.hidden_stride(), count = static_cast<int64_t>(sampled_tokens_.size());
  team_.each(thread, count, [&](int64_t row) {
    normalize(residual_.as<float>() + sampled_tokens_[row] * stride, weights.final_norm.data(), shape_.hidden_size,
              stride, shape_.norm_epsilon,
              [&](int64_t column16, __m512 values) { sampled_.store(row, column16, values); });
    if (prepare != nullptr) prepare(sampled_, row, 1);
  });
  apply(thread, weights.head, sampled_, count, StoreRows{batch.logits, logits_stride()});
  team_.each(thread, count, [&](int64_t row) {
    batch.likeliest[row] = index_of_highest(batch.logits + row * logits_stride(), batch.vocab_size);
  });
}

}  // namespace pagemesh
