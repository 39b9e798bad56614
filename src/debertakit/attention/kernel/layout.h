// Rows packed into panels for the products, and blocks of queries or keys.

// Pack the transpose: panel n holds rows 16n .. 16n + 15 as [d x 16]. Missing rows become zeros.
void pack_columns(const float* rows, int64_t stride, int count, int d, float* panels) {
  for (int r = 0; r < count; r += 8) {
    float* to = panels + r / kPanel * kPanel * d + r % kPanel;
    for (int c = 0; c < d; c += 8) {
      F8 x[8];
      for (int t = 0; t < 8; t++) x[t] = r + t < count ? load<F8>(rows + (r + t) * stride + c) : F8{};
      transpose(x);
      for (int t = 0; t < 8; t++) store(to + (c + t) * kPanel, x[t]);
    }
  }
  if ((count + 7) / 8 % 2) {  // the second half of the last panel
    float* to = panels + count / kPanel * kPanel * d + 8;
    for (int c = 0; c < d; c++) store(to + c * kPanel, F8{});
  }
}

// Pack without transposing: panel n holds columns 16n .. 16n + 15 of all rows as [padded rows x 16], padded with zeros.
void pack_rows(const float* rows, int64_t stride, int count, int padded, int d, float* panels) {
  for (int c = 0; c < d; c += 8) {
    float* to = panels + c / kPanel * kPanel * padded + c % kPanel;
    for (int r = 0; r < count; r++) store(to + r * kPanel, load<F8>(rows + r * stride + c));
    for (int r = count; r < padded; r++) store(to + r * kPanel, F8{});
  }
  if (d % kPanel) {
    float* to = panels + d / kPanel * kPanel * padded + 8;
    for (int r = 0; r < padded; r++) store(to + r * kPanel, F8{});
  }
}

#ifdef ISA_BF16
KERNEL_INLINE __m256i load16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// pack_rows for bf16: a word of a panel holds rows 2r and 2r + 1 of one column. d is a multiple of 16.
void pack_row_pairs(const uint16_t* rows, int64_t stride, int count, int padded, int d, float* panels) {
  for (int c = 0; c < d; c += kPanel) {
    float* to = panels + c * padded / 2;
    for (int r = 0; r < padded; r += 2) {
      const __m256i even = r < count ? load16(rows + r * stride + c) : __m256i{};
      const __m256i odd = r + 1 < count ? load16(rows + (r + 1) * stride + c) : __m256i{};
      store(to + r / 2 * kPanel, _mm512_cvtepu16_epi32(even) | _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
  }
}

// Round `count` floats (a multiple of 16) to bf16. `to` may be the same memory.
void narrow(const float* from, int count, void* to) {
  for (int i = 0; i < count; i += 16)
    store(static_cast<char*>(to) + i * 2, _mm512_cvtneps_pbh((__m512)load<F>(from + i)));
}
#endif

// Up to kBlock neighbouring queries or keys of one sequence.
struct Block {
  int first, count, filled;              // filled: count rounded up to kLanes
  int32_t position[kBlock + kLanes];     // continues with consecutive positions after count
  int least, most;                       // smallest and largest position, padding included
  bool consecutive[kBlock / kLanes + 1];  // for each group of kLanes positions
  Strips strips;

  Block(const int32_t* positions, int first, int count) : first(first), count(count), strips(count) {
    constexpr int32_t kLast = std::numeric_limits<int32_t>::max();
    filled = static_cast<int>(round_up(count, kLanes));
    for (int i = 0; i < filled; i++)
      position[i] = i < count ? positions[first + i] : position[i - 1] + (position[i - 1] < kLast);
    least = most = position[0];
    for (int i = 0; i < filled; i++) {
      least = position[i] < least ? position[i] : least;
      most = position[i] > most ? position[i] : most;
    }
    for (int i = 0; i < filled; i += kLanes) {
      bool ok = true;
      for (int t = 1; t < kLanes; t++) ok &= position[i + t] == int64_t(position[i]) + t;
      consecutive[i / kLanes] = ok;
    }
  }
};

