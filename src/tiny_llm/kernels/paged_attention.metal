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
#error "task 3.2.4"
// END task 3.2.4
