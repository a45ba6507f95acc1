// The partitions of partitions.metal, merged.
//
//   parts [T, H, P, D + 4] float32: of each partition its sum of values, its peak and its total
//   visible [T or more]: how many stored tokens a row sees, and so how many partitions were written
//   out [T, H, 1, D] of type O
//   grid: LANES x H x T threads. A simdgroup merges one query head of a row.

// Every Apple GPU runs 32 threads in lockstep.
static constant constexpr const uint LANES = 32;
static constant constexpr const float LOWEST = -3e38f;

// --- body ---

constexpr uint OWNED = D > 128 ? 8 : 4;  // neighbouring elements of a lane
const uint H = parts_shape[1], P = parts_shape[2];
const uint lane = thread_index_in_simdgroup;
const uint row = thread_position_in_grid.z;
const uint head = row * H + thread_position_in_grid.y;
const uint used = (uint(visible[row]) + PARTITION - 1) / PARTITION;
const size_t start = size_t(head) * P * (D + 4);

float peak = LOWEST;
for (uint p = lane; p < used; p += LANES) peak = max(peak, parts[start + p * (D + 4) + D]);
peak = simd_max(peak);

const uint first = lane * OWNED;
if (first >= D) return;
float o[OWNED];
for (uint i = 0; i < OWNED; ++i) o[i] = 0;
float total = 0;
for (uint p = 0; p < used; ++p) {
  const size_t part = start + p * (D + 4);
  const float weight = fast::exp2(parts[part + D] - peak);
  total += weight * parts[part + D + 1];
  for (uint i = 0; i < OWNED; ++i) o[i] += weight * parts[part + first + i];
}
for (uint i = 0; i < OWNED; ++i) out[head * D + first + i] = O(o[i] / total);
