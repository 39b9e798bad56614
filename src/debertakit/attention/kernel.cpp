// Disentangled attention on the CPU, forward and backward, without a length^2 tensor.
//
//     score(i, j) = (q_i . k_j  +  q_i . pos_k[r]  +  k_j . pos_q[r]) * scale        r = row(q_pos_i - k_pos_j)
//     out_i       = sum_j dropout(softmax_j(score))(i, j) v_j
//
// This file computes the same equation as `reference.py`, in blocks that fit into the cache.
//
// A forward task is one head of one sequence, or of a part of its queries. A backward task is one head of a group of
// sequences. Both iterate over tiles of at most kBlock queries x kBlock keys. For each tile:
//
//   1. S   = Q K^T              content scores                          [queries x keys]
//      C2P = Q pos_k^T          only the table rows that the tile uses  [queries x rows]
//      P2C = K pos_q^T          only the table rows that the tile uses  [keys x rows]
//      All three are small matrix products. A strip of six queries (keys) uses few more table rows than there are keys
//      (queries) in the tile. It uses fewer if far distances share a row, and only one if all distances are past the
//      last bucket. So a position term costs about as much as the content term at near distances, and less at far ones.
//   2. S += C2P and P2C, expanded from rows to distances. Eight neighbouring keys have eight neighbouring distances,
//      which use at most eight neighbouring rows. So the expansion is one load and one permutation, which depends only
//      on the distance (`Groups`). P2C is contiguous along queries, so it is added through 8 x 8 transposed tiles.
//   3. Forward: online softmax, O += P V. Backward: P from the saved logsumexp, dS = P * (dO V^T - delta). Then dS is
//      folded from distances back to rows (the transpose of step 2: sums over runs), and seven products compute the
//      gradients.
//
// Queries and keys may have any positions. Groups of eight positions that are not consecutive, and lookups that skip
// rows, take a scalar path through the same buffers.
//
// Determinism: forward results do not depend on the number of threads. Backward sums the gradients of the position
// tables over fixed groups of sequences, with one buffer per group, in a fixed order. So backward results are
// bit-identical for the same thread count.
//
// The file includes itself once per instruction set, each time in another namespace. `attention_forward` and
// `attention_backward` select the instruction set at run time. The kernel uses torch's threads: the caller passes the
// address of GOMP_parallel in torch's OpenMP runtime. Without it, the fallback is std::thread.

#ifndef DEBERTAKIT_KERNEL_BODY

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only
#endif
#define KERNEL_INLINE inline __attribute__((always_inline))
#define KERNEL_EXPORT __attribute__((visibility("default")))

namespace {

struct Matrix {  // [rows, heads, head_size], last dimension contiguous; strides in floats
  float* data;
  int64_t row, head;
  float* at(int64_t r, int64_t h) const { return data + r * row + h * head; }
};

// The arguments from Python, packed as 8-byte fields in this order (cpu.py: _CALL).
struct Problem {
  Matrix q, k, v, pos_k, pos_q, out;           // data is null for a missing table
  Matrix d_out, d_q, d_k, d_v, d_pos_k, d_pos_q;  // backward only; d_pos_* may be null: not computed
  float* lse;                                  // [heads, total queries], natural logarithm; may be null in forward
  const int32_t *q_offsets, *k_offsets, *q_positions, *k_positions, *visible, *lookup;
  int64_t sequences, heads, head_size, total_queries, total_keys, table_rows, reach;
  double scale, dropout;
  int64_t drop_below, seed;  // a weight is dropped if its 32-bit hash is less than drop_below
  int64_t threads;
  void (*gomp_parallel)(void (*)(void*), void*, unsigned, unsigned);
};

enum Status { kOk = 0, kOutOfMemory = 1, kRowOutsideTable = 2, kBadOffsets = 3 };  // cpu.py: _ERRORS

constexpr int kBlock = 256;  // most queries or keys of a tile; measured: 128 is equal or slightly slower, 64 slower
constexpr int kPanel = 16;   // columns of a packed panel, the width of the product kernel
constexpr int kLanes = 8;    // floats per vector in the elementwise loops

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Bump allocator of one thread, reset for each task. Small arenas are kept between calls, because new pages cost more
// than the attention of a short sequence.
class Arena {
 public:
  ~Arena() { std::free(base_); }
  bool reserve(size_t bytes) {
    used_ = 0;
    if (bytes <= size_) return true;
    std::free(base_);  // no need to keep the contents: all tasks of a call reserve the same size
    size_ = round_up(bytes, 4096);
    base_ = static_cast<char*>(std::aligned_alloc(64, size_));
    if (!base_) size_ = 0;
    return base_ != nullptr;
  }
  float* floats(int64_t count) {
    float* p = reinterpret_cast<float*>(base_ + used_);
    used_ += bytes(count);
    return p;
  }
  void trim() {
    if (size_ <= kKeep) return;
    std::free(base_);
    base_ = nullptr;
    size_ = 0;
  }
  static size_t bytes(int64_t count) { return round_up(count * sizeof(float), 64); }

 private:
  static constexpr size_t kKeep = 8 << 20;
  char* base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};
thread_local Arena arena;

// The table rows of eight neighbouring distances lo .. lo + 7.
struct Groups {
  int32_t first_row;        // row of distance lo
  uint8_t up[kLanes];       // lane t reads first_row + up[t], distances ascending
  uint8_t down[kLanes];     // the same, distances descending
  uint8_t last[kLanes];     // last[u]: the last lane whose row is at most first_row + u (ascending)
  bool exact;               // eight different, neighbouring rows
  bool exact_square;        // the same for lo .. lo + 14, all distances of eight queries x eight keys
};

// The distance-to-row rule, prepared once per call for use in the tiles.
struct Rule {
  const int32_t* lookup;
  int reach;
  bool monotone = true;  // rows never decrease with the distance
  bool smooth = true;    // monotone, and eight neighbouring distances use at most eight neighbouring rows (`groups`)
  bool gentle = true;    // rows grow by at most one per distance
  int first = 0, count = 0;      // rows that this call uses; both are multiples of kPanel
  std::vector<Groups> groups;    // index: lo - lowest_group, clamped to the ends
  int64_t lowest_group = 0;

  int row(int64_t x) const {
    const int64_t r = reach;
    return lookup[(x < -r ? -r : x > r ? r : x) + r];
  }
  const Groups& group(int64_t lo) const {
    const int64_t at = lo - lowest_group, last = static_cast<int64_t>(groups.size()) - 1;
    return groups[at < 0 ? 0 : at > last ? last : at];
  }
};

// A part of one head's work: the queries first .. last - 1 of one sequence.
struct Share {
  int sequence, first, last;
};

struct Plan {
  const Problem& p;
  Rule rule;
  int64_t d_wide;            // head size rounded up to a multiple of kPanel
  int longest_q = 0, longest_k = 0;
  std::vector<Share> shares;    // forward: tasks are shares x heads
  std::vector<int> unit_first;  // backward: unit u has sequences unit_first[u] .. unit_first[u + 1] - 1
  float* unit_grads = nullptr;  // backward: [heads, units, 2, rule.count, d_wide]

  explicit Plan(const Problem& problem) : p(problem), d_wide(round_up(problem.head_size, kPanel)) {}

