// The shapes that all products here are cut into.
#pragma once

#include <cstdint>

namespace pagemesh {

constexpr int64_t kTileRows = 16;    // rows of activations in a tile
constexpr int64_t kTileDepth = 32;   // bf16 operands along the sum in a tile: 64 bytes
constexpr int64_t kSplitDepth = 64;  // int8 operands along the sum in a tile: 64 bytes
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kPanelColumns = 32;  // output columns that one thread computes at a time

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace pagemesh
