// Dropout, visibility, and the packed position tables: used by both passes.
//
// Dropout equals reference.keep_mask.

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

// Apply dropout to the weights x of keys key .. key + kLanes - 1, without the scaling by 1 / (1 - dropout).
KERNEL_INLINE void drop(uint32_t state, int key, uint32_t below, F& x) {
  constexpr uint32_t kCount[kMostLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const U keys = load<U>(kCount) + static_cast<uint32_t>(key);
  U hash = (keys * 0xC2B2AE3Du) ^ state;
  mix(hash);
  x = hash >= below ? x : F{};
}

// Number of keys of a block that a query sees.
KERNEL_INLINE int seen(const Problem& p, int64_t query, const Block& k) {
  if (!p.visible) return k.count;
  const int64_t n = int64_t(p.visible[query]) - k.first;
  return n < 0 ? 0 : n < k.count ? static_cast<int>(n) : k.count;
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
template <class T>
void pack_head(const Plan& plan, int64_t head, bool backward, Head& to) {
  const Problem& p = plan.p;
  const Rule& rule = plan.rule;
  const int d = static_cast<int>(p.head_size / kPerWord<T>);
  const int64_t there = p.table_rows - rule.first;
  const int count = static_cast<int>(there < rule.count ? there : rule.count);
  const bool packed = packed_head == head;
  const Matrix tables[2] = {p.pos_k, p.pos_q};
  for (int which = 0; which < 2; which++) {
    const Matrix& table = tables[which];
    if (!table.data) continue;
    to.columns[which] = arena.floats(rule.count * plan.d_wide);
    to.rows[which] = backward ? arena.floats(rule.count * plan.d_wide) : nullptr;
    if (packed) continue;
    const float* from = table.at(rule.first, head);
    pack_columns(from, table.row, count, d, to.columns[which]);
    if (backward) pack_rows(from, table.row, count, rule.count, d, to.rows[which]);
  }
  packed_head = head;
}
