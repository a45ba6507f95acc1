// Paged attention: the loop of flash_attention.metal, but it looks up the place of every token.
//
//   query [T, H, 1, D]   keys, values [blocks, G, block size, D]   tables [R, W]: each request's blocks, in order
//   owners, visible [T or more]: a row's request, and how many stored tokens it sees   scale: one float32
//   out [T, H, 1, D] of type T (template)
//   grid: LANES x T x H threads. The LANES threads of one query row are a simdgroup.
//
// MLX writes the kernel's signature. It has the inputs in this order, the output, the template values T and D, and
// whatever else the body mentions. Arrays of fewer than 8 elements are in `constant` memory, so index all arrays by
// their names, without pointers of your own.

// Every Apple GPU runs 32 threads in lockstep.
static constant constexpr const uint LANES = 32;

// --- body ---

const uint lane = thread_index_in_simdgroup;
const uint row = thread_position_in_grid.y;
const uint head = thread_position_in_grid.z;
const uint H = query_shape[1];
const uint G = keys_shape[1];
const uint BLOCK = keys_shape[2];
const uint W = tables_shape[1];

// BEGIN task 3.2.4
// Lane l owns the elements l, l + LANES, ... of the query and of the output. They stay in registers only if the
// compiler unrolls the loops over them, so `i` counts to a constant, whatever the lane. If LANES divides D,
// all lanes own equally many, and the compiler removes the test.
constexpr uint OWNED = (D + LANES - 1) / LANES;
float q[OWNED];
float o[OWNED];
const uint start = (row * H + head) * D;
for (uint i = 0; i < OWNED; ++i) {
  const uint d = lane + i * LANES;
  if (D % LANES == 0 || d < D) {
    q[i] = float(query[start + d]) * scale;
    o[i] = 0;
  }
}

const uint table = uint(owners[row]) * W;
const uint group = head / (H / G);
const uint end = uint(visible[row]);

float peak = -INFINITY;
float total = 0;
for (uint s = 0; s < end; ++s) {
  // All lanes look up the same block, so the simdgroup reads it once.
  const uint block = uint(tables[table + s / BLOCK]);
  // A pool may have more elements than 32 bits can count.
  const size_t token = ((size_t(block) * G + group) * BLOCK + s % BLOCK) * D;
  float part = 0;
  for (uint i = 0; i < OWNED; ++i) {
    const uint d = lane + i * LANES;
    if (D % LANES == 0 || d < D) {
      part += q[i] * float(keys[token + d]);
    }
  }
  const float score = simd_sum(part);
  const float new_peak = max(peak, score);
  const float shrink = exp(peak - new_peak);  // exp(-inf) = 0 for the first token: MLX compiles with safe math
  const float weight = exp(score - new_peak);
  total = total * shrink + weight;
  for (uint i = 0; i < OWNED; ++i) {
    const uint d = lane + i * LANES;
    if (D % LANES == 0 || d < D) {
      o[i] = o[i] * shrink + weight * float(values[token + d]);
    }
  }
  peak = new_peak;
}

for (uint i = 0; i < OWNED; ++i) {
  const uint d = lane + i * LANES;
  if (D % LANES == 0 || d < D) {
    out[start + d] = T(o[i] / total);
  }
}
// END task 3.2.4
