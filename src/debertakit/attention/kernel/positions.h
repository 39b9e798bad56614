// The position terms of a tile: steps 1 and 2 of dispatch.cpp, and the transpose of step 2.

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
  int far_row;         // the single table row that all pairs of the tile use (beyond the last bucket), or -1
  Range q_rows[Strips::kMost], k_rows[Strips::kMost];
};
constexpr int kLineS = kBlock + 16;  // not a power of two, so that a column of a tile uses different cache sets

int64_t tile_floats(const Rule& rule) {
  return kBlock * int64_t(kLineS) + 2 * (kBlock + kLanes) * int64_t(rule.count + 48);
}

// Set the scores of a far tile to its position terms: one value per query (c2p) and one per key (p2c).
void fill_far_tile(const Plan& plan, const Work& w, const Block& q, const Block& k) {
  const int column = w.far_row - w.row0;
  float p2c[kBlock] = {};
  if (plan.p.pos_q.data)
    for (int j = 0; j < k.count; j++) p2c[j] = w.p2c[j * w.line + column];
  for (int i = 0; i < q.count; i++) {
    const float c2p = plan.p.pos_k.data ? w.c2p[i * w.line + column] : 0.0f;
    for (int j = 0; j < k.filled; j += 8) store(w.s + i * kLineS + j, load<F8>(p2c + j) + c2p);
  }
}

void take_tile(const Rule& rule, Work& w) {
  w.s = arena.floats(kBlock * int64_t(kLineS));
  w.c2p = arena.floats((kBlock + kLanes) * int64_t(rule.count + 48));
  w.p2c = arena.floats((kBlock + kLanes) * int64_t(rule.count + 48));
}

// The table rows of one position term that a strip of `mine` uses: strips of A times the panels that hold these rows.
template <class T>
void position_product(const Plan& plan, const Work& w, const Strips& strips, const Range* ranges, int last_row,
                      const float* rows, int64_t stride, const float* columns, float* to) {
  const int64_t d = plan.p.head_size / kPerWord<T>;
  for (int row = w.row0; row < last_row; row += kPair * kPanel)
    for (int s = 0; s < strips.count; s++) {
      const int from = std::max(row, ranges[s].first / kPanel * kPanel);
      const int panels = (std::min(row + kPair * kPanel, ranges[s].last) - from + kPanel - 1) / kPanel;
      const int m = strips.start[s];
      strip<T, false, false>(strips.size(s), rows + m * stride, stride, columns + (from - plan.rule.first) * d,
                             kPanel * d, static_cast<int>(d), panels, to + m * w.line + from - w.row0, w.line);
    }
}

// Step 1: the three products. A far tile starts from its row and column bias, so step 2 has nothing to add.
template <class T>
void tile_products(const Plan& plan, Work& w, const Block& q, const Block& k, const float* q_rows, int64_t q_stride,
                   const float* k_rows, int64_t k_stride, const float* k_columns) {
  const int d = static_cast<int>(plan.p.head_size / kPerWord<T>);
  const int panels = (k.filled + kPanel - 1) / kPanel;
  w.far_row = -1;
  if (plan.has_positions()) {
    const Rule& rule = plan.rule;
    const Range all = rows_between(rule, int64_t(q.least) - k.most, int64_t(q.most) - k.least);
    w.row0 = all.first / kPanel * kPanel;
    w.line = static_cast<int>(round_up(all.last + kLanes, kPanel)) - w.row0;
    if (w.line / kPanel % 2 == 0) w.line += kPanel;  // odd number of panels, for the same reason as kLineS
    if (all.last - all.first == 1) w.far_row = all.first;
    strip_ranges(rule, q, k, +1, w.q_rows);
    strip_ranges(rule, k, q, -1, w.k_rows);
    if (plan.p.pos_k.data)
      position_product<T>(plan, w, q.strips, w.q_rows, all.last, q_rows, q_stride, w.head.columns[0], w.c2p);
    if (plan.p.pos_q.data)
      position_product<T>(plan, w, k.strips, w.k_rows, all.last, k_rows, k_stride, w.head.columns[1], w.p2c);
  }
  if (w.far_row < 0)
    return product<T, false, false>(q.strips, q_rows, q_stride, k_columns, kPanel * d, d, panels, w.s, kLineS);
  fill_far_tile(plan, w, q, k);
  product<T, false, true>(q.strips, q_rows, q_stride, k_columns, kPanel * d, d, panels, w.s, kLineS);
}

// p2c of queries i .. i + kLanes - 1 against keys j .. j + kLanes - 1: one vector per key, along the queries.
KERNEL_INLINE void read_p2c(const Rule& rule, const Work& w, const Block& q, const Block& k, int i, int j, bool run,
                            F* x) {
  for (int t = 0; t < kLanes; t++) {
    const float* row = w.p2c + (j + t) * w.line - w.row0;
    if (run) {
      const Groups& g = rule.group(int64_t(q.position[i]) - k.position[j + t]);
      x[t] = permute(load<F>(row + g.first_row), g.up);
    } else {
      for (int u = 0; u < kLanes; u++) x[t][u] = row[rule.row(int64_t(q.position[i + u]) - k.position[j + t])];
    }
  }
}

