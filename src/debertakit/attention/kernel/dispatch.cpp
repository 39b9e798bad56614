// Disentangled attention on the CPU, forward and backward, without a length^2 tensor.
//
//     score(i, j) = (q_i . k_j  +  q_i . pos_k[r]  +  k_j . pos_q[r]) * scale        r = row(q_pos_i - k_pos_j)
//     out_i       = sum_j dropout(softmax_j(score))(i, j) v_j
//
// The kernel computes the same equation as `reference.py`, in blocks that fit into the cache. Files, in reading order:
//
//   problem.h     the arguments from Python            positions.h   position terms of a tile (steps 1 and 2 below)
//   plan.h        table rows, division into tasks      shared.h      dropout, visible keys, packed tables
//   threads.h     threads and their memory             forward.h, backward.h
//   vectors.h     exp, transposes, permutations        hash.h        content hash of weights
//   products.h    matrix products                      tasks.h       all files from vectors.h on, compiled once per
//   layout.h      packing, blocks of queries or keys                 instruction set
//
// A forward task is one head of one sequence, or of a part of its queries. A backward task is one head of a group of
// sequences, or of a part of the queries of one sequence. Both iterate over tiles of at most kBlock queries x kBlock keys. For each tile:
//
//   1. S   = Q K^T              content scores                          [queries x keys]
//      C2P = Q pos_k^T          only the table rows that the tile uses  [queries x rows]
//      P2C = K pos_q^T          only the table rows that the tile uses  [keys x rows]
//      All three are small matrix products. A strip of queries (keys) uses few more table rows than there are keys
//      (queries) in the tile. It uses fewer if far distances share a row, and only one if all distances are past the
//      last bucket. So a position term costs about as much as the content term at near distances, and less at far ones.
//   2. S += C2P and P2C, expanded from rows to distances. A vector of n neighbouring keys has n neighbouring distances,
//      which use at most n neighbouring rows. So the expansion is one load and one permutation, which depends only on
//      the distance (`Groups`). P2C is contiguous along queries, so it is added through n x n transposed tiles. If all
//      pairs of a tile are past the last bucket, they share one row: S starts from one bias per query and one per key.
//   3. Forward: online softmax, O += P V. Backward: P from the saved logsumexp, dS = P * (dO V^T - delta). Then dS is
//      folded from distances back to rows (the transpose of step 2: sums over runs), and seven products compute the
//      gradients.
//
// Queries and keys may have any positions. Groups of positions that are not consecutive, and lookups that skip
// rows, take a scalar path through the same buffers.
//
// bf16: on CPUs with AVX512-BF16, forward reads bf16, multiplies pairs of bf16 with fp32 sums, and writes bf16. On other
// CPUs, and in backward, cpu.py converts to fp32 and back.
//
// Determinism: forward results do not depend on the number of threads. Backward adds the gradients of the position
// tables over units, and those of keys over parts of a sequence, with one buffer for each, in a fixed order. So backward
// results are bit-identical for the same thread count.
//
// The best instruction set of the CPU is selected at run time (`kIsas`). The kernel uses torch's threads: the caller
// passes the address of GOMP_parallel in torch's OpenMP runtime. Without it, the fallback is std::thread.

#include <memory>
#include <new>
#include <utility>

#include "plan.h"
#include "problem.h"
#include "threads.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define KERNEL_EXPORT __attribute__((visibility("default")))
#ifndef DEBERTAKIT_SOURCE
#define DEBERTAKIT_SOURCE 0  // setup.py passes the CRC-32 of the sources
#endif

// Functions between BEGIN_TARGET and END_TARGET use these instructions.
#define KERNEL_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(isa) KERNEL_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define END_TARGET KERNEL_PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(isa) KERNEL_PRAGMA(GCC push_options) KERNEL_PRAGMA(GCC target(isa))
#define END_TARGET KERNEL_PRAGMA(GCC pop_options)
#endif

namespace {

#if defined(__aarch64__)
namespace neon {
#define ISA_NEON
constexpr int kLanes = 8, kVector = 4, kStrip = 6;  // 32 vector registers
#include "tasks.h"
#undef ISA_NEON
}  // namespace neon
#else
namespace baseline {
constexpr int kLanes = 8, kVector = 4, kStrip = 3;
#include "tasks.h"
}  // namespace baseline
#endif

#if defined(__x86_64__)
BEGIN_TARGET("avx2,fma")
namespace avx2 {
#define ISA_AVX2
constexpr int kLanes = 8, kVector = 8, kStrip = 6;
#include "tasks.h"
#undef ISA_AVX2
}  // namespace avx2
END_TARGET

#define ISA_AVX512
BEGIN_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
constexpr int kLanes = 16, kVector = 16, kStrip = 12;
#include "tasks.h"
}  // namespace avx512
END_TARGET

