// A gated delta net between its projections, for one token each of R requests: convolution, delta rule, gated norm.
//
//   qkv [R, C], C = 2 HK DK + HV DV   z [R, HV DV]   a, b [R, HV]: what the projections made of each token
//   conv [K, C], the newest token last   a_log, dt_bias [HV]   norm [DV]   eps: one float32
//   tails [R, K - 1, C], states [R, HV, DK, DV]: float32, before the token; new_tails, new_states: after it
//   out [R, HV DV]
//   grid: LANES x (SIMDGROUPS HV) x R. A threadgroup is a value head of one request. Its state is read once: each
//   simdgroup holds ROWS rows of it in registers, a lane the columns lane, lane + LANES, ...

// Every Apple GPU runs 32 threads in lockstep.
static constant constexpr const uint LANES = 32;

// log(1 + e^x), to float32's precision where e^x is far below 1 as well.
float softplus(float x) {
  if (x > 20) return x;
  const float small = exp(x), sum = 1 + small;
  return sum == 1 ? small : log(sum) * (small / (sum - 1));
}

float silu(float x) { return x / (1 + exp(-x)); }

// --- body ---

constexpr uint THREADS = LANES * SIMDGROUPS, CHANNELS = 2 * DK + DV;
constexpr uint ROWS = (DK + SIMDGROUPS - 1) / SIMDGROUPS, OWNED = (DV + LANES - 1) / LANES;

threadgroup float mixed[CHANNELS];  // the query, the key and the value
threadgroup float by_key[SIMDGROUPS][DV], by_query[SIMDGROUPS][DV];
threadgroup float correction[DV], output[DV];

const uint HV = states_shape[1], C = qkv_shape[1], HK = (C - HV * DV) / (2 * DK);
const uint lane = thread_index_in_simdgroup, part = simdgroup_index_in_threadgroup;
const uint place = thread_index_in_threadgroup;
const uint head = threadgroup_position_in_grid.y, row = threadgroup_position_in_grid.z;
const uint shared = HV / HK, key_head = head / shared;

const size_t state = (size_t(row) * HV + head) * DK * DV;
float s[ROWS][OWNED];
#pragma clang loop unroll(full)
for (uint r = 0; r < ROWS; ++r) {
  #pragma clang loop unroll(full)
  for (uint i = 0; i < OWNED; ++i) {
    const uint d = part * ROWS + r, column = lane + i * LANES;
    s[r][i] = d < DK && column < DV ? states[state + d * DV + column] : 0;
  }
}

for (uint i = place; i < CHANNELS; i += THREADS) {
  const uint channel = i < DK       ? key_head * DK + i
                       : i < 2 * DK ? (HK + key_head) * DK + i - DK
                                    : 2 * HK * DK + head * DV + i - 2 * DK;
  const size_t tail = size_t(row) * (K - 1) * C + channel;
  const float own = float(qkv[row * C + channel]);
  float total = 0;
  for (uint j = 0; j + 1 < K; ++j) total += float(conv[j * C + channel]) * tails[tail + j * C];
  total += float(conv[(K - 1) * C + channel]) * own;
  mixed[i] = silu(total);
  // Of the value heads that share a key head only the first keeps its channels.
  if (i >= 2 * DK || head % shared == 0) {
    for (uint j = 0; j + 2 < K; ++j) new_tails[tail + j * C] = tails[tail + (j + 1) * C];
    new_tails[tail + (K - 2) * C] = own;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

float query_square = 0, key_square = 0, both = 0;
for (uint d = lane; d < DK; d += LANES) {
  const float q = mixed[d], k = mixed[DK + d];
  query_square += q * q;
  key_square += k * k;
  both += q * k;
}
const float query_scale = rsqrt((simd_sum(query_square) + 1e-6f) * DK);
const float key_scale = rsqrt(simd_sum(key_square) + 1e-6f);
both = simd_sum(both) * query_scale * key_scale;
const float decay = exp(-exp(float(a_log[head])) * softplus(float(a[row * HV + head]) + float(dt_bias[head])));
const float beta = 1 / (1 + exp(-float(b[row * HV + head])));

#pragma clang loop unroll(full)
for (uint i = 0; i < OWNED; ++i) {
  float with_key = 0, with_query = 0;
  #pragma clang loop unroll(full)
  for (uint r = 0; r < ROWS; ++r) {
    const uint d = min(part * ROWS + r, uint(DK - 1));  // behind the last row s is 0
    with_key += s[r][i] * mixed[DK + d];
    with_query += s[r][i] * mixed[d];
  }
  const uint column = lane + i * LANES;
  if (column < DV) {
    by_key[part][column] = with_key;
    by_query[part][column] = with_query;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// What the token adds to the state is part of its own output.
for (uint column = place; column < DV; column += THREADS) {
  float with_key = 0, with_query = 0;
  for (uint p = 0; p < SIMDGROUPS; ++p) {
    with_key += by_key[p][column];
    with_query += by_query[p][column];
  }
  const float u = beta * (mixed[2 * DK + column] - decay * key_scale * with_key);
  correction[column] = u;
  output[column] = decay * query_scale * with_query + both * u;
}
threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma clang loop unroll(full)
for (uint r = 0; r < ROWS; ++r) {
  #pragma clang loop unroll(full)
  for (uint i = 0; i < OWNED; ++i) {
    const uint d = part * ROWS + r, column = lane + i * LANES;
    if (d < DK && column < DV)
      new_states[state + d * DV + column] = decay * s[r][i] + key_scale * mixed[DK + d] * correction[column];
  }
}

float square = 0;
for (uint column = lane; column < DV; column += LANES) square += output[column] * output[column];
const float inverse = rsqrt(simd_sum(square) / DV + eps);
for (uint column = place; column < DV; column += THREADS) {
  const uint at = (row * HV + head) * DV + column;
  out[at] = O(output[column] * inverse * float(norm[column]) * silu(float(z[at])));
}
