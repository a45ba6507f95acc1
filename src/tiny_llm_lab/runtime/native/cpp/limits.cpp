// What this CPU can do at most, whatever the program: read memory, and multiply and add.
//
// Every function lets `threads` threads work for `seconds`, `runs` times, and writes one rate per run.
// A thread counts what it did until its time was up: a thread that lost its core for a while did less, and
// the others do not wait for it. Vectors are GCC's extension, which Clang has too; only dot products need
// intrinsics.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kChains = 24;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kChains = 12;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kChains = 24;
#else
constexpr int kVectorBytes = 16, kChains = 12;
#endif
// Chains are independent sums. There must be as many as the units have stages, and no more than registers.

typedef float Floats __attribute__((vector_size(kVectorBytes)));

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Keeps a value in a register and the compiler from knowing it: nothing is hoisted or left out.
template <typename T>
inline void opaque(T& value) {
#if defined(__x86_64__)
  __asm__ volatile("" : "+x"(value));
#elif defined(__aarch64__)
  __asm__ volatile("" : "+w"(value));
#else
  __asm__ volatile("" : "+m"(value));
#endif
}

// work(thread) does a short piece and returns how much that was; the result is in 1e9 per second.
template <typename Work>
double rate(int threads, double seconds, const Work& work) {
  std::atomic<int> ready{0};
  std::vector<double> rates(threads, 0.0);
  std::vector<std::thread> pool;
  for (int thread = 0; thread < threads; ++thread) {
    pool.emplace_back([&, thread] {
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      const auto start = Clock::now();
      double done = 0, elapsed = 0;
      do {
        done += work(thread);
        elapsed = seconds_since(start);
      } while (elapsed < seconds);
      rates[thread] = done / elapsed;
    });
  }
  double total = 0;
  for (auto& thread : pool) thread.join();
  for (double own : rates) total += own;
  return total / 1e9;
}

constexpr int kRounds = 20000;  // of all chains, between two looks at the clock

// `step` on every chain, kRounds times. Returns operations: `per_step` for each step. The chains are a
// parameter pack and not a loop: places known from the start are what lets them stay in registers.
template <typename Vector, typename Step, std::size_t... chain>
inline double unrolled(Vector first, double per_step, const Step& step, std::index_sequence<chain...>) {
  Vector sums[] = {((void)chain, first)...};
  for (int round = 0; round < kRounds; ++round) {
    ((sums[chain] = step(sums[chain])), ...);
    (opaque(sums[chain]), ...);
  }
  return per_step * sizeof...(chain) * kRounds;
}

template <typename Vector, typename Step>
inline double chains(Vector first, double per_step, const Step& step) {
  return unrolled(first, per_step, step, std::make_index_sequence<kChains>());
}

double f32_piece(int) {
  Floats half = {};
  half += 0.5f;
  opaque(half);
  // The sum is a factor: were it only added to, the product could be computed once and for all.
  return chains(half, 2.0 * kVectorBytes / sizeof(float), [&](Floats sum) { return sum * half + half; });
}

