// Weights in groups of 32 along K, in 4 bits (w = scale * code + minimum) or 8 (w = scale * code). They stay so in
// memory; a panel is turned into bf16 tiles just before its product, which is then that of bf16 weights, bit for bit.
#pragma once

#include <cstdint>

#include "linear.hpp"
#include "weight_stream.hpp"

namespace pagemesh {

// What a panel holds for one group: 32 float16 scales, for 4 bits 32 float16 minima, then codes in the order in which
// tiles are made: [left, right][16 pairs along K][columns 0-7, 8-15][column][2].
struct GroupLayout {
  int64_t bits;

  int64_t codes_begin() const { return bits == 4 ? 128 : 64; }
  int64_t num_bytes() const { return codes_begin() + kPanelColumns * kTileDepth * bits / 8; }
};

inline GroupLayout layout_of(const Linear& linear) { return {linear.format == Format::int4 ? 4 : 8}; }

// Turns a panel into the bf16 panel that pack_bf16 would have made of its weights.
using UnpackKernel = void (*)(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles);
void unpack_groups_avx512_bf16(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles);
void unpack_groups_avx512(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles);

// Unpacks a panel once for all rows of the task, then multiplies as bf16 weights are.
template <PanelKernel multiply, UnpackKernel unpack>
void multiply_unpacked(const PanelTask& task) {
  thread_local Linear unpacked;
  unpacked.num_panels = 1;
  unpacked.in_size = task.linear->in_size;
  unpacked.num_k_steps = task.linear->num_k_steps;
  unpacked.panel_bytes = unpacked.num_k_steps * 2 * kTileBytes;
  if (unpacked.weights.size() < unpacked.panel_bytes) unpacked.weights = Buffer(unpacked.panel_bytes);
  unpack(*task.linear, task.panel, task.next, unpacked.weights.as<uint16_t>());
  PanelTask plain = task;
  plain.linear = &unpacked, plain.panel = 0, plain.next = nullptr;
  multiply(plain);
}

void multiply_groups_amx(const PanelTask& task);

}  // namespace pagemesh
