// The forward pass of one head of one share of a sequence.

struct Softmax {  // running softmax of the queries of one block, over the key blocks so far
  float highest[kBlock], sum[kBlock];
};

// Replace the scores of query i by unnormalised weights, and rescale the previous o and sum to the new maximum.
void softmax_row(const Plan& plan, const Work& w, Softmax& soft, const Block& k, int i, int64_t query, int64_t head,
                 float* o) {
  float* s = w.s + i * kLineS;
  const int n = seen(plan.p, query, k);
  const int filled = static_cast<int>(round_up(n, kLanes));
  const float factor = log2_scale(plan.p);
  for (int j = n; j < filled; j++) s[j] = -std::numeric_limits<float>::infinity();
  for (int j = filled; j < k.filled; j += kLanes) store(s + j, F{});
  if (n == 0) return;

  F most = load<F>(s);
  for (int j = kLanes; j < filled; j += kLanes) {
    const F x = load<F>(s + j);
    most = x > most ? x : most;
  }
  const float before = soft.highest[i];
  const float highest = std::max(before, max(most) * factor);
  F total = {};
  for (int j = 0; j < filled; j += kLanes) {
    F x = load<F>(s + j) * factor - highest;
    exp2_inplace(x);
    total += x;
    store(s + j, x);
  }
  if (plan.p.drop_below) {
    const uint32_t state = dropout_state(plan.p, query, head);
    for (int j = 0; j < filled; j += kLanes) {
      F x = load<F>(s + j);
      drop(state, k.first + j, static_cast<uint32_t>(plan.p.drop_below), x);
      store(s + j, x);
    }
  }
  if (highest > before) {
    const float shrink = std::exp2(before - highest);  // 0 for the first key block
    soft.sum[i] *= shrink;
    for (int64_t c = 0; c < plan.d_wide; c += 8) store(o + c, load<F8>(o + c) * shrink);
  }
  soft.highest[i] = highest;
  soft.sum[i] += sum(total);
}

// Words of the arena that a forward task needs. bf16 needs half of some of them.
int64_t forward_floats(const Plan& plan) {
  const int64_t keys = round_up(plan.longest_k, kPanel);
  return head_floats(plan, false) + tile_floats(plan.rule) + keys * (plan.p.head_size + plan.d_wide) +
         kBlock * plan.d_wide + 16 * kPanel;
}

// Write the outputs and the logsumexp of a block of queries.
template <class T>
void finish_queries(const Plan& plan, const Softmax& soft, const Block& q, int64_t query0, int64_t head, float* o) {
  const Problem& p = plan.p;
  const int d = static_cast<int>(p.head_size);
  const float keep = static_cast<float>(1.0 / (1.0 - p.dropout));
  for (int i = 0; i < q.count; i++, o += plan.d_wide) {
    const int64_t query = query0 + q.first + i;
    const float sum = soft.sum[i];
    const float factor = soft.highest[i] == -std::numeric_limits<float>::infinity() ? 0.0f : keep / sum;
    for (int c = 0; c < d; c += 8) store(o + c, load<F8>(o + c) * factor);
#ifdef ISA_BF16
    if constexpr (kPerWord<T> == 2)
      narrow(o, d, p.out.at(query, head));
    else
#endif
      std::memcpy(p.out.at(query, head), o, d * sizeof(float));
    if (p.lse)
      p.lse[head * p.total_queries + query] =
          static_cast<float>((soft.highest[i] + std::log2(static_cast<double>(sum))) * 0.6931471805599453);
  }
}

template <class T>
void forward_task(const Plan& plan, int64_t task) {
  const Problem& p = plan.p;
  const int64_t shares = static_cast<int64_t>(plan.shares.size());
  const int64_t head = task / shares;
  const Share share = plan.shares.data()[task % shares];
  const int d = static_cast<int>(p.head_size / kPerWord<T>);
  const int64_t query0 = p.q_offsets[share.sequence], key0 = p.k_offsets[share.sequence];
  const int keys = p.k_offsets[share.sequence + 1] - p.k_offsets[share.sequence];
  const int key_rows = static_cast<int>(round_up(keys, kPanel));
  const int64_t v_panel = key_rows / kPerWord<T> * kPanel;
  if (!arena.reserve(forward_floats(plan) * sizeof(float) + 4096)) return task_failed->store(true);

  Work w;
  if (plan.has_positions()) pack_head<T>(plan, head, false, w.head);
  take_tile(plan.rule, w);
  float* k_columns = arena.floats(int64_t(key_rows) * d);
  float* v_rows = arena.floats(key_rows * plan.d_wide);
  float* o = arena.floats(kBlock * plan.d_wide);
  pack_columns(p.k.at(key0, head), p.k.row, keys, d, k_columns);
#ifdef ISA_BF16
  if constexpr (kPerWord<T> == 2)
    pack_row_pairs(reinterpret_cast<const uint16_t*>(p.v.at(key0, head)), 2 * p.v.row, keys, key_rows, 2 * d, v_rows);
  else
#endif
    pack_rows(p.v.at(key0, head), p.v.row, keys, key_rows, d, v_rows);

  for (int i0 = share.first; i0 < share.last; i0 += kBlock) {
    const Block q(p.q_positions + query0, i0, std::min(kBlock, share.last - i0));
    std::memset(o, 0, q.count * plan.d_wide * sizeof(float));
    Softmax soft;
    for (int i = 0; i < q.count; i++) {
      soft.highest[i] = -std::numeric_limits<float>::infinity();
      soft.sum[i] = 0.0f;
    }
    for (int j0 = 0; j0 < keys; j0 += kBlock) {
      const Block k(p.k_positions + key0, j0, std::min(kBlock, keys - j0));
      if (sees_nothing(p, query0, q, k)) continue;
      tile_products<T>(plan, w, q, k, p.q.at(query0 + i0, head), p.q.row, p.k.at(key0 + j0, head), p.k.row,
                       k_columns + int64_t(j0) * d);
      for (int i = 0; i < q.count; i += kLanes) {
        add_position_terms(plan, w, q, k, i);
        for (int t = i; t < std::min(i + kLanes, q.count); t++) {
          softmax_row(plan, w, soft, k, t, query0 + i0 + t, head, o + t * plan.d_wide);
#ifdef ISA_BF16
          if constexpr (kPerWord<T> == 2) narrow(w.s + t * kLineS, k.filled, w.s + t * kLineS);
#endif
        }
      }
      product<T, false, true>(q.strips, w.s, kLineS, v_rows + j0 / kPerWord<T> * kPanel, v_panel,
                              k.filled / static_cast<int>(kPerWord<T>), static_cast<int>(plan.d_wide / kPanel), o,
                              plan.d_wide);
    }
    finish_queries<T>(plan, soft, q, query0, head, o);
  }
}
