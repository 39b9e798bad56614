// The arguments of a call, and the constants that every file of the kernel uses.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only
#endif
#define KERNEL_INLINE inline __attribute__((always_inline))

namespace {

struct Matrix {  // [rows, heads, head_size], last dimension contiguous; strides in 4-byte words (a float or two bf16)
  float* data;
  int64_t row, head;
  float* at(int64_t r, int64_t h) const { return data + r * row + h * head; }
};

// The arguments from Python, packed as 8-byte fields in this order (cpu.py: _CALL). cpu.py refuses a library that was
// built from other sources.
struct Problem {
  Matrix q, k, v, pos_k, pos_q, out;           // data is null for a missing table
  Matrix d_out, d_q, d_k, d_v, d_pos_k, d_pos_q;  // backward only; d_pos_* may be null: not computed
  float* lse;                                  // [heads, total queries], natural logarithm; may be null in forward
  const int32_t *q_offsets, *k_offsets, *q_positions, *k_positions, *visible, *lookup;
  int64_t sequences, heads, head_size, total_queries, total_keys, table_rows, reach;
  double scale, dropout;
  int64_t drop_below, seed;  // a weight is dropped if its 32-bit hash is less than drop_below
  int64_t threads;
  int64_t bf16;  // forward only: q, k, v, the tables and out are bf16, not fp32
  void (*gomp_parallel)(void (*)(void*), void*, unsigned, unsigned);
};

enum Status { kOk = 0, kOutOfMemory = 1, kRowOutsideTable = 2, kBadOffsets = 3 };  // cpu.py: _ERRORS

constexpr int kBlock = 256;     // most queries or keys of a tile; measured: 128 is equal or slightly slower, 64 slower
constexpr int kPanel = 16;      // columns of a packed panel, the width of the product kernel
constexpr int kMostLanes = 16;  // floats in the widest vector of any instruction set

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

}  // namespace