// c2p of one query against keys j .. j + kLanes - 1.
KERNEL_INLINE void read_c2p(const Rule& rule, const Work& w, const Block& q, const Block& k, int i, int j, bool run,
                            F& y) {
  const float* row = w.c2p + i * w.line - w.row0;
  if (run) {
    const Groups& g = rule.group(int64_t(q.position[i]) - k.position[j] - (kLanes - 1));
    y = permute(load<F>(row + g.first_row), g.down);
  } else {
    for (int u = 0; u < kLanes; u++) y[u] = row[rule.row(int64_t(q.position[i]) - k.position[j + u])];
  }
}

// Step 2 for queries i .. i + kLanes - 1: add the position terms to the scores.
template <bool kC2P, bool kP2C>
void add_positions(const Rule& rule, const Work& w, const Block& q, const Block& k, int i) {
  const bool queries_run = rule.smooth && q.consecutive[i / kLanes];
  for (int j = 0; j < k.filled; j += kLanes) {
    const bool keys_run = rule.smooth && k.consecutive[j / kLanes];
    float* s = w.s + i * kLineS + j;
    F x[kLanes];
    if (queries_run && keys_run) {
      const Groups& g = rule.group(int64_t(q.position[i]) - k.position[j] - (kLanes - 1));
      if (g.exact_square) {  // near distances: one row per distance, no permutation needed
        if (kP2C) {
          const float* at = w.p2c + j * w.line - w.row0 + g.first_row + kLanes - 1;
          for (int t = 0; t < kLanes; t++) x[t] = load<F>(at + t * (w.line - 1));
          transpose(x);
        }
        const float* at = w.c2p + i * w.line - w.row0 + g.first_row;
        for (int t = 0; t < kLanes; t++) {
          F y = load<F>(s + t * kLineS);
          if (kP2C) y += x[t];
          if (kC2P) {
            const F c = load<F>(at + t * (w.line + 1));
            y += shuffle<Reversed>(c, c);
          }
          store(s + t * kLineS, y);
        }
        continue;
      }
    }
    if (kP2C) {
      read_p2c(rule, w, q, k, i, j, queries_run, x);
      transpose(x);
    }
    for (int t = 0; t < kLanes; t++) {
      F y = load<F>(s + t * kLineS);
      if (kP2C) y += x[t];
      if (kC2P) {
        F c;
        read_c2p(rule, w, q, k, i + t, j, keys_run, c);
        y += c;
      }
      store(s + t * kLineS, y);
    }
  }
}

void add_position_terms(const Plan& plan, const Work& w, const Block& q, const Block& k, int i) {
  const bool c2p = plan.p.pos_k.data, p2c = plan.p.pos_q.data;
  if (w.far_row >= 0) return;
  if (c2p && p2c) return add_positions<true, true>(plan.rule, w, q, k, i);
  if (c2p) return add_positions<true, false>(plan.rule, w, q, k, i);
  if (p2c) return add_positions<false, true>(plan.rule, w, q, k, i);
}

// The transpose of add_positions: fold dS of kLanes queries into the buffers c2p and p2c.
template <bool kC2P, bool kP2C>
void fold_positions(const Rule& rule, const Work& w, const Block& q, const Block& k, int i, const float* ds) {
  const bool queries_run = rule.smooth && q.consecutive[i / kLanes];
  for (int j = 0; j < k.filled; j += kLanes) {
    const bool keys_run = rule.smooth && k.consecutive[j / kLanes];
    F x[kLanes];
    for (int t = 0; t < kLanes; t++) x[t] = load<F>(ds + (i + t) * kLineS + j);
    if (kC2P) {
      for (int t = 0; t < kLanes; t++) {
        float* row = w.c2p + (i + t) * w.line - w.row0;
        if (keys_run) {
          fold(row, rule.group(int64_t(q.position[i + t]) - k.position[j] - (kLanes - 1)),
               shuffle<Reversed>(x[t], x[t]));
        } else {
          for (int u = 0; u < kLanes; u++) row[rule.row(int64_t(q.position[i + t]) - k.position[j + u])] += x[t][u];
        }
      }
    }
    if (kP2C) {
      transpose(x);
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

// The transpose of fill_far_tile.
void fold_far_tile(const Work& w, const Block& q, const Block& k, const float* ds) {
  F down[kBlock / kLanes] = {};
  for (int i = 0; i < q.count; i++) {
    F across = {};
    for (int j = 0; j < k.filled; j += kLanes) {
      const F x = load<F>(ds + i * kLineS + j);
      across += x;
      down[j / kLanes] += x;
    }
    w.c2p[i * w.line + w.far_row - w.row0] = sum(across);
  }
  for (int j = 0; j < k.filled; j++) w.p2c[j * w.line + w.far_row - w.row0] = down[j / kLanes][j % kLanes];
}

void fold_position_terms(const Plan& plan, const Work& w, const Block& q, const Block& k, const float* ds) {
  const bool c2p = plan.p.pos_k.data, p2c = plan.p.pos_q.data;
  if (w.far_row >= 0) return fold_far_tile(w, q, k, ds);
  for (int i = 0; i < q.filled; i += kLanes) {
    if (c2p && p2c)
      fold_positions<true, true>(plan.rule, w, q, k, i, ds);
    else if (c2p)
      fold_positions<true, false>(plan.rule, w, q, k, i, ds);
    else
      fold_positions<false, true>(plan.rule, w, q, k, i, ds);
  }
}

