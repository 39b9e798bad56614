// Vectors of kLanes floats: exponential, sums, transposes and permutations.

typedef float V __attribute__((vector_size(kVector * 4)));  // one register, for the product kernel
typedef float F __attribute__((vector_size(kLanes * 4)));   // along keys (forward) or distances
typedef int32_t I __attribute__((vector_size(kLanes * 4)));
typedef uint32_t U __attribute__((vector_size(kLanes * 4)));
typedef float F8 __attribute__((vector_size(32)));  // along the head size, which is a multiple of 8
typedef uint32_t U8 __attribute__((vector_size(32)));

template <class T>
KERNEL_INLINE T load(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
KERNEL_INLINE void store(void* p, const T& v) {
  std::memcpy(p, &v, sizeof v);
}

// 2^x for x <= 0 or slightly above. Results below 2^-126 become 0, also for -inf. NaN stays NaN. Relative error 1e-7.
KERNEL_INLINE void exp2_inplace(F& x) {
  const F floor = F{} - 127.0f;
  x = x < floor ? floor : x;
  const F shifted = x + 12582912.0f;  // 1.5 * 2^23: rounds to an integer, stored in the low bits
  const F f = x - (shifted - 12582912.0f);
  F y = f * 0.001327647058f + 0.009675541323f;
  y = y * f + 0.05550713278f;
  y = y * f + 0.2402211972f;
  y = y * f + 0.6931469671f;
  y = y * f + 1.000000072f;
  const I power = (load<I>(&shifted) << 23) + (127 << 23);
  x = y * load<F>(&power);
}

KERNEL_INLINE float sum8(const F8& v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

KERNEL_INLINE float sum(const F& v) {
  const float* lanes = reinterpret_cast<const float*>(&v);
  F8 total = load<F8>(lanes);
  for (int t = 8; t < kLanes; t += 8) total += load<F8>(lanes + t);
  return sum8(total);
}

KERNEL_INLINE float max(const F& v) {
  float most = v[0];
  for (int t = 1; t < kLanes; t++) most = v[t] > most ? v[t] : most;
  return most;
}

// ---- shuffles ----

// Lane t of the result is lane Pattern::lane<n>(t) of the 2n lanes of a and b.
template <class Pattern, class T, int... t>
KERNEL_INLINE T shuffled(const T& a, const T& b, std::integer_sequence<int, t...>) {
  constexpr int n = sizeof...(t);
#if defined(__clang__)
  return __builtin_shufflevector(a, b, Pattern::template lane<n>(t)...);
#else
  return __builtin_shuffle(a, b, decltype(a < b){Pattern::template lane<n>(t)...});
#endif
}
template <class Pattern, class T>
KERNEL_INLINE T shuffle(const T& a, const T& b) {
  return shuffled<Pattern>(a, b, std::make_integer_sequence<int, sizeof(T) / sizeof(float)>{});
}

struct Reversed {
  template <int n>
  static constexpr int lane(int t) { return n - 1 - t; }
};
template <int kBy>
struct MovedUp {  // lane t of b goes to lane t + kBy; the first kBy lanes come from a
  template <int n>
  static constexpr int lane(int t) { return t < kBy ? t : n + t - kBy; }
};
template <int kHalf>
struct Interleaved {  // in each group of four lanes: a0 b0 a1 b1, or a2 b2 a3 b3
  template <int n>
  static constexpr int lane(int t) { return t / 4 * 4 + 2 * kHalf + t % 4 / 2 + t % 2 * n; }
};
template <int kHalf>
struct Pairs {  // in each group of four lanes: a0 a1 b0 b1, or a2 a3 b2 b3
  template <int n>
  static constexpr int lane(int t) { return t / 4 * 4 + 2 * kHalf + t % 2 + t % 4 / 2 * n; }
};
template <int kOdd>
struct Quads {  // the even groups of four lanes of a and then of b, or the odd groups
  template <int n>
  static constexpr int lane(int t) { return t / (n / 2) * n + t % (n / 2) / 4 * 8 + 4 * kOdd + t % 4; }
};

// Transpose n vectors of n lanes, n = 8 or 16.
template <class T>
KERNEL_INLINE void transpose(T* r) {
  constexpr int n = sizeof(T) / sizeof(float);
  T t[n], s[n];
  for (int i = 0; i < n; i += 2) {
    t[i] = shuffle<Interleaved<0>>(r[i], r[i + 1]);
    t[i + 1] = shuffle<Interleaved<1>>(r[i], r[i + 1]);
  }
  for (int i = 0; i < n; i += 4) {
    s[i] = shuffle<Pairs<0>>(t[i], t[i + 2]);
    s[i + 1] = shuffle<Pairs<1>>(t[i], t[i + 2]);
    s[i + 2] = shuffle<Pairs<0>>(t[i + 1], t[i + 3]);
    s[i + 3] = shuffle<Pairs<1>>(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    if constexpr (n == 8) {
      r[i] = shuffle<Quads<0>>(s[i], s[i + 4]);
      r[i + 4] = shuffle<Quads<1>>(s[i], s[i + 4]);
    } else {
      const T even[2] = {shuffle<Quads<0>>(s[i], s[i + 4]), shuffle<Quads<0>>(s[i + 8], s[i + 12])};
      const T odd[2] = {shuffle<Quads<1>>(s[i], s[i + 4]), shuffle<Quads<1>>(s[i + 8], s[i + 12])};
      r[i] = shuffle<Quads<0>>(even[0], even[1]);
      r[i + 4] = shuffle<Quads<0>>(odd[0], odd[1]);
      r[i + 8] = shuffle<Quads<1>>(even[0], even[1]);
      r[i + 12] = shuffle<Quads<1>>(odd[0], odd[1]);
    }
  }
}

// Lane t = values[index[t]].
KERNEL_INLINE F permute(const F& values, const uint8_t* index) {
#if defined(ISA_AVX512)
  const __m512i lanes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(index)));
  return (F)_mm512_permutexvar_ps(lanes, (__m512)values);
#elif defined(ISA_AVX2)
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(index)));
  return (F)_mm256_permutevar8x32_ps((__m256)values, lanes);