#define ISA_BF16
BEGIN_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace avx512_bf16 {
constexpr int kLanes = 16, kVector = 16, kStrip = 12;
#include "tasks.h"
}  // namespace avx512_bf16
END_TARGET
#undef ISA_BF16
#undef ISA_AVX512
#endif

using Task = void (*)(const Plan&, int64_t);
struct Isa {
  const char* name;
  bool (*present)();
  int lanes;
  Task forward, forward_bf16, backward, reduce;  // forward_bf16 is null if Python has to convert
  uint64_t (*hash)(const char*, int64_t);
};

const Isa kIsas[] = {  // best first
#if defined(__x86_64__)
    {"avx512_bf16",
     [] {
       return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     },
     avx512_bf16::kLanes, avx512_bf16::forward_task<float>, avx512_bf16::forward_task<avx512_bf16::Bf16>,
     avx512_bf16::backward_task, avx512_bf16::reduce_task, avx512_bf16::content_hash},
    {"avx512",
     [] {
       return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
     },
     avx512::kLanes, avx512::forward_task<float>, nullptr, avx512::backward_task, avx512::reduce_task,
     avx512::content_hash},
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, avx2::kLanes,
     avx2::forward_task<float>, nullptr, avx2::backward_task, avx2::reduce_task, avx2::content_hash},
#endif
#if defined(__aarch64__)
    {"neon", [] { return true; }, neon::kLanes, neon::forward_task<float>, nullptr, neon::backward_task,
     neon::reduce_task, neon::content_hash},
#else
    {"baseline", [] { return true; }, baseline::kLanes, baseline::forward_task<float>, nullptr,
     baseline::backward_task, baseline::reduce_task, baseline::content_hash},
#endif
};

const Isa* best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // this runs in a constructor of the library
#endif
  const Isa* isa = kIsas;
  while (!isa->present()) isa++;
  return isa;
}
std::atomic<const Isa*> selected{best_isa()};

}  // namespace

extern "C" {

// Name of the instruction set in use.
KERNEL_EXPORT const char* attention_isa() { return selected.load()->name; }

// Use another instruction set. Returns whether this CPU has it.
KERNEL_EXPORT int attention_select(const char* name) {
  for (const Isa& isa : kIsas)
    if (std::strcmp(isa.name, name) == 0 && isa.present()) {
      selected = &isa;
      return 1;
    }
  return 0;
}

// Whether attention_forward takes bf16. The head size must be a multiple of 16.
KERNEL_EXPORT int attention_takes_bf16() { return selected.load()->forward_bf16 != nullptr; }

// Hash of `bytes` bytes, to detect changed weights. Two different contents have the same hash with probability 2^-64.
KERNEL_EXPORT uint64_t content_hash(const void* data, int64_t bytes) {
  return selected.load()->hash(static_cast<const char*>(data), bytes);
}

// For cpu.py, which compares both with its own version.
KERNEL_EXPORT uint32_t attention_source() { return DEBERTAKIT_SOURCE; }
KERNEL_EXPORT int attention_record_size() { return sizeof(Problem); }

KERNEL_EXPORT int attention_forward(const Problem* problem) try {
  const Isa& isa = *selected.load();
  Plan plan(*problem, isa.lanes);
  if (const Status status = prepare(plan)) return status;
  const int64_t threads = useful_threads(*problem);
  divide_forward(plan, threads);
  const int64_t tasks = static_cast<int64_t>(plan.shares.size()) * problem->heads;
  return run_tasks(plan, tasks, threads, problem->bf16 ? isa.forward_bf16 : isa.forward);
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

KERNEL_EXPORT int attention_backward(const Problem* problem) try {
  const Isa& isa = *selected.load();
  Plan plan(*problem, isa.lanes);
  if (const Status status = prepare(plan)) return status;
  const int64_t threads = useful_threads(*problem), heads = problem->heads;
  divide_backward(plan, threads);
  const int64_t units = static_cast<int64_t>(plan.units.size());
  const int64_t table_rows = plan.has_positions() ? units * 2 * plan.rule.count : 0;
  const int64_t key_rows = int64_t(plan.parts) * 2 * plan.longest_k;
  const std::unique_ptr<float[]> gradients(new float[heads * (table_rows + key_rows) * plan.d_wide]);  // uninitialised
  plan.table_grads = gradients.get();
  plan.key_grads = plan.table_grads + heads * table_rows * plan.d_wide;
  const Status status = run_tasks(plan, heads * units, threads, isa.backward);
  return status == kOk ? run_tasks(plan, heads, threads, isa.reduce) : status;
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

}  // extern "C"
