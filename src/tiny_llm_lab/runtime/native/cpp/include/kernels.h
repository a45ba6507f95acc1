// The operators that a package's kernels/*.cpp implement, as the rest of the program sees them.
#pragma once

#include "tensor.h"
#include "thread_pool.h"

namespace tiny_llm {

constexpr int kBlockColumns = 16;  // rows of a block of a matrix, which are columns of a product
constexpr int kBlockPadding = 64;

/// An [N, K] matrix by rows: dense (bits = 0), or in MLX's affine packing with one scale and bias a group.
struct Matrix {
  const void* data = nullptr;  // dense: of `dtype`; packed: uint32 words, lowest bits first
  const void* scales = nullptr;
  const void* biases = nullptr;
  DType dtype = DType::f32;  // of a dense matrix, or of scales and biases
  int64_t rows = 0, columns = 0;
  int group_size = 0, bits = 0;
  int activation_bits = 16;  // 8: x is rounded to bytes, in groups, before it is multiplied
  // Packed: [P / 16, words of a row, 16], and scales and biases alike. P is N rounded up to kBlockPadding,
  // and the rows from N on are zeros.
  bool in_blocks = false;
};

/// out [M, N] = M rows of x [.., K], from `first` on, times the transpose of the matrix, plus a bias [N] if
/// there is one.
struct Product {
  Matrix matrix;
  Tensor bias;  // data = nullptr: none
  Tensor out;
  Tensor residual = {};  // [M, N], added as well; data = nullptr: none
  int64_t first = 0;
};

/// The SwiGLU networks of N experts: of each matrix there are N, one behind the other.
struct Experts {
  Matrix gate, up, down;
  int64_t count;
};

/// The K experts of each of T tokens, [T, K], each below `Experts::count`, and what each is multiplied with.
struct Chosen {
  const uint32_t* experts;
  const float* shares;
  int64_t per_token;
};

/// The requests of one attention, and where their stored tokens are.
struct Requests {
  int64_t count = 0;
  const int32_t* lengths = nullptr;  // [count] stored tokens, the new ones last
  // A request for each row of the batch: row r of the query, and what row r of key and value stores. Or
  // packed: tokens starts[r] to starts[r + 1] - 1 of the only row, and stored tokens in blocks that key and
  // value are pools of.
  const int32_t* starts = nullptr;  // [count + 1]
  const int32_t* tables = nullptr;  // [count, width]: the blocks of each request, in order
  int64_t width = 0;
};

/// A gated delta net: key heads of key_dim, and value heads of value_dim, of which as many neighbours share a
/// key head as there are for each. Channels C are all queries, all keys, all values.
struct DeltaNet {
  Tensor conv;            // [K, C] of the convolution over time, the newest token last
  Tensor a_log, dt_bias;  // [value_heads]
  Tensor norm;            // [value_dim]
  float eps;
  int64_t key_heads, key_dim, value_heads, value_dim;
  int64_t taps() const { return conv.shape[0]; }
};

/// What the projections make of T packed rows: qkv [T, C], z [T, value_heads * value_dim], a and b
/// [T, value_heads].
struct DeltaInputs {
  Tensor qkv, z, a, b;
};

/// The requests of packed rows, and what is remembered of each: changed in place, matrices from `before` on.
struct DeltaStates {
  int64_t count = 0;
  const int32_t* starts = nullptr;   // [count + 1]: rows starts[r] to starts[r + 1] - 1 are request r's
  const Tensor* tails = nullptr;     // [count] of [K - 1, C]: the last inputs of the convolution
  float* const* matrices = nullptr;  // [count] of [value_heads, key_dim, value_dim]
  float* const* before = nullptr;    // [count]: only read, and may be the same memory
};

/// How each of M rows of logits [M, V] is drawn from: the arrays of a `DrawTable`.
struct DrawRows {
  struct Settings {
    float temperature, top_p, min_p;
  };
  struct Change {
    float bias, factor, loss;
  };
  const Settings* settings;    // [M]
  const int32_t* top_k;        // [M]
  const uint32_t* words;       // [M, 2]: the mixed key
  const int32_t* edit_starts;  // [M + 1]: row r has edits starts[r] to starts[r + 1] - 1
  const uint32_t* edited;      // [E] tokens
  const Change* changes;       // [E]
  const int32_t* masks;        // [M]: which row of `allowed` is row r's, or -1 for none
  const uint32_t* allowed;     // [masks, words of V bits]
};

/// Arguments are checked before a kernel is called: shapes fit each other, x has a float dtype, and so has
/// every weight that is not packed. Packed weights have 4 or 8 bits in groups of 32, 64 or 128.
struct Kernels {
  /// Several products of rows of the same x, which are `x.stride[0]` elements apart.
  void (*linear)(ThreadPool&, const Tensor& x, const Product* products, int count);
  /// One product of packed weights by step 1 to 4 of the course's ladder.
  void (*quantized_matmul_step)(ThreadPool&, int step, const Tensor& x, const Product& product);
  /// out [B, L, H, D] of query [B, H, L, D]. Key and value are [B, G, S, D], or, for packed requests, which
  /// have B = 1, pools [blocks, G, block size, D]. If causal, a token sees its request's tokens up to itself;
  /// otherwise all.
  void (*attention)(ThreadPool&, const Tensor& query, const Tensor& key, const Tensor& value,
                    const Requests& requests, bool causal, float scale, const Tensor& out);
  /// sum = x + delta (unless delta.data is null) and out = sum / rms(sum) * weight, over rows of x [M, E].
  void (*rms_norm)(ThreadPool&, const Tensor& x, const Tensor& delta, const Tensor& weight, float eps,
                   const Tensor& sum, const Tensor& out);
  /// x [B, L, H, D] normalised by weight [D] (unless null), its first R <= D dimensions rotated by cos, sin
  /// [P, R / 2] at offsets[b] + l.
  void (*rope)(ThreadPool&, const Tensor& x, const Tensor& weight, float eps, const Tensor& cos,
               const Tensor& sin, const int32_t* offsets, bool traditional, const Tensor& out);
  /// out = gate / (1 + e^-gate) * up, elementwise on rows [M, I].
  void (*swiglu)(ThreadPool&, const Tensor& gate, const Tensor& up, const Tensor& out);
  /// out = x / (1 + e^-gate) on rows x [M, I]; gate is [M, I], or [M, 1].
  void (*sigmoid_gate)(ThreadPool&, const Tensor& x, const Tensor& gate, const Tensor& out);
  /// The K largest numbers of each row of softmax(scores [T, N]), largest first and of equals the first:
  /// their places, and the numbers, divided by their sum if `is_normed`.
  void (*route)(ThreadPool&, const Tensor& scores, int64_t per_token, bool is_normed, uint32_t* experts,
                float* shares);
  /// out [T, E]: the sum of the outputs of each token's experts, times their shares; x is [T, E]. Then each
  /// of `added` [T, E] is added to what out was rounded to.
  void (*expert_mlp)(ThreadPool&, const Tensor& x, const Experts& experts, const Chosen& chosen,
                     const Tensor* added, int num_added, const Tensor& out);
  /// Rows of the matrix, decoded: out [M, K] of tokens [M].
  void (*embedding)(ThreadPool&, const int32_t* tokens, int64_t count, const Matrix& matrix,
                    const Tensor& out);
  /// The place of each row's largest number, the first of equals: out [M] of x [M, V].
  void (*argmax)(ThreadPool&, const Tensor& x, uint32_t* out);
  /// Tokens out [M] drawn from logits x [M, V].
  void (*draw)(ThreadPool&, const Tensor& x, const DrawRows& rows, uint32_t* out);
  /// The logprobs [M] of `tokens` in logits x [M, V], and the likeliest tokens [M, num_top] with theirs.
  void (*score)(ThreadPool&, const Tensor& x, const uint32_t* tokens, int num_top, float* logprobs,
                uint32_t* top, float* top_logprobs);
  /// Rows x [M, D] in 8 bits: numbers [M, D] and scales [M].
  void (*quantize_rows)(ThreadPool&, const Tensor& x, int8_t* numbers, float* scales);
  /// out [T, value_heads * value_dim] of T packed rows, and the states after them.
  void (*gated_delta)(ThreadPool&, const DeltaNet& net, const DeltaInputs& x, const DeltaStates& states,
                      const Tensor& out);
};

}  // namespace tiny_llm

/// Every compiled copy of the kernels exports this one name.
extern "C" const tiny_llm::Kernels* tiny_llm_kernels();