  bool has_positions() const { return p.pos_k.data || p.pos_q.data; }
  int units() const { return static_cast<int>(unit_first.size()) - 1; }
  float* unit_grad(int64_t head, int unit, int which) const {
    return unit_grads + ((head * units() + unit) * 2 + which) * rule.count * d_wide;
  }
};

bool build_rule(Plan& plan) {
  Rule& rule = plan.rule;
  const Problem& p = plan.p;
  rule.lookup = p.lookup;
  rule.reach = static_cast<int>(p.reach);
  if (!plan.has_positions()) return true;
  int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
  for (int64_t s = 0; s < p.sequences; s++) {
    const int32_t *q = p.q_positions + p.q_offsets[s], *q_end = p.q_positions + p.q_offsets[s + 1];
    const int32_t *k = p.k_positions + p.k_offsets[s], *k_end = p.k_positions + p.k_offsets[s + 1];
    if (q >= q_end || k >= k_end) continue;
    const auto q_range = std::minmax_element(q, q_end);
    const auto k_range = std::minmax_element(k, k_end);
    // The last block is padded to a multiple of eight with consecutive positions, which read table rows too.
    const int64_t q_filling = round_up(q_end - q, kLanes) - (q_end - q);
    const int64_t k_filling = round_up(k_end - k, kLanes) - (k_end - k);
    low = std::min<int64_t>(low, int64_t(*q_range.first) - *k_range.second - k_filling);
    high = std::max<int64_t>(high, int64_t(*q_range.second) + q_filling - *k_range.first);
  }
  if (low > high) return true;
  low = std::min<int64_t>(std::max<int64_t>(low, -rule.reach), rule.reach);
  high = std::min<int64_t>(std::max<int64_t>(high, -rule.reach), rule.reach);
  int least = rule.row(low), most = least;
  for (int64_t x = low; x <= high; x++) {
    const int r = rule.row(x);
    least = std::min(least, r);
    most = std::max(most, r);
    rule.monotone &= x == low || rule.row(x - 1) <= r;
    rule.smooth &= rule.row(std::min<int64_t>(x + 7, high)) - r <= 7;
    rule.gentle &= x == low || r - rule.row(x - 1) <= 1;
  }
  if (least < 0 || most >= p.table_rows) return false;
  rule.smooth &= rule.monotone;
  rule.first = least / kPanel * kPanel;
  rule.count = static_cast<int>(round_up(most + 1, kPanel)) - rule.first;
  if (!rule.smooth) return true;
  rule.lowest_group = low - 7;
  rule.groups.resize(high - low + 8);
  for (int64_t lo = low - 7; lo <= high; lo++) {
    Groups& g = rule.groups[lo - rule.lowest_group];
    int rows[kLanes];
    for (int t = 0; t < kLanes; t++) rows[t] = rule.row(std::min(std::max(lo + t, low), high));
    g.first_row = rows[0];
    for (int t = 0; t < kLanes; t++) {
      g.up[t] = static_cast<uint8_t>(rows[t] - rows[0]);
      g.down[kLanes - 1 - t] = g.up[t];
    }
    for (int u = 0, t = 0; u < kLanes; u++) {
      while (t < kLanes && g.up[t] <= u) t++;
      g.last[u] = static_cast<uint8_t>(t - 1);
    }
    g.exact = g.up[kLanes - 1] == kLanes - 1;
    g.exact_square = lo >= low && lo + 14 <= high && rule.row(lo + 14) == rows[0] + 14 && rule.gentle;
  }
  return true;
}

// ---- threads ----

struct Team {
  void (*work)(const Plan&, int64_t);
  const Plan* plan;
  int64_t tasks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
};
thread_local std::atomic<bool>* task_failed = nullptr;  // set by a task that runs out of memory
thread_local int64_t packed_head = -1;  // the head whose packed position tables are at the front of this thread's arena

void run_member(void* data) {
  Team& team = *static_cast<Team*>(data);
  task_failed = &team.failed;
  packed_head = -1;
  for (int64_t task; (task = team.next.fetch_add(1, std::memory_order_relaxed)) < team.tasks;)
    team.work(*team.plan, task);
  arena.trim();
}

Status run_tasks(const Plan& plan, int64_t tasks, int64_t threads, void (*work)(const Plan&, int64_t)) {
  Team team;
  team.work = work;
  team.plan = &plan;
  team.tasks = tasks;
  threads = std::min(threads, tasks);
  if (threads <= 1) {
    run_member(&team);
  } else if (plan.p.gomp_parallel) {
    plan.p.gomp_parallel(run_member, &team, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; t++) others.emplace_back(run_member, &team);
    run_member(&team);
    for (std::thread& t : others) t.join();
  }
  return team.failed ? kOutOfMemory : kOk;
}

}  // namespace

#define DEBERTAKIT_KERNEL_BODY

namespace {
namespace baseline {
#if defined(__aarch64__)
constexpr int kStrip = 6;  // 32 vector registers
#else
constexpr int kStrip = 3;
#endif
constexpr int kVector = 4;
#include "kernel.cpp"
}  // namespace baseline
}  // namespace

#if defined(__x86_64__)
#define KERNEL_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace {
namespace avx2 {
constexpr int kStrip = 6;
constexpr int kVector = 8;
#include "kernel.cpp"
}  // namespace avx2
}  // namespace
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace {

std::atomic<bool> only_baseline{false};

bool has_avx2() {
#if defined(__x86_64__)
  static const bool yes = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return yes && !only_baseline;
#else
  return false;
#endif
}

int64_t pairs(const Problem& p, int64_t s) {
  return int64_t(p.q_offsets[s + 1] - p.q_offsets[s]) * (p.k_offsets[s + 1] - p.k_offsets[s]);
}

Status prepare(Plan& plan) {
  const Problem& p = plan.p;
  if (p.q_offsets[0] < 0 || p.k_offsets[0] < 0 || p.q_offsets[p.sequences] > p.total_queries ||
      p.k_offsets[p.sequences] > p.total_keys)
    return kBadOffsets;
  for (int64_t s = 0; s < p.sequences; s++) {
    if (p.q_offsets[s] > p.q_offsets[s + 1] || p.k_offsets[s] > p.k_offsets[s + 1]) return kBadOffsets;
    plan.longest_q = std::max(plan.longest_q, p.q_offsets[s + 1] - p.q_offsets[s]);
    plan.longest_k = std::max(plan.longest_k, p.k_offsets[s + 1] - p.k_offsets[s]);
  }
  return build_rule(plan) ? kOk : kRowOutsideTable;
}

// Waking a thread takes a few microseconds, about as long as computing this many scores.
constexpr int64_t kCellsWorthAThread = 1024;

int64_t useful_threads(const Problem& p) {
  int64_t cells = 0;
  for (int64_t s = 0; s < p.sequences; s++) cells += pairs(p, s);
  return std::max<int64_t>(1, std::min(p.threads, cells * p.heads / kCellsWorthAThread));
}

}  // namespace