#elif defined(ISA_NEON)
  const uint8x16x2_t bytes = load<uint8x16x2_t>(&values);
  const uint8x16_t offset = vreinterpretq_u8_u32(vdupq_n_u32(0x03020100));  // the four bytes of a float
  uint8x16_t four = vcombine_u8(vshl_n_u8(vld1_u8(index), 2), vdup_n_u8(0));
  four = vzip1q_u8(four, four);
  const uint8x16_t low = vaddq_u8(vzip1q_u8(four, four), offset), high = vaddq_u8(vzip2q_u8(four, four), offset);
  const uint8x16_t out[2] = {vqtbl2q_u8(bytes, low), vqtbl2q_u8(bytes, high)};
  return load<F>(out);
#else
  F out;
  for (int t = 0; t < kLanes; t++) out[t] = values[index[t]];
  return out;
#endif
}

// The transpose of reading with `permute`: rows[first_row + up[t]] += values[t]. Sums over runs of lanes with one row
// are differences of prefix sums.
KERNEL_INLINE void fold(float* rows, const Groups& g, F values) {
  if (!g.exact) {
    const F zeros = {};
    values += shuffle<MovedUp<1>>(zeros, values);
    values += shuffle<MovedUp<2>>(zeros, values);
    values += shuffle<MovedUp<4>>(zeros, values);
    if constexpr (kLanes == 16) values += shuffle<MovedUp<8>>(zeros, values);
    const F ends = permute(values, g.last);
    values = ends - shuffle<MovedUp<1>>(zeros, ends);
  }
  float* at = rows + g.first_row;
  store(at, load<F>(at) + values);
}
