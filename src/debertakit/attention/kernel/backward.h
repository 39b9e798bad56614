// The backward pass of one head of one unit: some sequences, or some queries of one sequence.

// Compute weights and gradients in place: S -> P after dropout, dP -> dS / scale.
void backward_row(const Plan& plan, float* s, float* ds, const Block& k, int64_t query, int64_t head, float lse2,
                  float delta) {
  const Problem& p = plan.p;
  const int n = seen(p, query, k);
  const int filled = static_cast<int>(round_up(n, kLanes));
  for (int j = n; j < filled; j++) s[j] = -std::numeric_limits<float>::infinity();
  const float factor = log2_scale(p);
  const bool dropping = p.drop_below != 0;
  const float keep = static_cast<float>(1.0 / (1.0 - p.dropout));
  const uint32_t state = dropping ? dropout_state(p, query, head) : 0;
  for (int j = 0; j < filled; j += kLanes) {
    F weight = load<F>(s + j) * factor - lse2;
    exp2_inplace(weight);
    F grad = load<F>(ds + j);
    F kept = weight;
    if (dropping) {
      drop(state, k.first + j, static_cast<uint32_t>(p.drop_below), grad);
      drop(state, k.first + j, static_cast<uint32_t>(p.drop_below), kept);
      grad *= keep;
      kept *= keep;
    }
    store(s + j, kept);
    store(ds + j, weight * (grad - delta));
  }
  for (int j = filled; j < k.filled; j += kLanes) {
    store(s + j, F{});
    store(ds + j, F{});
  }
}

// Buffers of the backward pass for one sequence and head, in addition to Work.
struct Pass {
  float *k_columns, *k_rows, *v_columns;  // B of S; B of dQ and dpos_q; B of dP
  float *q_rows, *d_out_rows;             // B of dK and dpos_k; B of dV
  float *d_q, *d_k, *d_v;                 // [queries x d_wide], [kBlock x d_wide], [kBlock x d_wide]
  float *ds, *lse2, *delta;
  float *d_pos_k, *d_pos_q;               // [rule.count x d_wide]
};

int64_t backward_floats(const Plan& plan) {
  const int64_t d = plan.p.head_size, wide = plan.d_wide;
  const int64_t keys = round_up(plan.longest_k, kPanel), queries = round_up(plan.longest_q, kPanel);
  return head_floats(plan, true) + tile_floats(plan.rule) + keys * (2 * d + wide) + queries * (3 * wide + 2) +
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
    strip<float, false, true>(mine.strips.size(s), grads + m * w.line + r.first - w.row0, w.line,
                              table_rows + int64_t(r.first - rule.first) * kPanel, int64_t(rule.count) * kPanel,
                              r.last - r.first, panels, d_mine + m * plan.d_wide, plan.d_wide);
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
    strip<float, true, true>(size, grads + a * w.line + row - w.row0, w.line, my_rows + a * kPanel, my_panel, depth,
                             panels, d_table + (row - rule.first) * plan.d_wide, plan.d_wide);
  }
}

