// What a call computes: which table rows its distances use, and how its work is divided into tasks.

#pragma once

#include <algorithm>
#include <vector>

#include "problem.h"

namespace {

// The table rows of as many neighbouring distances lo, lo + 1, ... as a vector has lanes.
struct Groups {
  int32_t first_row;         // row of distance lo
  uint8_t up[kMostLanes];    // lane t reads first_row + up[t], distances ascending
  uint8_t down[kMostLanes];  // the same, distances descending
  uint8_t last[kMostLanes];  // last[u]: the last lane whose row is at most first_row + u (ascending)
  bool exact;                // each distance has its own row
  bool exact_square;         // the same for all distances of a square of lanes x lanes queries and keys
};

// The distance-to-row rule, prepared once per call for use in the tiles.
struct Rule {
  const int32_t* lookup;
  int reach;
  int lanes;             // distances of a group: floats per vector
  bool monotone = true;  // rows never decrease with the distance
  bool smooth = true;    // monotone, and a group of distances uses at most as many neighbouring rows (`groups`)
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

// A part of one head's work in forward: the queries first .. last - 1 of one sequence.
struct Share {
  int sequence, first, last;
};

// A part of one head's work in backward: all queries of the sequences first .. last - 1, or, if `part` is not negative,
// the queries from .. to - 1 of the sequence `first`. The key gradients of parts are added in the order of the parts.
struct Unit {
  int first, last;
  int from, to;
  int part;
};

struct Plan {
  const Problem& p;
  Rule rule{};
  int64_t d_wide;            // head size rounded up to a multiple of kPanel
  int longest_q = 0, longest_k = 0;
  std::vector<Share> shares;    // forward: tasks are shares x heads
  std::vector<Unit> units;      // backward: tasks are units x heads
  int parts = 0;                // units that are a part of a sequence
  float* table_grads = nullptr;  // backward: [heads, units, 2, rule.count, d_wide]
  float* key_grads = nullptr;    // backward: [heads, parts, 2, longest_k, d_wide], d_k and d_v

  Plan(const Problem& problem, int lanes) : p(problem), d_wide(round_up(problem.head_size, kPanel)) {
    rule.lanes = lanes;
  }

