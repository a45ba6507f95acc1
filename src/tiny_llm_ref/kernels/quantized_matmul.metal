// out[m, n] = sum over k of x[m, k] * w[n, k], where w[n, k] = scale * q + bias is packed in BITS bits.
//
//   x [M, K]   w [N, K * BITS / 32] uint32   scales, biases [N, K / GROUP]   out [M, N] of type T
//   grid: LANES x N x M threads. The LANES threads of one (n, m) are a simdgroup and share one sum.
//
// MLX writes the kernel's signature. It has the five arrays, the template values T, BITS and GROUP, and
// whatever else the body mentions (`x_shape`, `thread_position_in_grid`, ...). Arrays of fewer than 8
// elements are in `constant` memory, the others in `device` memory. Index them by their names, because a
// pointer of your own would have to know which.

// Every Apple GPU runs 32 threads in lockstep.
static constant constexpr const uint LANES = 32;

// --- body ---

const uint lane = thread_index_in_simdgroup;
const uint n = thread_position_in_grid.y;
const uint m = thread_position_in_grid.z;
const uint N = w_shape[0];
const uint K = x_shape[1];

// BEGIN task 2.3.2
constexpr uint PER_WORD = 32 / BITS;
constexpr uint LOWEST = (1u << BITS) - 1;
const uint words = K / PER_WORD;
const uint groups = K / GROUP;

float sum = 0;
// Neighbouring lanes read neighbouring words, so the hardware fetches one long piece of memory.
for (uint word = lane; word < words; word += LANES) {
  const uint k = word * PER_WORD;
  uint packed = w[n * words + word];
  float dot = 0;
  float total = 0;
  for (uint i = 0; i < PER_WORD; ++i) {
    const float value = float(x[m * K + k + i]);
    dot += value * float(packed & LOWEST);
    total += value;
    packed >>= BITS;
  }
  // A word never crosses a group, so scale and bias are applied once a word:
  // the sum of x * (scale * q + bias) is scale * (the sum of x * q) + bias * (the sum of x).
  const uint group = n * groups + k / GROUP;
  sum += float(scales[group]) * dot + float(biases[group]) * total;
}

// All lanes take part in the exchange and get the result. One lane is enough to write it.
sum = simd_sum(sum);
if (lane == 0) {
  out[m * N + n] = T(sum);
}
// END task 2.3.2
