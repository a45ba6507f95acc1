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
#error "task 2.3.2"
// END task 2.3.2
