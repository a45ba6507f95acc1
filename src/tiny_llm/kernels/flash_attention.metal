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
#error "task 2.5.2"
// END task 2.5.2