  bool has_positions() const { return p.pos_k.data || p.pos_q.data; }
  float* table_grad(int64_t head, int unit, int which) const {
    return table_grads + ((head * static_cast<int64_t>(units.size()) + unit) * 2 + which) * rule.count * d_wide;
  }
  float* key_grad(int64_t head, int part, int which) const {
    return key_grads + ((head * parts + part) * 2 + which) * longest_k * d_wide;
  }
};

bool build_rule(Plan& plan) {
  Rule& rule = plan.rule;
  const Problem& p = plan.p;
  rule.lookup = p.lookup;
  rule.reach = static_cast<int>(p.reach);
  const int lanes = rule.lanes;
  if (!plan.has_positions()) return true;
  int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
  for (int64_t s = 0; s < p.sequences; s++) {
    const int32_t *q = p.q_positions + p.q_offsets[s], *q_end = p.q_positions + p.q_offsets[s + 1];
    const int32_t *k = p.k_positions + p.k_offsets[s], *k_end = p.k_positions + p.k_offsets[s + 1];
    if (q >= q_end || k >= k_end) continue;
    const auto q_range = std::minmax_element(q, q_end);
    const auto k_range = std::minmax_element(k, k_end);
    // The last block is padded to a multiple of lanes with consecutive positions, which read table rows too.
    const int64_t q_filling = round_up(q_end - q, lanes) - (q_end - q);
    const int64_t k_filling = round_up(k_end - k, lanes) - (k_end - k);
    low = std::min<int64_t>(low, int64_t(*q_range.first) - *k_range.second - k_filling);
    high = std::max<int64_t>(high, int64_t(*q_range.second) + q_filling - *k_range.first);
  }
  if (low > high) return true;
  low = std::min<int64_t>(std::max<int64_t>(low, -rule.reach), rule.reach);
  high = std::min<int64_t>(std::max<int64_t>(high, -rule.reach), rule.reach);
  int64_t least = rule.row(low), most = least;  // 64 bits: the rows are not checked yet, and differences may overflow
  for (int64_t x = low; x <= high; x++) {
    const int64_t r = rule.row(x);
    least = std::min(least, r);
    most = std::max(most, r);
    rule.monotone &= x == low || rule.row(x - 1) <= r;
    rule.smooth &= rule.row(std::min<int64_t>(x + lanes - 1, high)) - r < lanes;
    rule.gentle &= x == low || r - rule.row(x - 1) <= 1;
  }
  if (least < 0 || most >= p.table_rows) return false;
  rule.smooth &= rule.monotone;
  rule.first = static_cast<int>(least / kPanel * kPanel);
  rule.count = static_cast<int>(round_up(most + 1, kPanel)) - rule.first;
  if (!rule.smooth) return true;
  rule.lowest_group = low - (lanes - 1);
  rule.groups.resize(high - rule.lowest_group + 1);
  for (int64_t lo = rule.lowest_group; lo <= high; lo++) {
    Groups& g = rule.groups[lo - rule.lowest_group];
    int rows[kMostLanes] = {};
    for (int t = 0; t < lanes; t++) rows[t] = rule.row(std::min(std::max(lo + t, low), high));
    g.first_row = rows[0];
    for (int t = 0; t < lanes; t++) {
      g.up[t] = static_cast<uint8_t>(rows[t] - rows[0]);
      g.down[lanes - 1 - t] = g.up[t];
    }
    for (int u = 0, t = 0; u < lanes; u++) {
      while (t < lanes && g.up[t] <= u) t++;
      g.last[u] = static_cast<uint8_t>(t - 1);
    }
    const int64_t end = lo + 2 * (lanes - 1);  // the last distance of a square
    g.exact = g.up[lanes - 1] == lanes - 1;
    g.exact_square = lo >= low && end <= high && rule.row(end) - rows[0] == end - lo && rule.gentle;
  }
  return true;
}

int64_t pairs(const Problem& p, int64_t s) {
  return int64_t(p.q_offsets[s + 1] - p.q_offsets[s]) * (p.k_offsets[s + 1] - p.k_offsets[s]);
}

Status prepare(Plan& plan) {
  const Problem& p = plan.p;
  // The offsets must cover all rows: results are not initialised.
  if (p.q_offsets[0] != 0 || p.k_offsets[0] != 0 || p.q_offsets[p.sequences] != p.total_queries ||
      p.k_offsets[p.sequences] != p.total_keys)
    return kBadOffsets;
  for (int64_t s = 0; s < p.sequences; s++)
    if (p.q_offsets[s] > p.q_offsets[s + 1] || p.k_offsets[s] > p.k_offsets[s + 1]) return kBadOffsets;
  for (int64_t s = 0; s < p.sequences; s++) {
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

// Split a long sequence among threads only if there are too few (sequence, head) pairs, because each share packs the
// keys and values of its sequence again.
void divide_forward(Plan& plan, int64_t threads) {
  const Problem& p = plan.p;
  const int64_t wanted = (4 * threads + p.heads - 1) / p.heads;
  for (int64_t s = 0; s < p.sequences; s++) {
    const int queries = p.q_offsets[s + 1] - p.q_offsets[s];
    int step = queries;
    if (threads > 1 && p.sequences < wanted)
      step = static_cast<int>(round_up(std::max<int64_t>(queries * p.sequences / wanted, 1), kBlock));
    for (int first = 0; first < queries; first += step)
      plan.shares.push_back({static_cast<int>(s), first, std::min(first + step, queries)});
  }
}

// With fewer (sequence, head) pairs than threads, each sequence is divided into parts of whole query blocks. Each part
// needs a buffer for the gradients of all keys.
void divide_backward(Plan& plan, int64_t threads) {
  const Problem& p = plan.p;
  if (threads > 1 && p.sequences * p.heads < 2 * threads) {
    const int64_t wanted = (2 * threads + p.heads * p.sequences - 1) / (p.heads * p.sequences);  // per sequence
    for (int s = 0; s < p.sequences; s++) {
      const int queries = p.q_offsets[s + 1] - p.q_offsets[s];
      const int step = static_cast<int>(round_up(std::max<int64_t>(queries / wanted, 1), kBlock));
      for (int from = 0; queries > step && from < queries; from += step)
        plan.units.push_back({s, s + 1, from, std::min(from + step, queries), plan.parts++});
      if (queries <= step) plan.units.push_back({s, s + 1, 0, queries, -1});
    }
    return;
  }
  // The sequences of a unit share one table gradient per head. Units are balanced by their number of scores.
  const int64_t wanted = threads == 1 ? 1 : std::max<int64_t>((3 * threads + p.heads - 1) / p.heads, 1);
  int64_t total = 0, sum = 0;
  for (int64_t s = 0; s < p.sequences; s++) total += pairs(p, s);
  for (int s = 0, first = 0; s < p.sequences; s++) {
    sum += pairs(p, s);
    const bool full = sum * std::min(wanted, p.sequences) >= total * static_cast<int64_t>(plan.units.size() + 1);
    if (!full && s + 1 < p.sequences) continue;
    plan.units.push_back({first, s + 1, 0, 0, -1});
    first = s + 1;
  }
}

}  // namespace
