// Matrix products of a few rows with packed panels of kPanel columns.
//
// A and B consist of 4-byte words: floats, or (T = Bf16) two neighbouring bf16 along the depth. Sums are fp32.

struct Bf16 {};
template <class T>
constexpr int64_t kPerWord = 1;
template <>
constexpr int64_t kPerWord<Bf16> = 2;

template <class T>
KERNEL_INLINE void multiply_add(V& sum, float a, const V& b) {
#ifdef ISA_BF16
  if constexpr (kPerWord<T> == 2) {
    const __m512 all = _mm512_set1_ps(a);
    sum = (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)all, (__m512bh)b);
    return;
  }
#endif
  sum += a * b;
}

// Full strips multiply this many panels at once, so that each value of A is read for at least two vectors of B. With one
// vector, reading A takes longer than multiplying.
constexpr int kPair = kPanel == kVector ? 2 : 1;

// C [M x 16 P] (+)= A [M x depth] B [depth x 16 P]. A is stored by rows, or by columns when kTransposed. The P panels of B
// are `panel_stride` words apart. depth in words.
template <class T, int M, int P, bool kTransposed, bool kAdd>
KERNEL_INLINE void micro(const float* a, int64_t lda, const float* b, int64_t panel_stride, int depth, float* c,
                         int64_t ldc) {
  constexpr int N = P * kPanel / kVector, kPerPanel = kPanel / kVector;
  V acc[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) acc[m][n] = kAdd ? load<V>(c + m * ldc + n * kVector) : V{};
  for (int i = 0; i < depth; i++) {
    V row[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) row[n] = load<V>(b + n / kPerPanel * panel_stride + n % kPerPanel * kVector);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const float s = kTransposed ? a[m] : a[m * lda];
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) multiply_add<T>(acc[m][n], s, row[n]);
    }
    a += kTransposed ? lda : 1;
    b += kPanel;
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) store(c + m * ldc + n * kVector, acc[m][n]);
}

// The same for 1 to kStrip rows and one panel.
template <class T, bool kTransposed, bool kAdd, int M = kStrip>
void strip(int rows, const float* a, int64_t lda, const float* b, int depth, float* c, int64_t ldc) {
  if constexpr (M > 1)
    if (rows < M) return strip<T, kTransposed, kAdd, M - 1>(rows, a, lda, b, depth, c, ldc);
  micro<T, M, 1, kTransposed, kAdd>(a, lda, b, 0, depth, c, ldc);
}

// The same for 1 to kStrip rows and any number of panels.
template <class T, bool kTransposed, bool kAdd>
void strip(int rows, const float* a, int64_t lda, const float* b, int64_t panel_stride, int depth, int panels, float* c,
           int64_t ldc) {
  int n = 0;
  if constexpr (kPair > 1)
    for (; rows == kStrip && n + kPair <= panels; n += kPair)
      micro<T, kStrip, kPair, kTransposed, kAdd>(a, lda, b + n * panel_stride, panel_stride, depth, c + n * kPanel, ldc);
  for (; n < panels; n++)
    strip<T, kTransposed, kAdd>(rows, a, lda, b + n * panel_stride, depth, c + n * kPanel, ldc);
}

// Split of rows into strips of kStrip. A remainder between kStrip and 2 kStrip is halved, to avoid a tiny strip.
struct Strips {
  static constexpr int kMost = kBlock / kStrip + 2;
  int count = 0;
  int start[kMost + 1];

  explicit Strips(int rows) {
    int at = 0;
    while (rows - at >= 2 * kStrip || rows - at == kStrip) add(at, kStrip);
    if (rows - at > kStrip) add(at, (rows - at + 1) / 2);
    if (rows > at) add(at, rows - at);
    start[count] = rows;
  }
  int size(int s) const { return start[s + 1] - start[s]; }

 private:
  void add(int& at, int rows) {
    start[count++] = at;
    at += rows;
  }
};

// C [rows x 16 * panels] (+)= A B. B consists of panels of 16 columns, `panel_stride` words apart.
template <class T, bool kTransposed, bool kAdd>
void product(const Strips& strips, const float* a, int64_t lda, const float* b, int64_t panel_stride, int depth,
             int panels, float* c, int64_t ldc) {
  for (int n = 0; n < panels; n += kPair)
    for (int s = 0; s < strips.count; s++) {
      const int m = strips.start[s];
      strip<T, kTransposed, kAdd>(strips.size(s), a + (kTransposed ? m : m * lda), lda, b + n * panel_stride,
                                  panel_stride, depth, std::min(kPair, panels - n), c + m * ldc + n * kPanel, ldc);
    }
}
