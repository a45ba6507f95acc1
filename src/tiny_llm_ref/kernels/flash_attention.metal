// Attention with an online softmax: one pass over the stored tokens, no row of scores in memory.
//
//   query, out [B, H, L, D]   key, value [B, G, S, D]   scale: one float32   out of type T
//   grid: LANES x L x (B * H) threads. The LANES threads of one query row are a simdgroup.
//
// MLX writes the kernel's signature. It has the four inputs, the output, the template values T, D and CAUSAL,
// and whatever else the body mentions (`query_shape`, `thread_position_in_grid`, ...). Arrays of fewer than 8
// elements are in `constant` memory, so index all arrays by their names, without pointers of your own.

// Every Apple GPU runs 32 threads in lockstep.
static constant constexpr const uint LANES = 32;

// --- body ---

const uint lane = thread_index_in_simdgroup;
const uint row = thread_position_in_grid.y;
const uint head = thread_position_in_grid.z;  // counts through the whole batch: b * H + h
const uint H = query_shape[1];
const uint L = query_shape[2];
const uint G = key_shape[1];
const uint S = key_shape[2];

// BEGIN task 2.5.2 Lane l owns the elements l, l + LANES, ... of the query and of the output. They stay in
// registers only if the compiler unrolls the loops over them, so `i` counts to a constant, whatever the lane.
// If LANES divides D, all lanes own equally many, and the compiler removes the test.
constexpr uint OWNED = (D + LANES - 1) / LANES;
float q[OWNED];
float o[OWNED];
const uint start = (head * L + row) * D;
for (uint i = 0; i < OWNED; ++i) {
  const uint d = lane + i * LANES;
  if (D % LANES == 0 || d < D) {
    q[i] = float(query[start + d]) * scale;
    o[i] = 0;
  }
}

// H / G consecutive heads share a kv head. For head = b * H + h, the division gives b * G + h / (H / G).
const uint kv_start = head / (H / G) * S * D;
// The new tokens are the last L of S stored tokens, so row 0 is token S - L and sees S - L tokens before it.
const uint visible = CAUSAL ? S - L + row + 1 : S;

float peak = -INFINITY;
float total = 0;
for (uint s = 0; s < visible; ++s) {
  const uint token = kv_start + s * D;
  float part = 0;
  for (uint i = 0; i < OWNED; ++i) {
    const uint d = lane + i * LANES;
    if (D % LANES == 0 || d < D) {
      part += q[i] * float(key[token + d]);
    }
  }
  const float score = simd_sum(part);
  // Every lane has the same score, so it has the same peak and total without another exchange.
  const float new_peak = max(peak, score);
  const float shrink = exp(peak - new_peak);  // exp(-inf) = 0 for the first token: MLX compiles with safe math
  const float weight = exp(score - new_peak);
  total = total * shrink + weight;
  for (uint i = 0; i < OWNED; ++i) {
    const uint d = lane + i * LANES;
    if (D % LANES == 0 || d < D) {
      o[i] = o[i] * shrink + weight * float(value[token + d]);
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
// END task 2.5.2