void backward_tile(const Plan& plan, Work& w, const Pass& t, const Block& q, const Block& k, int64_t query0,
                   int64_t key0, int64_t head, int q_padded, int k_padded) {
  const Problem& p = plan.p;
  const int d = static_cast<int>(p.head_size);
  const int panels = static_cast<int>(plan.d_wide / kPanel);
  const int64_t q_panel = int64_t(q_padded) * kPanel, k_panel = int64_t(k_padded) * kPanel;
  tile_products<float>(plan, w, q, k, p.q.at(query0 + q.first, head), p.q.row, p.k.at(key0 + k.first, head), p.k.row,
                       t.k_columns + int64_t(k.first) * d);
  product<float, false, false>(q.strips, p.d_out.at(query0 + q.first, head), p.d_out.row, t.v_columns + int64_t(k.first) * d,
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
  product<float, true, true>(k.strips, w.s, kLineS, t.d_out_rows + q.first * kPanel, q_panel, q.count, panels, t.d_v,
                      plan.d_wide);
  product<float, true, true>(k.strips, t.ds, kLineS, t.q_rows + q.first * kPanel, q_panel, q.count, panels, t.d_k,
                      plan.d_wide);
  float* d_q = t.d_q + q.first * plan.d_wide;
  product<float, false, true>(q.strips, t.ds, kLineS, t.k_rows + k.first * kPanel, k_panel, k.count, panels, d_q,
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
    for (int c = 0; c < d; c += 8) store(to + r * to_line + c, load<F8>(from + r * from_line + c) * factor);
}

void backward_sequence(const Plan& plan, Work& w, Pass& t, const Unit& unit, int64_t sequence, int64_t head) {
  const Problem& p = plan.p;
  const bool part = unit.part >= 0;
  const int d = static_cast<int>(p.head_size);
  const int64_t query0 = p.q_offsets[sequence] + (part ? unit.from : 0), key0 = p.k_offsets[sequence];
  const int queries = part ? unit.to - unit.from : static_cast<int>(p.q_offsets[sequence + 1] - query0);
  const int keys = static_cast<int>(p.k_offsets[sequence + 1] - key0);
  const int q_padded = static_cast<int>(round_up(queries, kPanel)), k_padded = static_cast<int>(round_up(keys, kPanel));
  const float scale = static_cast<float>(p.scale);

  if (queries) {
    pack_rows(p.q.at(query0, head), p.q.row, queries, q_padded, d, t.q_rows);
    pack_rows(p.d_out.at(query0, head), p.d_out.row, queries, q_padded, d, t.d_out_rows);
    std::memset(t.d_q, 0, queries * plan.d_wide * sizeof(float));
  }
  if (keys) {
    pack_columns(p.k.at(key0, head), p.k.row, keys, d, t.k_columns);
    pack_columns(p.v.at(key0, head), p.v.row, keys, d, t.v_columns);
    pack_rows(p.k.at(key0, head), p.k.row, keys, k_padded, d, t.k_rows);
  }
  for (int i = 0; i < queries; i++) {
    const float *o = p.out.at(query0 + i, head), *g = p.d_out.at(query0 + i, head);
    F8 delta = {};
    for (int c = 0; c < d; c += 8) delta += load<F8>(o + c) * load<F8>(g + c);
    t.delta[i] = sum8(delta);
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
    float* d_k = part ? plan.key_grad(head, unit.part, 0) + j0 * d : p.d_k.at(key0 + j0, head);
    float* d_v = part ? plan.key_grad(head, unit.part, 1) + j0 * d : p.d_v.at(key0 + j0, head);
    write_scaled(t.d_k, plan.d_wide, k.count, d, scale, d_k, part ? d : p.d_k.row);
    write_scaled(t.d_v, plan.d_wide, k.count, d, 1.0f, d_v, part ? d : p.d_v.row);
  }
  write_scaled(t.d_q, plan.d_wide, queries, d, scale, p.d_q.at(query0, head), p.d_q.row);
}

void backward_task(const Plan& plan, int64_t task) {
  const Problem& p = plan.p;
  const int64_t units = static_cast<int64_t>(plan.units.size()), head = task / units;
  const int number = static_cast<int>(task % units);
  const Unit& unit = plan.units.data()[number];
  if (!arena.reserve(backward_floats(plan) * sizeof(float) + 4096)) return task_failed->store(true);

  Work w;
  if (plan.has_positions()) pack_head<float>(plan, head, true, w.head);
  take_tile(plan.rule, w);
  const int64_t d = p.head_size, wide = plan.d_wide;
  const int64_t keys = round_up(plan.longest_k, kPanel), queries = round_up(plan.longest_q, kPanel);
  Pass t{};
  t.k_columns = arena.floats(keys * d);
  t.v_columns = arena.floats(keys * d);
  t.k_rows = arena.floats(keys * wide);
  t.q_rows = arena.floats(queries * wide);
  t.d_out_rows = arena.floats(queries * wide);
  t.d_q = arena.floats(queries * wide);
  t.lse2 = arena.floats(queries);
  t.delta = arena.floats(queries);
  t.d_k = arena.floats(kBlock * wide);
  t.d_v = arena.floats(kBlock * wide);
  t.ds = arena.floats(kBlock * int64_t(kLineS));
  const size_t table = plan.rule.count * wide * sizeof(float);
  if (p.d_pos_k.data) std::memset(t.d_pos_k = plan.table_grad(head, number, 0), 0, table);
  if (p.d_pos_q.data) std::memset(t.d_pos_q = plan.table_grad(head, number, 1), 0, table);
  for (int s = unit.first; s < unit.last; s++) backward_sequence(plan, w, t, unit, s, head);
}

// The key gradients of one head of a divided sequence: the sum over its parts.
void reduce_parts(const Plan& plan, int64_t head) {
  const Problem& p = plan.p;
  const int d = static_cast<int>(p.head_size);
  for (size_t u = 0; u < plan.units.size(); u++) {
    const Unit& unit = plan.units.data()[u];
    if (unit.part < 0) continue;
    const int64_t key0 = p.k_offsets[unit.first], keys = p.k_offsets[unit.first + 1] - key0;
    for (int which = 0; which < 2; which++) {
      const Matrix& to = which ? p.d_v : p.d_k;
      const float* from = plan.key_grad(head, unit.part, which);
      for (int64_t j = 0; j < keys; j++)
        for (int c = 0; c < d; c += 8) {
          float* sum = to.at(key0 + j, head) + c;
          const F8 more = load<F8>(from + j * d + c);
          store(sum, unit.from == 0 ? more : load<F8>(sum) + more);
        }
    }
  }
}

// The table gradients of one head: the sum over the units, and zeros for unused rows.
void reduce_tables(const Plan& plan, int64_t head) {
  const Problem& p = plan.p;
  const Rule& rule = plan.rule;
  const float scale = static_cast<float>(p.scale);
  const int units = static_cast<int>(plan.units.size());
  for (int which = 0; which < 2; which++) {
    const Matrix& to = which ? p.d_pos_q : p.d_pos_k;
    if (!to.data) continue;
    for (int64_t row = 0; row < p.table_rows; row++) {
      const bool reached = row >= rule.first && row < rule.first + rule.count;
      for (int64_t c = 0; c < p.head_size; c += 8) {
        F8 sum = {};
        for (int u = 0; reached && u < units; u++)
          sum += load<F8>(plan.table_grad(head, u, which) + (row - rule.first) * plan.d_wide + c);
        store(to.at(row, head) + c, sum * scale);
      }
    }
  }
}

void reduce_task(const Plan& plan, int64_t head) {
  reduce_parts(plan, head);
  reduce_tables(plan, head);
}