extern "C" {

// Name of the instruction set in use: "avx2" or "baseline".
KERNEL_EXPORT const char* attention_isa() { return has_avx2() ? "avx2" : "baseline"; }

// Hash of `bytes` bytes, to detect changed weights. Two different contents have the same hash with probability 2^-64.
KERNEL_EXPORT uint64_t content_hash(const void* data, int64_t bytes) {
#if defined(__x86_64__)
  if (has_avx2()) return avx2::content_hash(static_cast<const char*>(data), bytes);
#endif
  return baseline::content_hash(static_cast<const char*>(data), bytes);
}

// For tests: use only the baseline instruction set.
KERNEL_EXPORT void attention_use_baseline(int yes) { only_baseline = yes != 0; }

KERNEL_EXPORT int attention_forward(const Problem* problem) {
  Plan plan(*problem);
  if (const Status status = prepare(plan)) return status;
  const Problem& p = *problem;
  const int64_t threads = useful_threads(p);
  // Split a long sequence among threads only if there are too few (sequence, head) pairs, because each share packs the
  // keys and values of its sequence again.
  const int64_t wanted = (4 * threads + p.heads - 1) / p.heads;
  for (int64_t s = 0; s < p.sequences; s++) {
    const int queries = p.q_offsets[s + 1] - p.q_offsets[s];
    int step = queries;
    if (threads > 1 && p.sequences < wanted)
      step = static_cast<int>(round_up(std::max<int64_t>(queries * p.sequences / wanted, 1), kBlock));
    for (int first = 0; first < queries; first += step)
      plan.shares.push_back({static_cast<int>(s), first, std::min(first + step, queries)});
  }
  const int64_t tasks = static_cast<int64_t>(plan.shares.size()) * p.heads;
#if defined(__x86_64__)
  if (has_avx2()) return run_tasks(plan, tasks, threads, avx2::forward_task);
#endif
  return run_tasks(plan, tasks, threads, baseline::forward_task);
}

KERNEL_EXPORT int attention_backward(const Problem* problem) {
  Plan plan(*problem);
  if (const Status status = prepare(plan)) return status;
  const Problem& p = *problem;
  const int64_t threads = useful_threads(p);
  // The sequences of a unit share one gradient buffer per head. Units are balanced by their number of scores.
  int64_t units = std::min<int64_t>(std::max<int64_t>((3 * threads + p.heads - 1) / p.heads, 1), p.sequences);
  if (threads == 1) units = std::min<int64_t>(1, p.sequences);
  int64_t total = 0, sum = 0;
  for (int64_t s = 0; s < p.sequences; s++) total += pairs(p, s);
  plan.unit_first.push_back(0);
  for (int64_t s = 0; s < p.sequences; s++) {
    sum += pairs(p, s);
    if (s + 1 < p.sequences && sum * units >= total * static_cast<int64_t>(plan.unit_first.size()))
      plan.unit_first.push_back(static_cast<int>(s + 1));
  }
  if (p.sequences) plan.unit_first.push_back(static_cast<int>(p.sequences));

  if (plan.has_positions()) {
    plan.unit_grads = static_cast<float*>(
        std::malloc(std::max<size_t>(1, p.heads * plan.units() * 2 * plan.rule.count * plan.d_wide * sizeof(float))));
    if (!plan.unit_grads) return kOutOfMemory;
  }
  auto* unit = baseline::backward_task;
  auto* reduce = baseline::reduce_task;
#if defined(__x86_64__)
  if (has_avx2()) unit = avx2::backward_task, reduce = avx2::reduce_task;
#endif
  Status status = run_tasks(plan, p.heads * plan.units(), threads, unit);
  if (status == kOk && plan.unit_grads) status = run_tasks(plan, p.heads, threads, reduce);
  std::free(plan.unit_grads);
  return status;
}

}  // extern "C"

#else  // DEBERTAKIT_KERNEL_BODY: compiled once per instruction set. No std containers: their code would be shared.

// ---- vectors ----

typedef float V __attribute__((vector_size(kVector * 4)));  // one register, for the product kernel
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
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
KERNEL_INLINE void exp2_inplace(F8& x) {
  const F8 floor = F8{} - 127.0f;
  x = x < floor ? floor : x;
  const F8 shifted = x + 12582912.0f;  // 1.5 * 2^23: rounds to an integer, stored in the low bits
  const F8 f = x - (shifted - 12582912.0f);
  F8 y = f * 0.001327647058f + 0.009675541323f;
  y = y * f + 0.05550713278f;
  y = y * f + 0.2402211972f;
  y = y * f + 0.6931469671f;
  y = y * f + 1.000000072f;
  const I8 power = (load<I8>(&shifted) << 23) + (127 << 23);
  x = y * load<F8>(&power);
}

