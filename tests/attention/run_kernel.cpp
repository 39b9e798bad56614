// Run the attention kernel without Python: tests/arm.py compiles this file for another CPU and runs it in an emulator.
//
//     run_kernel IN OUT
//
// IN:  int64 sequences, heads, head size, queries, keys, table rows, reach; double scale, dropout; int64 drop_below, seed;
//      float q, k, v, pos_k, pos_q, d_out; int32 q_offsets, k_offsets, q_positions, k_positions, lookup
// OUT: float out, d_q, d_k, d_v, d_pos_k, d_pos_q

#include <cstdio>
#include <vector>

#include "../../src/debertakit/attention/kernel/dispatch.cpp"

namespace {

FILE* in;
FILE* out;

template <class T>
std::vector<T> read(int64_t count) {
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, in) != static_cast<size_t>(count)) std::exit(2);
  return values;
}

Matrix matrix(std::vector<float>& values, int64_t heads, int64_t d) { return {values.data(), heads * d, d}; }

}  // namespace

int main(int, char** arguments) {
  in = std::fopen(arguments[1], "rb");
  out = std::fopen(arguments[2], "wb");
  if (!in || !out) return 2;
  const auto sizes = read<int64_t>(7);
  const auto reals = read<double>(2);
  const auto random = read<int64_t>(2);
  const int64_t sequences = sizes[0], heads = sizes[1], d = sizes[2], queries = sizes[3], keys = sizes[4];
  const int64_t wide = heads * d, rows = sizes[5];
  std::vector<std::vector<float>> given, results;
  for (const int64_t count : {queries, keys, keys, rows, rows, queries}) given.push_back(read<float>(count * wide));
  for (const int64_t count : {queries, queries, keys, keys, rows, rows}) results.emplace_back(count * wide);
  std::vector<float> lse(heads * queries);
  const auto q_offsets = read<int32_t>(sequences + 1), k_offsets = read<int32_t>(sequences + 1);
  const auto q_positions = read<int32_t>(queries), k_positions = read<int32_t>(keys);
  const auto lookup = read<int32_t>(2 * sizes[6] + 1);

  Problem p{};
  Matrix* const inputs[] = {&p.q, &p.k, &p.v, &p.pos_k, &p.pos_q, &p.d_out};
  Matrix* const outputs[] = {&p.out, &p.d_q, &p.d_k, &p.d_v, &p.d_pos_k, &p.d_pos_q};
  for (int i = 0; i < 6; i++) {
    *inputs[i] = matrix(given[i], heads, d);
    *outputs[i] = matrix(results[i], heads, d);
  }
  p.lse = lse.data();
  p.q_offsets = q_offsets.data();
  p.k_offsets = k_offsets.data();
  p.q_positions = q_positions.data();
  p.k_positions = k_positions.data();
  p.lookup = lookup.data();
  p.sequences = sequences;
  p.heads = heads;
  p.head_size = d;
  p.total_queries = queries;
  p.total_keys = keys;
  p.table_rows = rows;
  p.reach = sizes[6];
  p.scale = reals[0];
  p.dropout = reals[1];
  p.drop_below = random[0];
  p.seed = random[1];
  p.threads = 2;
  if (const int status = attention_forward(&p)) return 10 + status;
  if (const int status = attention_backward(&p)) return 10 + status;
  for (const auto& values : results) std::fwrite(values.data(), sizeof(float), values.size(), out);
  std::printf("%s\n", attention_isa());
  return std::fclose(out) != 0;
}