#if defined(__AVX512BF16__)
#define HAS_BF16 1
double bf16_piece(int) {
  __m512i bits = _mm512_set1_epi32(0x3f803f80);
  opaque(bits);
  const __m512bh ones = (__m512bh)bits;
  return chains(_mm512_setzero_ps(), 64, [&](__m512 sum) { return _mm512_dpbf16_ps(sum, ones, ones); });
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAS_BF16 1
double bf16_piece(int) {
  const bfloat16x8_t ones = vreinterpretq_bf16_u16(vdupq_n_u16(0x3f80));
  // A 2x4 by 4x2 product: 16 multiplications and as many additions.
  return chains(vdupq_n_f32(0), 32, [&](float32x4_t sum) { return vbfmmlaq_f32(sum, ones, ones); });
}
#endif

#if defined(__AVX512VNNI__)
#define HAS_INT8 1
double int8_piece(int) {
  __m512i ones = _mm512_set1_epi8(1);
  opaque(ones);
  return chains(ones, 128, [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, ones, ones); });
}
#elif defined(__AVXVNNI__)
#define HAS_INT8 1
double int8_piece(int) {
  __m256i ones = _mm256_set1_epi8(1);
  opaque(ones);
  return chains(ones, 64, [&](__m256i sum) { return _mm256_dpbusd_avx_epi32(sum, ones, ones); });
}
#elif defined(__AVX2__)
#define HAS_INT8 1
double int8_piece(int) {
  __m256i bytes = _mm256_set1_epi8(1);
  const __m256i words = _mm256_set1_epi16(1);
  // Without one instruction for it: multiply bytes, add pairs, add pairs of pairs to the sum.
  return chains(bytes, 64, [&](__m256i sum) {
    opaque(bytes);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, bytes), words));
  });
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
#define HAS_INT8 1
double int8_piece(int) {
  const int8x16_t ones = vdupq_n_s8(1);
  return chains(vdupq_n_s32(0), 64, [&](int32x4_t sum) { return vmmlaq_s32(sum, ones, ones); });
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define HAS_INT8 1
double int8_piece(int) {
  const int8x16_t ones = vdupq_n_s8(1);
  return chains(vdupq_n_s32(0), 32, [&](int32x4_t sum) { return vdotq_s32(sum, ones, ones); });
}
#endif

template <typename Piece>
int repeat(int threads, int runs, double seconds, double* out, const Piece& piece) {
  for (int run = 0; run < runs; ++run) out[run] = rate(threads, seconds, piece);
  return 0;
}

// A slice of memory that one thread walks through, round and round.
struct Slice {
  const char* data;
  std::size_t bytes;
  std::size_t at;
};

constexpr std::size_t kReadBytes = std::size_t{1} << 20;  // between two looks at the clock

double read_piece(Slice& slice) {
  const auto* from = reinterpret_cast<const Floats*>(slice.data + slice.at);
  constexpr int kSums = 8;
  Floats sums[kSums] = {};
  for (std::size_t place = 0; place < kReadBytes / sizeof(Floats); place += kSums) {
    for (int lane = 0; lane < kSums; ++lane) sums[lane] += from[place + lane];
  }
  for (auto& sum : sums) opaque(sum);
  slice.at = (slice.at + kReadBytes) % slice.bytes;
  return kReadBytes;
}

}  // namespace

// All return 0, or 1 when this CPU (or this memory) cannot do what was asked.
extern "C" {

// Bytes; `buffer_bytes` in all must be much larger than the caches.
int limits_read(int threads, int runs, double seconds, std::size_t buffer_bytes, double* out) {
  const std::size_t own = buffer_bytes / threads / kReadBytes * kReadBytes;
  char* buffer = own == 0 ? nullptr : static_cast<char*>(std::aligned_alloc(4096, own * threads));
  if (buffer == nullptr) return 1;
#ifdef MADV_HUGEPAGE  // as weights are stored
  madvise(buffer, own * threads, MADV_HUGEPAGE);
#endif
  std::vector<Slice> slices;
  for (int thread = 0; thread < threads; ++thread) slices.push_back({buffer + thread * own, own, 0});
  // Written, or every page would be the same page of zeros, and by its own thread, for the nearest memory.
  rate(threads, 0.0, [&](int thread) { return std::memset(buffer + thread * own, 1, own) != nullptr; });
  repeat(threads, runs, seconds, out, [&](int thread) { return read_piece(slices[thread]); });
  std::free(buffer);
  return 0;
}

int limits_f32(int threads, int runs, double seconds, double* out) {
  return repeat(threads, runs, seconds, out, f32_piece);
}

int limits_bf16(int threads, int runs, double seconds, double* out) {
#if defined(HAS_BF16)
  return repeat(threads, runs, seconds, out, bf16_piece);
#else
  return (void)threads, (void)runs, (void)seconds, (void)out, 1;
#endif
}

int limits_int8(int threads, int runs, double seconds, double* out) {
#if defined(HAS_INT8)
  return repeat(threads, runs, seconds, out, int8_piece);
#else
  return (void)threads, (void)runs, (void)seconds, (void)out, 1;
#endif
}
}
