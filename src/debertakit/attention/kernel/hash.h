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