KERNEL_INLINE float sum8(const F8& v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
KERNEL_INLINE float max8(const F8& v) {
  float m = v[0];
  for (int t = 1; t < 8; t++) m = v[t] > m ? v[t] : m;
  return m;
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, I8{__VA_ARGS__})
#endif

KERNEL_INLINE void transpose8(F8* r) {
  F8 t[8], s[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = SHUFFLE(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[i + 1] = SHUFFLE(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    s[i] = SHUFFLE(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    s[i + 1] = SHUFFLE(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    s[i + 2] = SHUFFLE(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    s[i + 3] = SHUFFLE(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = SHUFFLE(s[i], s[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = SHUFFLE(s[i], s[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Lane t = values[index[t]].
KERNEL_INLINE void spread(const float* values, const uint8_t* index, F8& out) {
#ifdef KERNEL_AVX2
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(index)));
  out = (F8)_mm256_permutevar8x32_ps(_mm256_loadu_ps(values), lanes);
#else
  for (int t = 0; t < kLanes; t++) out[t] = values[index[t]];
#endif
}

// The transpose of spread: rows[first_row + up[t]] += values[t]. AVX2: sums over runs are differences of prefix sums.
KERNEL_INLINE void fold(float* rows, const Groups& g, const F8& values) {
#ifdef KERNEL_AVX2
  F8 v = values;
  if (!g.exact) {
    __m256 x = (__m256)v;
    x = _mm256_add_ps(x, _mm256_castsi256_ps(_mm256_slli_si256(_mm256_castps_si256(x), 4)));
    x = _mm256_add_ps(x, _mm256_castsi256_ps(_mm256_slli_si256(_mm256_castps_si256(x), 8)));
    const __m256 half = _mm256_permute2f128_ps(x, x, 0x08);  // low half moved to the high half, zeros in the low half
    x = _mm256_add_ps(x, _mm256_shuffle_ps(half, half, 0xFF));
    const __m256i last = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(g.last)));
    const __m256 ends = _mm256_permutevar8x32_ps(x, last);
    const __m256 before = _mm256_permutevar8x32_ps(ends, _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6));
    v = (F8)_mm256_sub_ps(ends, _mm256_blend_ps(before, _mm256_setzero_ps(), 1));
  }
  float* at = rows + g.first_row;
  store(at, load<F8>(at) + v);
#else
  for (int t = 0; t < kLanes; t++) rows[g.first_row + g.up[t]] += values[t];
#endif
}

// ---- products ----

// C [M x 16] (+)= A [M x depth] B [depth x 16]. A is stored by rows, or by columns when kTransposed.
template <int M, bool kTransposed, bool kAdd>
KERNEL_INLINE void micro(const float* a, int64_t lda, const float* b, int depth, float* c, int64_t ldc) {
  constexpr int N = kPanel / kVector;
  V acc[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) acc[m][n] = kAdd ? load<V>(c + m * ldc + n * kVector) : V{};
  for (int i = 0; i < depth; i++) {
    V row[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) row[n] = load<V>(b + n * kVector);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const float s = kTransposed ? a[m] : a[m * lda];
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) acc[m][n] += s * row[n];
    }
    a += kTransposed ? lda : 1;
    b += kPanel;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) store(c + m * ldc + n * kVector, acc[m][n]);
}

template <bool kTransposed, bool kAdd>
void strip(int rows, const float* a, int64_t lda, const float* b, int depth, float* c, int64_t ldc) {
  switch (rows) {
    case 1: return micro<1, kTransposed, kAdd>(a, lda, b, depth, c, ldc);
    case 2: return micro<2, kTransposed, kAdd>(a, lda, b, depth, c, ldc);
    case 3: return micro<3, kTransposed, kAdd>(a, lda, b, depth, c, ldc);
    case 4: return micro<4, kTransposed, kAdd>(a, lda, b, depth, c, ldc);
    case 5: return micro<5, kTransposed, kAdd>(a, lda, b, depth, c, ldc);
    default: return micro<6, kTransposed, kAdd>(a, lda, b, depth, c, ldc);
  }
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

// C [rows x 16 * panels] (+)= A B. B consists of panels of 16 columns, `panel_stride` floats apart.
template <bool kTransposed, bool kAdd>
void product(const Strips& strips, const float* a, int64_t lda, const float* b, int64_t panel_stride, int depth,
             int panels, float* c, int64_t ldc) {
  for (int n = 0; n < panels; n++)
    for (int s = 0; s < strips.count; s++) {
      const int m = strips.start[s];
      strip<kTransposed, kAdd>(strips.size(s), a + (kTransposed ? m : m * lda), lda, b + n * panel_stride, depth,
                               c + m * ldc + n * kPanel, ldc);
    }
}

// ---- packing ----

// Pack the transpose: panel n holds rows 16n .. 16n + 15 as [d x 16], times `factor`. Missing rows become zeros.
void pack_columns(const float* rows, int64_t stride, int count, int d, float factor, float* panels) {
  for (int r = 0; r < count; r += kLanes) {
    float* to = panels + r / kPanel * kPanel * d + r % kPanel;
    for (int c = 0; c < d; c += kLanes) {
      F8 x[8];
      for (int t = 0; t < kLanes; t++) x[t] = r + t < count ? load<F8>(rows + (r + t) * stride + c) * factor : F8{};
      transpose8(x);
      for (int t = 0; t < kLanes; t++) store(to + (c + t) * kPanel, x[t]);
    }
  }
  if ((count + kLanes - 1) / kLanes % 2) {  // the second half of the last panel
    float* to = panels + count / kPanel * kPanel * d + kLanes;
    for (int c = 0; c < d; c++) store(to + c * kPanel, F8{});
  }
}

// Pack without transposing: panel n holds columns 16n .. 16n + 15 of all rows as [padded rows x 16], padded with zeros.
void pack_rows(const float* rows, int64_t stride, int count, int padded, int d, float* panels) {
  for (int c = 0; c < d; c += kLanes) {
    float* to = panels + c / kPanel * kPanel * padded + c % kPanel;
    for (int r = 0; r < count; r++) store(to + r * kPanel, load<F8>(rows + r * stride + c));
    for (int r = count; r < padded; r++) store(to + r * kPanel, F8{});
  }
  if (d % kPanel) {
    float* to = panels + d / kPanel * kPanel * padded + kLanes;
    for (int r = 0; r < padded; r++) store(to + r * kPanel, F8{});
  }
}

// ---- tiles ----

// Up to kBlock neighbouring queries or keys of one sequence.
struct Block {
  int first, count, filled;        // filled: count rounded up to 8
  int32_t position[kBlock + 8];    // continues with consecutive positions after count
  int least, most;                 // smallest and largest position, padding included
  bool consecutive[kBlock / 8 + 1];  // for each group of eight positions
  Strips strips;

  Block(const int32_t* positions, int first, int count) : first(first), count(count), strips(count) {
    filled = static_cast<int>(round_up(count, kLanes));
    for (int i = 0; i < filled; i++) position[i] = i < count ? positions[first + i] : position[i - 1] + 1;
    least = most = position[0];
    for (int i = 0; i < filled; i++) {
      least = position[i] < least ? position[i] : least;
      most = position[i] > most ? position[i] : most;
    }
    for (int i = 0; i < filled; i += kLanes) {
      bool ok = true;
      for (int t = 1; t < kLanes; t++) ok &= position[i + t] == position[i] + t;
      consecutive[i / kLanes] = ok;
    }
  }
};

struct Range {
  int first, last;  // rows first .. last - 1
};

Range rows_between(const Rule& rule, int64_t low, int64_t high) {
  if (!rule.monotone) return {rule.first, rule.first + rule.count};
  return {rule.row(low), rule.row(high) + 1};
}

// Table rows that each strip of a block uses against all of the other block. sign: +1 for queries, -1 for keys.
void strip_ranges(const Rule& rule, const Block& mine, const Block& other, int sign, Range* out) {
  for (int s = 0; s < mine.strips.count; s++) {
    int64_t least = mine.position[mine.strips.start[s]], most = least;
    for (int i = mine.strips.start[s]; i < mine.strips.start[s + 1]; i++) {
      least = mine.position[i] < least ? mine.position[i] : least;
      most = mine.position[i] > most ? mine.position[i] : most;
    }
    out[s] = sign > 0 ? rows_between(rule, least - other.most, most - other.least)
                      : rows_between(rule, other.least - most, other.most - least);
  }
}

// Packed position tables of one head, kept while a thread works on this head.
struct Head {
  float* columns[2];  // pos_k and pos_q, packed as the B of C2P and P2C
  float* rows[2];     // packed as the B of the position parts of dQ and dK
};

// Buffers of a task, allocated from the arena.
struct Work {
  Head head;
  float* s;    // [kBlock x kLineS] scores, then probabilities
  float* c2p;  // [kBlock x line], columns are table rows from row0
  float* p2c;  // [kBlock x line]
  int line;            // row stride of c2p and p2c, in floats
  int row0;            // the table row of column 0 of c2p and p2c
  int only_row;        // the single table row that the whole tile uses, or -1
  float p2c_column[kBlock];  // if only_row >= 0: its p2c term for each key
  Range q_rows[Strips::kMost], k_rows[Strips::kMost];
};
constexpr int kLineS = kBlock + 16;  // not a power of two, so that a column of a tile uses different cache sets

int64_t tile_floats(const Rule& rule) { return kBlock * int64_t(kLineS) + 2 * (kBlock + 8) * int64_t(rule.count + 48); }

void take_tile(const Rule& rule, Work& w) {
  w.s = arena.floats(kBlock * int64_t(kLineS));
  w.c2p = arena.floats((kBlock + 8) * int64_t(rule.count + 48));
  w.p2c = arena.floats((kBlock + 8) * int64_t(rule.count + 48));
}

// Step 1: the three products. qs: queries of the block [count x d], times scale * log2(e).
void tile_products(const Plan& plan, Work& w, const Block& q, const Block& k, const float* qs, const float* k_columns,
                   const float* k_rows, int64_t k_stride) {
  const int d = static_cast<int>(plan.p.head_size);
  product<false, false>(q.strips, qs, d, k_columns, kPanel * d, d, (k.filled + kPanel - 1) / kPanel, w.s, kLineS);
  if (!plan.has_positions()) return;

  const Rule& rule = plan.rule;
  const Range all = rows_between(rule, int64_t(q.least) - k.most, int64_t(q.most) - k.least);
  w.row0 = all.first / kPanel * kPanel;
  w.line = static_cast<int>(round_up(all.last + kLanes, kPanel)) - w.row0;
  if (w.line / kPanel % 2 == 0) w.line += kPanel;  // odd number of panels, for the same reason as kLineS
  strip_ranges(rule, q, k, +1, w.q_rows);
  strip_ranges(rule, k, q, -1, w.k_rows);
  for (int row = w.row0; row < all.last; row += kPanel) {
    const int64_t panel = int64_t(row - rule.first) * d;
    if (plan.p.pos_k.data)
      for (int s = 0; s < q.strips.count; s++)
        if (w.q_rows[s].first < row + kPanel && w.q_rows[s].last > row) {
          const int m = q.strips.start[s];
          strip<false, false>(q.strips.size(s), qs + m * d, d, w.head.columns[0] + panel, d,
                              w.c2p + m * w.line + row - w.row0, w.line);
        }
    if (plan.p.pos_q.data)
      for (int s = 0; s < k.strips.count; s++)
        if (w.k_rows[s].first < row + kPanel && w.k_rows[s].last > row) {
          const int m = k.strips.start[s];
          strip<false, false>(k.strips.size(s), k_rows + m * k_stride, k_stride, w.head.columns[1] + panel, d,
                              w.p2c + m * w.line + row - w.row0, w.line);
        }
  }
  w.only_row = all.last - all.first == 1 ? all.first : -1;
  if (w.only_row >= 0 && plan.p.pos_q.data)
    for (int j = 0; j < k.filled; j++) w.p2c_column[j] = w.p2c[j * w.line + w.only_row - w.row0];
}

// p2c of queries i .. i + 7 against keys j .. j + 7: one vector per key, along the queries.
KERNEL_INLINE void read_p2c(const Rule& rule, const Work& w, const Block& q, const Block& k, int i, int j, bool run,
                            F8* x) {
  for (int t = 0; t < kLanes; t++) {
    const float* row = w.p2c + (j + t) * w.line - w.row0;
    if (run) {
      const Groups& g = rule.group(int64_t(q.position[i]) - k.position[j + t]);
      spread(row + g.first_row, g.up, x[t]);
    } else {
      for (int u = 0; u < kLanes; u++) x[t][u] = row[rule.row(int64_t(q.position[i + u]) - k.position[j + t])];
    }
  }
}

// c2p of one query against keys j .. j + 7.
KERNEL_INLINE void read_c2p(const Rule& rule, const Work& w, const Block& q, const Block& k, int i, int j, bool run,
                            F8& y) {
  const float* row = w.c2p + i * w.line - w.row0;
  if (run) {
    const Groups& g = rule.group(int64_t(q.position[i]) - k.position[j] - 7);
    spread(row + g.first_row, g.down, y);
  } else {
    for (int u = 0; u < kLanes; u++) y[u] = row[rule.row(int64_t(q.position[i]) - k.position[j + u])];
  }
}

// Step 2 for queries i .. i + 7: add the position terms to the scores.
template <bool kC2P, bool kP2C>
void add_positions(const Rule& rule, const Work& w, const Block& q, const Block& k, int i) {
  const bool queries_run = rule.smooth && q.consecutive[i / kLanes];
  for (int j = 0; j < k.filled; j += kLanes) {
    const bool keys_run = rule.smooth && k.consecutive[j / kLanes];
    float* s = w.s + i * kLineS + j;
    F8 x[8];
    if (queries_run && keys_run) {
      const Groups& g = rule.group(int64_t(q.position[i]) - k.position[j] - 7);
      if (g.exact_square) {  // near distances: one row per distance, no permutation needed
        if (kP2C) {
          const float* at = w.p2c + j * w.line - w.row0 + g.first_row + 7;
          for (int t = 0; t < kLanes; t++) x[t] = load<F8>(at + t * (w.line - 1));
          transpose8(x);
        }
        const float* at = w.c2p + i * w.line - w.row0 + g.first_row;
        for (int t = 0; t < kLanes; t++) {
          F8 y = load<F8>(s + t * kLineS);
          if (kP2C) y += x[t];
          if (kC2P) {
            const F8 c = load<F8>(at + t * (w.line + 1));
            y += SHUFFLE(c, c, 7, 6, 5, 4, 3, 2, 1, 0);
          }
          store(s + t * kLineS, y);
        }
        continue;
      }
    }
    if (kP2C) {
      read_p2c(rule, w, q, k, i, j, queries_run, x);
      transpose8(x);
    }
    for (int t = 0; t < kLanes; t++) {
      F8 y = load<F8>(s + t * kLineS);
      if (kP2C) y += x[t];
      if (kC2P) {
        F8 c;
        read_c2p(rule, w, q, k, i + t, j, keys_run, c);
        y += c;
      }
      store(s + t * kLineS, y);
    }
  }
}

// Step 2 if the whole tile uses a single table row: one value per query and one per key.
template <bool kC2P, bool kP2C>
void add_one_row(const Work& w, const Block& k, int i) {
  for (int t = i; t < i + kLanes; t++) {
    const F8 c = F8{} + (kC2P ? w.c2p[t * w.line + w.only_row - w.row0] : 0.0f);
    float* s = w.s + t * kLineS;
    for (int j = 0; j < k.filled; j += kLanes) {
      F8 y = load<F8>(s + j) + c;
      if (kP2C) y += load<F8>(w.p2c_column + j);
      store(s + j, y);
    }
  }
}

void add_position_terms(const Plan& plan, const Work& w, const Block& q, const Block& k, int i) {
  const bool c2p = plan.p.pos_k.data, p2c = plan.p.pos_q.data, one = w.only_row >= 0;
  if (c2p && p2c) return one ? add_one_row<true, true>(w, k, i) : add_positions<true, true>(plan.rule, w, q, k, i);
  if (c2p) return one ? add_one_row<true, false>(w, k, i) : add_positions<true, false>(plan.rule, w, q, k, i);
  if (p2c) return one ? add_one_row<false, true>(w, k, i) : add_positions<false, true>(plan.rule, w, q, k, i);
}

// The transpose of add_positions: fold dS of eight queries into the buffers c2p and p2c.
template <bool kC2P, bool kP2C>
void fold_positions(const Rule& rule, const Work& w, const Block& q, const Block& k, int i, const float* ds) {
  const bool queries_run = rule.smooth && q.consecutive[i / kLanes];
  for (int j = 0; j < k.filled; j += kLanes) {
    const bool keys_run = rule.smooth && k.consecutive[j / kLanes];
    F8 x[8];
    for (int t = 0; t < kLanes; t++) x[t] = load<F8>(ds + (i + t) * kLineS + j);
    if (kC2P) {
      for (int t = 0; t < kLanes; t++) {
        float* row = w.c2p + (i + t) * w.line - w.row0;
        if (keys_run) {
          fold(row, rule.group(int64_t(q.position[i + t]) - k.position[j] - 7),
               SHUFFLE(x[t], x[t], 7, 6, 5, 4, 3, 2, 1, 0));
        } else {
          for (int u = 0; u < kLanes; u++) row[rule.row(int64_t(q.position[i + t]) - k.position[j + u])] += x[t][u];
        }
      }
    }
    if (kP2C) {
      transpose8(x);
      for (int t = 0; t < kLanes; t++) {
        float* row = w.p2c + (j + t) * w.line - w.row0;
        if (queries_run) {
          fold(row, rule.group(int64_t(q.position[i]) - k.position[j + t]), x[t]);
        } else {
          for (int u = 0; u < kLanes; u++) row[rule.row(int64_t(q.position[i + u]) - k.position[j + t])] += x[t][u];
        }
      }
    }
  }
}

// The transpose of add_one_row, for the whole tile.
void fold_one_row(const Work& w, const Block& q, const Block& k, const float* ds) {
  F8 down[kBlock / kLanes] = {};
  for (int i = 0; i < q.count; i++) {
    F8 across = {};
    for (int j = 0; j < k.filled; j += kLanes) {
      const F8 x = load<F8>(ds + i * kLineS + j);
      across += x;
      down[j / kLanes] += x;
    }
    w.c2p[i * w.line + w.only_row - w.row0] = sum8(across);
  }
  for (int j = 0; j < k.filled; j++) w.p2c[j * w.line + w.only_row - w.row0] = down[j / kLanes][j % kLanes];
}

void fold_position_terms(const Plan& plan, const Work& w, const Block& q, const Block& k, const float* ds) {
  const bool c2p = plan.p.pos_k.data, p2c = plan.p.pos_q.data;
  if (w.only_row >= 0) return fold_one_row(w, q, k, ds);
  for (int i = 0; i < q.filled; i += kLanes) {
    if (c2p && p2c)
      fold_positions<true, true>(plan.rule, w, q, k, i, ds);
    else if (c2p)
      fold_positions<true, false>(plan.rule, w, q, k, i, ds);
    else
      fold_positions<false, true>(plan.rule, w, q, k, i, ds);
  }
}

// ---- dropout, as in reference.keep_mask ----

template <class T>
KERNEL_INLINE void mix(T& x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  x = x ^ (x >> 16);
}

uint32_t dropout_state(const Problem& p, int64_t query, int64_t head) {
  uint32_t state = static_cast<uint32_t>(p.seed) + static_cast<uint32_t>(query) * 0x9E3779B1u +
                   static_cast<uint32_t>(head) * 0x85EBCA77u;
  mix(state);
  return state;
}

// Apply dropout to the weights x of keys key .. key + 7, without the scaling by 1 / (1 - dropout).
KERNEL_INLINE void drop(uint32_t state, int key, uint32_t below, F8& x) {
  const U8 keys = U8{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<uint32_t>(key);
  U8 hash = (keys * 0xC2B2AE3Du) ^ state;
  mix(hash);
  x = hash >= below ? x : F8{};
}

// ---- shared by both passes ----

// Number of keys of a block that a query sees.
KERNEL_INLINE int seen(const Problem& p, int64_t query, const Block& k) {
  if (!p.visible) return k.count;
  const int n = p.visible[query] - k.first;
  return n < 0 ? 0 : n < k.count ? n : k.count;
}

bool sees_nothing(const Problem& p, int64_t query0, const Block& q, const Block& k) {
  for (int i = 0; i < q.count; i++)
    if (seen(p, query0 + q.first + i, k)) return false;
  return true;
}

KERNEL_INLINE float log2_scale(const Problem& p) { return static_cast<float>(p.scale * 1.4426950408889634); }

int64_t head_floats(const Plan& plan, bool backward) {
  const int64_t each = plan.rule.count * plan.d_wide;
  return each * ((plan.p.pos_k.data ? 1 : 0) + (plan.p.pos_q.data ? 1 : 0)) * (backward ? 2 : 1);
}

// Pack the table rows that this call uses. Rows past the end of a table are zeros. Tasks are ordered by head and
// allocate the same sizes in the same order, so the tables packed by the previous task can usually be reused.
void pack_head(const Plan& plan, int64_t head, bool backward, Head& to) {
  const Problem& p = plan.p;
  const Rule& rule = plan.rule;
  const int d = static_cast<int>(p.head_size);
  const int64_t there = p.table_rows - rule.first;
  const int count = static_cast<int>(there < rule.count ? there : rule.count);
  const bool packed = packed_head == head;
  const Matrix tables[2] = {p.pos_k, p.pos_q};
  const float factors[2] = {1.0f, log2_scale(p)};
  for (int which = 0; which < 2; which++) {
    const Matrix& table = tables[which];
    if (!table.data) continue;
    to.columns[which] = arena.floats(rule.count * plan.d_wide);
    to.rows[which] = backward ? arena.floats(rule.count * plan.d_wide) : nullptr;
    if (packed) continue;
    const float* from = table.at(rule.first, head);
    pack_columns(from, table.row, count, d, factors[which], to.columns[which]);
    if (backward) pack_rows(from, table.row, count, rule.count, d, to.rows[which]);
  }
  packed_head = head;
}

void scaled_queries(const Problem& p, int64_t query, int64_t head, int count, float* to) {
  const F8 factor = F8{} + log2_scale(p);
  const int64_t d = p.head_size;
  for (int i = 0; i < count; i++) {
    const float* from = p.q.at(query + i, head);
    for (int64_t c = 0; c < d; c += kLanes) store(to + i * d + c, load<F8>(from + c) * factor);
  }
}

// ---- forward ----

struct Softmax {  // running softmax of the queries of one block, over the key blocks so far
  float highest[kBlock], sum[kBlock];
};

// Replace the scores of query i by unnormalised weights, and rescale the previous o and sum to the new maximum.
void softmax_row(const Plan& plan, const Work& w, Softmax& soft, const Block& k, int i, int64_t query, int64_t head,
                 float* o) {
  float* s = w.s + i * kLineS;
  const int n = seen(plan.p, query, k);
  const int n8 = static_cast<int>(round_up(n, kLanes));
  for (int j = n; j < n8; j++) s[j] = -std::numeric_limits<float>::infinity();
  for (int j = n8; j < k.filled; j += kLanes) store(s + j, F8{});
  if (n == 0) return;

  F8 most = load<F8>(s);
  for (int j = kLanes; j < n8; j += kLanes) {
    const F8 x = load<F8>(s + j);
    most = x > most ? x : most;
  }
  const float before = soft.highest[i];
  const float highest = std::max(before, max8(most));
  F8 sum = {};
  for (int j = 0; j < n8; j += kLanes) {
    F8 x = load<F8>(s + j) - highest;
    exp2_inplace(x);
    sum += x;
    store(s + j, x);
  }
  if (plan.p.drop_below) {
    const uint32_t state = dropout_state(plan.p, query, head);
    for (int j = 0; j < n8; j += kLanes) {
      F8 x = load<F8>(s + j);
      drop(state, k.first + j, static_cast<uint32_t>(plan.p.drop_below), x);
      store(s + j, x);
    }
  }
  if (highest > before) {
    const float shrink = std::exp2(before - highest);  // 0 for the first key block
    soft.sum[i] *= shrink;
    for (int64_t c = 0; c < plan.d_wide; c += kLanes) store(o + c, load<F8>(o + c) * shrink);
  }
  soft.highest[i] = highest;
  soft.sum[i] += sum8(sum);
}

int64_t forward_floats(const Plan& plan) {
  const int64_t keys = round_up(plan.longest_k, kPanel);
  return head_floats(plan, false) + tile_floats(plan.rule) + keys * (plan.p.head_size + plan.d_wide) +
         kBlock * (plan.p.head_size + plan.d_wide) + 16 * kPanel;
}

void forward_task(const Plan& plan, int64_t task) {
  const Problem& p = plan.p;
  const int64_t shares = static_cast<int64_t>(plan.shares.size());
  const int64_t head = task / shares;
  const Share share = plan.shares.data()[task % shares];
  const int d = static_cast<int>(p.head_size);
  const int64_t query0 = p.q_offsets[share.sequence], key0 = p.k_offsets[share.sequence];
  const int keys = p.k_offsets[share.sequence + 1] - p.k_offsets[share.sequence];
  const int key_rows = static_cast<int>(round_up(keys, kPanel));
  if (!arena.reserve(forward_floats(plan) * sizeof(float) + 4096)) return task_failed->store(true);

  Work w;
  if (plan.has_positions()) pack_head(plan, head, false, w.head);
  take_tile(plan.rule, w);
  float* k_columns = arena.floats(int64_t(key_rows) * d);
  float* v_rows = arena.floats(key_rows * plan.d_wide);
  float* qs = arena.floats(kBlock * int64_t(d));
  float* o = arena.floats(kBlock * plan.d_wide);
  pack_columns(p.k.at(key0, head), p.k.row, keys, d, 1.0f, k_columns);
  pack_rows(p.v.at(key0, head), p.v.row, keys, key_rows, d, v_rows);

  const float keep = static_cast<float>(1.0 / (1.0 - p.dropout));
  for (int i0 = share.first; i0 < share.last; i0 += kBlock) {
    const Block q(p.q_positions + query0, i0, std::min(kBlock, share.last - i0));
    scaled_queries(p, query0 + i0, head, q.count, qs);
    std::memset(o, 0, q.count * plan.d_wide * sizeof(float));
    Softmax soft;
    for (int i = 0; i < q.count; i++) {
      soft.highest[i] = -std::numeric_limits<float>::infinity();
      soft.sum[i] = 0.0f;
    }
    for (int j0 = 0; j0 < keys; j0 += kBlock) {
      const Block k(p.k_positions + key0, j0, std::min(kBlock, keys - j0));
      if (sees_nothing(p, query0, q, k)) continue;
      tile_products(plan, w, q, k, qs, k_columns + int64_t(j0) * d, p.k.at(key0 + j0, head), p.k.row);
      for (int i = 0; i < q.count; i += kLanes) {
        add_position_terms(plan, w, q, k, i);
        for (int t = i; t < std::min(i + kLanes, q.count); t++)
          softmax_row(plan, w, soft, k, t, query0 + i0 + t, head, o + t * plan.d_wide);
      }
      product<false, true>(q.strips, w.s, kLineS, v_rows + j0 * kPanel, int64_t(key_rows) * kPanel, k.filled,
                           static_cast<int>(plan.d_wide / kPanel), o, plan.d_wide);
    }
    for (int i = 0; i < q.count; i++) {
      float* to = p.out.at(query0 + i0 + i, head);
      const float sum = soft.sum[i];
      const float factor = soft.highest[i] == -std::numeric_limits<float>::infinity() ? 0.0f : keep / sum;
      for (int c = 0; c < d; c += kLanes) store(to + c, load<F8>(o + i * plan.d_wide + c) * factor);
      if (!p.lse) continue;
      p.lse[head * p.total_queries + query0 + i0 + i] =
          static_cast<float>((soft.highest[i] + std::log2(static_cast<double>(sum))) * 0.6931471805599453);
    }
  }
}

// ---- backward ----

// Compute weights and gradients in place: S -> P after dropout, dP -> dS / scale.
void backward_row(const Plan& plan, float* s, float* ds, const Block& k, int64_t query, int64_t head, float lse2,
                  float delta) {
  const Problem& p = plan.p;
  const int n = seen(p, query, k);
  const int n8 = static_cast<int>(round_up(n, kLanes));
  for (int j = n; j < n8; j++) s[j] = -std::numeric_limits<float>::infinity();
  const bool dropping = p.drop_below != 0;
  const float keep = static_cast<float>(1.0 / (1.0 - p.dropout));
  const uint32_t state = dropping ? dropout_state(p, query, head) : 0;
  for (int j = 0; j < n8; j += kLanes) {
    F8 weight = load<F8>(s + j) - lse2;
    exp2_inplace(weight);
    F8 grad = load<F8>(ds + j);
    F8 kept = weight;
    if (dropping) {
      drop(state, k.first + j, static_cast<uint32_t>(p.drop_below), grad);
      drop(state, k.first + j, static_cast<uint32_t>(p.drop_below), kept);
      grad *= keep;
      kept *= keep;
    }
    store(s + j, kept);
    store(ds + j, weight * (grad - delta));
  }
  for (int j = n8; j < k.filled; j += kLanes) {
    store(s + j, F8{});
    store(ds + j, F8{});
  }
}

// Buffers of the backward pass for one sequence and head, in addition to Work.
struct Pass {
  float *k_columns, *k_rows, *v_columns;  // B of S; B of dQ and dpos_q; B of dP
  float *qs, *q_rows, *d_out_rows;        // A of S and C2P; B of dK and dpos_k; B of dV
  float *d_q, *d_k, *d_v;                 // [queries x d_wide], [kBlock x d_wide], [kBlock x d_wide]
  float *ds, *lse2, *delta;
  float *d_pos_k, *d_pos_q;               // [rule.count x d_wide]
};

int64_t backward_floats(const Plan& plan) {
  const int64_t d = plan.p.head_size, wide = plan.d_wide;
  const int64_t keys = round_up(plan.longest_k, kPanel), queries = round_up(plan.longest_q, kPanel);
  return head_floats(plan, true) + tile_floats(plan.rule) + keys * (2 * d + wide) + queries * (d + 3 * wide + 2) +
         kBlock * int64_t(kLineS) + 2 * kBlock * wide + 32 * kPanel;
}

// dC2P -> dQ and dpos_k, or dP2C -> dK and dpos_q. The table gradients skip strips of queries (keys) that do not use
// the current strip of table rows.
void position_grads(const Plan& plan, const Work& w, const Block& mine, const Range* ranges, const float* grads,
                    const float* table_rows, const float* my_rows, int64_t my_panel, float* d_mine, float* d_table) {
  const Rule& rule = plan.rule;
  const int panels = static_cast<int>(plan.d_wide / kPanel);
  for (int s = 0; s < mine.strips.count; s++) {
    const int m = mine.strips.start[s];
    const Range r = ranges[s];
    for (int n = 0; n < panels; n++)
      strip<false, true>(mine.strips.size(s), grads + m * w.line + r.first - w.row0, w.line,
                         table_rows + int64_t(n) * rule.count * kPanel + int64_t(r.first - rule.first) * kPanel,
                         r.last - r.first, d_mine + m * plan.d_wide + n * kPanel, plan.d_wide);
  }
  if (!d_table) return;
  int lowest = ranges[0].first, highest = ranges[0].last;
  for (int s = 1; s < mine.strips.count; s++) {
    lowest = ranges[s].first < lowest ? ranges[s].first : lowest;
    highest = ranges[s].last > highest ? ranges[s].last : highest;
  }
  for (int row = lowest; row < highest; row += kStrip) {
    const int size = std::min(kStrip, highest - row);
    int from = mine.strips.count, to = 0;
    for (int s = 0; s < mine.strips.count; s++)
      if (ranges[s].first < row + size && ranges[s].last > row) {
        from = s < from ? s : from;
        to = s + 1;
      }
    if (from >= to) continue;
    const int a = mine.strips.start[from], depth = mine.strips.start[to] - a;
    for (int n = 0; n < panels; n++)
      strip<true, true>(size, grads + a * w.line + row - w.row0, w.line, my_rows + n * my_panel + a * kPanel, depth,
                        d_table + (row - rule.first) * plan.d_wide + n * kPanel, plan.d_wide);
  }
}

void backward_tile(const Plan& plan, Work& w, const Pass& t, const Block& q, const Block& k, int64_t query0,
                   int64_t key0, int64_t head, int q_padded, int k_padded) {
  const Problem& p = plan.p;
  const int d = static_cast<int>(p.head_size);
  const int panels = static_cast<int>(plan.d_wide / kPanel);
  const int64_t q_panel = int64_t(q_padded) * kPanel, k_panel = int64_t(k_padded) * kPanel;
  tile_products(plan, w, q, k, t.qs + int64_t(q.first) * d, t.k_columns + int64_t(k.first) * d,
                p.k.at(key0 + k.first, head), p.k.row);
  product<false, false>(q.strips, p.d_out.at(query0 + q.first, head), p.d_out.row, t.v_columns + int64_t(k.first) * d,
                        kPanel * d, d, (k.filled + kPanel - 1) / kPanel, t.ds, kLineS);
  for (int i = 0; i < q.filled; i += kLanes) {
    add_position_terms(plan, w, q, k, i);
    for (int u = i; u < i + kLanes; u++) {
      float *s = w.s + u * kLineS, *ds = t.ds + u * kLineS;
      if (u < q.count) {
        backward_row(plan, s, ds, k, query0 + q.first + u, head, t.lse2[q.first + u], t.delta[q.first + u]);
      } else {
        std::memset(ds, 0, k.filled * sizeof(float));
      }
    }
  }
  product<true, true>(k.strips, w.s, kLineS, t.d_out_rows + q.first * kPanel, q_panel, q.count, panels, t.d_v,
                      plan.d_wide);
  product<true, true>(k.strips, t.ds, kLineS, t.q_rows + q.first * kPanel, q_panel, q.count, panels, t.d_k,
                      plan.d_wide);
  float* d_q = t.d_q + q.first * plan.d_wide;
  product<false, true>(q.strips, t.ds, kLineS, t.k_rows + k.first * kPanel, k_panel, k.count, panels, d_q,
                       plan.d_wide);
  if (!plan.has_positions()) return;

  // The values in c2p and p2c are no longer needed. Reuse the buffers for their gradients.
  if (p.pos_k.data) std::memset(w.c2p, 0, q.filled * w.line * sizeof(float));
  if (p.pos_q.data) std::memset(w.p2c, 0, k.filled * w.line * sizeof(float));
  fold_position_terms(plan, w, q, k, t.ds);
  if (p.pos_k.data)
    position_grads(plan, w, q, w.q_rows, w.c2p, w.head.rows[0], t.q_rows + q.first * kPanel, q_panel, d_q,
                   t.d_pos_k);
  if (p.pos_q.data)
    position_grads(plan, w, k, w.k_rows, w.p2c, w.head.rows[1], t.k_rows + k.first * kPanel, k_panel, t.d_k,
                   t.d_pos_q);
}

void write_scaled(const float* from, int64_t from_line, int rows, int d, float factor, float* to, int64_t to_line) {
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < d; c += kLanes) store(to + r * to_line + c, load<F8>(from + r * from_line + c) * factor);
}

void backward_sequence(const Plan& plan, Work& w, Pass& t, int64_t sequence, int64_t head) {
  const Problem& p = plan.p;
  const int d = static_cast<int>(p.head_size);
  const int64_t query0 = p.q_offsets[sequence], key0 = p.k_offsets[sequence];
  const int queries = static_cast<int>(p.q_offsets[sequence + 1] - query0);
  const int keys = static_cast<int>(p.k_offsets[sequence + 1] - key0);
  const int q_padded = static_cast<int>(round_up(queries, kPanel)), k_padded = static_cast<int>(round_up(keys, kPanel));
  const float scale = static_cast<float>(p.scale);

  if (queries) {
    scaled_queries(p, query0, head, queries, t.qs);
    pack_rows(p.q.at(query0, head), p.q.row, queries, q_padded, d, t.q_rows);
    pack_rows(p.d_out.at(query0, head), p.d_out.row, queries, q_padded, d, t.d_out_rows);
    std::memset(t.d_q, 0, queries * plan.d_wide * sizeof(float));
  }
  if (keys) {
    pack_columns(p.k.at(key0, head), p.k.row, keys, d, 1.0f, t.k_columns);
    pack_columns(p.v.at(key0, head), p.v.row, keys, d, 1.0f, t.v_columns);
    pack_rows(p.k.at(key0, head), p.k.row, keys, k_padded, d, t.k_rows);
  }
  for (int i = 0; i < queries; i++) {
    const float *o = p.out.at(query0 + i, head), *g = p.d_out.at(query0 + i, head);
    F8 sum = {};
    for (int c = 0; c < d; c += kLanes) sum += load<F8>(o + c) * load<F8>(g + c);
    t.delta[i] = sum8(sum);
    t.lse2[i] = static_cast<float>(p.lse[head * p.total_queries + query0 + i] * 1.4426950408889634);
  }
  for (int j0 = 0; j0 < keys; j0 += kBlock) {
    const Block k(p.k_positions + key0, j0, std::min(kBlock, keys - j0));
    std::memset(t.d_k, 0, k.count * plan.d_wide * sizeof(float));
    std::memset(t.d_v, 0, k.count * plan.d_wide * sizeof(float));
    for (int i0 = 0; i0 < queries; i0 += kBlock) {
      const Block q(p.q_positions + query0, i0, std::min(kBlock, queries - i0));
      if (!sees_nothing(p, query0, q, k)) backward_tile(plan, w, t, q, k, query0, key0, head, q_padded, k_padded);
    }
    write_scaled(t.d_k, plan.d_wide, k.count, d, scale, p.d_k.at(key0 + j0, head), p.d_k.row);
    write_scaled(t.d_v, plan.d_wide, k.count, d, 1.0f, p.d_v.at(key0 + j0, head), p.d_v.row);
  }
  write_scaled(t.d_q, plan.d_wide, queries, d, scale, p.d_q.at(query0, head), p.d_q.row);
}

void backward_task(const Plan& plan, int64_t task) {
  const Problem& p = plan.p;
  const int64_t head = task / plan.units();
  const int unit = static_cast<int>(task % plan.units());
  if (!arena.reserve(backward_floats(plan) * sizeof(float) + 4096)) return task_failed->store(true);

  Work w;
  if (plan.has_positions()) pack_head(plan, head, true, w.head);
  take_tile(plan.rule, w);
  const int64_t d = p.head_size, wide = plan.d_wide;
  const int64_t keys = round_up(plan.longest_k, kPanel), queries = round_up(plan.longest_q, kPanel);
  Pass t{};
  t.k_columns = arena.floats(keys * d);
  t.v_columns = arena.floats(keys * d);
  t.k_rows = arena.floats(keys * wide);
  t.qs = arena.floats(queries * d);
  t.q_rows = arena.floats(queries * wide);
  t.d_out_rows = arena.floats(queries * wide);
  t.d_q = arena.floats(queries * wide);
  t.lse2 = arena.floats(queries);
  t.delta = arena.floats(queries);
  t.d_k = arena.floats(kBlock * wide);
  t.d_v = arena.floats(kBlock * wide);
  t.ds = arena.floats(kBlock * int64_t(kLineS));
  const size_t table = plan.rule.count * wide * sizeof(float);
  if (p.d_pos_k.data) std::memset(t.d_pos_k = plan.unit_grad(head, unit, 0), 0, table);
  if (p.d_pos_q.data) std::memset(t.d_pos_q = plan.unit_grad(head, unit, 1), 0, table);
  for (int s = plan.unit_first.data()[unit]; s < plan.unit_first.data()[unit + 1]; s++)
    backward_sequence(plan, w, t, s, head);
}

// Table gradients of one head: the sum over the units, and zeros for unused rows.
void reduce_task(const Plan& plan, int64_t head) {
  const Problem& p = plan.p;
  const Rule& rule = plan.rule;
  const float scale = static_cast<float>(p.scale);
  for (int which = 0; which < 2; which++) {
    const Matrix& to = which ? p.d_pos_q : p.d_pos_k;
    if (!to.data) continue;
    for (int64_t row = 0; row < p.table_rows; row++) {
      const bool reached = row >= rule.first && row < rule.first + rule.count;
      for (int64_t c = 0; c < p.head_size; c += kLanes) {
        F8 sum = {};
        for (int u = 0; reached && u < plan.units(); u++)
          sum += load<F8>(plan.unit_grad(head, u, which) + (row - rule.first) * plan.d_wide + c);
        store(to.at(row, head) + c, sum * scale);
      }
    }
  }
}

// ---- content hash ----

// Polynomial hashes h = h * m + x mod 2^32 of 64 interleaved lanes, folded into 64 bits. m is odd, so that every word
// affects the result, and alternates between two values. Reads the memory once, at about 30 GB/s on one core.
uint64_t content_hash(const char* data, int64_t bytes) {
  constexpr int kVectors = 8, kStep = kVectors * sizeof(U8);
  U8 h[kVectors] = {};
  const auto absorb = [&](const char* from) {
    for (int v = 0; v < kVectors; v++) h[v] = h[v] * (v % 2 ? 0x9E3779B1u : 0x85EBCA77u) + load<U8>(from + v * sizeof(U8));
  };
  int64_t at = 0;
  for (; at + kStep <= bytes; at += kStep) absorb(data + at);
  if (at < bytes) {
    char rest[kStep] = {};
    std::memcpy(rest, data + at, bytes - at);
    absorb(rest);
  }
  uint64_t folded = static_cast<uint64_t>(bytes);
  for (int v = 0; v < kVectors; v++)
    for (int lane = 0; lane < 8; lane++) {
      folded = (folded ^ h[v][lane]) * 0x9E3779B97F4A7C15u;
      folded ^= folded >> 29;
    }
  return folded;
}

#undef SHUFFLE

#endif  // DEBERTAKIT_KERNEL_BODY
