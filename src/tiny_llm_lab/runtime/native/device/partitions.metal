// Attention of single rows over pages, in partitions of PARTITION tokens that run at the same time.
//
//   query [T, H, 1, D]   keys, values [blocks, G, BLOCK, D]   tables [R, W]: each request's blocks, in order
//   owners, visible [T or more]: a row's request, and how many stored tokens it sees
//   scale: one float32, times log2(e), so that exp2 takes the place of exp
//   out [T, H, 1, D] of type O if the longest row is one partition. Else PARTS, and out [T, H, P, D + 4] of float32 has
//   for merge.metal: a partition's weighted sum of values, the peak of its scores and the total of its weights. What
//   lies behind a row's last token is not written.
//   grid: LANES * P x simdgroups of all heads x T. A threadgroup is a partition of one row and one kv head, with a
//   simdgroup for each of its query heads: what one of them loads, the others find in the cache. H / G heads that are
//   too many for one threadgroup make several of the same size, and a simdgroup without a head returns.

// Every Apple GPU runs 32 threads in lockstep.
static constant constexpr const uint LANES = 32;
// Below every score. Infinity less infinity would be no number.
static constant constexpr const float LOWEST = -3e38f;

// The sum over the SPAN lanes that share a token.
template <uint SPAN>
float sum_over(float x) {
  if (SPAN == LANES) return simd_sum(x);
  for (ushort step = SPAN / 2; step > 0; step /= 2) x += simd_shuffle_xor(x, step);
  return x;
}

// --- body ---

// Neighbouring elements of a lane, and tokens that are loaded before the first of them is waited for: with D = 256
// half as many, so that they take as many registers.
constexpr uint OWNED = D > 128 ? 8 : 4, TURN = 16 / OWNED;
// With D = 64 each half of a simdgroup takes every other token; with 80, 20 lanes have elements.
constexpr uint SPAN = D > 64 ? LANES : LANES / 2;
constexpr uint HALVES = LANES / SPAN;

const uint H = query_shape[1], G = keys_shape[1], W = tables_shape[1];
const uint lane = thread_index_in_simdgroup;
const uint partition = threadgroup_position_in_grid.x;
const uint row = threadgroup_position_in_grid.z;
const uint sharing = H / G;
const uint count = threads_per_threadgroup.y;
const uint groups = (sharing + count - 1) / count;  // threadgroups of one kv head
const uint group = threadgroup_position_in_grid.y / groups;
const uint place = threadgroup_position_in_grid.y % groups * count + thread_position_in_threadgroup.y;
const uint begin = partition * PARTITION;
const uint end = min(begin + PARTITION, uint(visible[row]));
if (place >= sharing || begin >= end) return;

const uint half_of_lane = lane / SPAN;
const uint first = lane % SPAN * OWNED;
const bool owns = D == SPAN * OWNED || first < D;
const uint head = row * H + group * sharing + place;
float q[OWNED];
float o[OWNED];
for (uint i = 0; i < OWNED; ++i) {
  q[i] = owns ? float(query[head * D + first + i]) * scale : 0;
  o[i] = 0;
}

const uint table = uint(owners[row]) * W;
float peak = LOWEST;
float total = 0;
for (uint s = begin; s < end; s += TURN * HALVES) {
  float k[TURN][OWNED];
  float v[TURN][OWNED];
  #pragma clang loop unroll(full)
  for (uint t = 0; t < TURN; ++t) {
    // Behind the end the last token once more: its weight will be 0.
    const uint at = min(s + t * HALVES + half_of_lane, end - 1);
    const uint block = uint(tables[table + at / BLOCK]);
    // A pool may hold more elements than 32 bits count.
    const size_t token = ((size_t(block) * G + group) * BLOCK + at % BLOCK) * D + first;
    for (uint i = 0; i < OWNED; ++i) {
      k[t][i] = owns ? float(keys[token + i]) : 0;
      v[t][i] = owns ? float(values[token + i]) : 0;
    }
  }
  float scores[TURN];
  float new_peak = peak;
  #pragma clang loop unroll(full)
  for (uint t = 0; t < TURN; ++t) {
    float part = 0;
    for (uint i = 0; i < OWNED; ++i) part += q[i] * k[t][i];
    scores[t] = sum_over<SPAN>(part);
    new_peak = max(new_peak, scores[t]);
  }
  const float shrink = fast::exp2(peak - new_peak);
  peak = new_peak;
  total *= shrink;
  for (uint i = 0; i < OWNED; ++i) o[i] *= shrink;
  #pragma clang loop unroll(full)
  for (uint t = 0; t < TURN; ++t) {
    const float weight = s + t * HALVES + half_of_lane < end ? fast::exp2(scores[t] - peak) : 0;
    total += weight;
    for (uint i = 0; i < OWNED; ++i) o[i] += weight * v[t][i];
  }
}

// Two halves become one.
for (ushort step = SPAN; step < LANES; step *= 2) {
  const float new_peak = max(peak, simd_shuffle_xor(peak, step));
  const float shrink = fast::exp2(peak - new_peak);
  peak = new_peak;
  total *= shrink;
  total += simd_shuffle_xor(total, step);
  for (uint i = 0; i < OWNED; ++i) {
    o[i] *= shrink;
    o[i] += simd_shuffle_xor(o[i], step);
  }
}
if (half_of_lane > 0 || !owns) return;

if (PARTS) {
  const size_t to = (size_t(head) * (threads_per_grid.x / LANES) + partition) * (D + 4);
  for (uint i = 0; i < OWNED; ++i) out[to + first + i] = O(o[i]);
  if (lane == 0) {
    out[to + D] = O(peak);
    out[to + D + 1] = O(total);
  }
} else {
  for (uint i = 0; i < OWNED; ++i) out[head * D + first + i] = O(o[i] / total);
}
