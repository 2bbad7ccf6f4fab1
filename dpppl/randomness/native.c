// ChaCha20 (RFC 8439), normal draws from it, noised sums, distinct rows and stored numbers, for XLA on CPUs: what chacha.py and normal.py
// of dpppl/randomness, dpppl/subsampling/distinct.py and dpppl/row_program/materialize.py define.

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define sched_yield() SwitchToThread()
#else
#include <sched.h>
#endif

#include "xla/ffi/api/c_api.h"

// What draws numbers is compiled for several processors, and `dpppl_use` chooses. As setup.py allows no fused multiplications and
// additions, all versions draw the same numbers.
#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR(processor) __attribute__((target(processor)))
#endif
#define INLINE static inline __attribute__((always_inline))  // what a function so marked calls is compiled with it

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false alarms of GCC 12 for AVX-512
#endif

#define ROTATE(x, by) (((x) << (by)) | ((x) >> (32 - (by))))
#define QUARTER_ROUND(a, b, c, d)                                       \
  a += b; d ^= a; d = ROTATE(d, 16); c += d; b ^= c; b = ROTATE(b, 12); \
  a += b; d ^= a; d = ROTATE(d, 8);  c += d; b ^= c; b = ROTATE(b, 7);

// LANES blocks of the keystream: word w of block number `counter` + b is words[w * LANES + b]. `width` blocks at a time: the state
// of 16 vectors then fits in registers, 4 wide of SSE2 and NEON, 8 of AVX2, 16 of AVX-512.
#define LANES 16
static const uint32_t numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#define SOME_BLOCKS(width)                                                                                     \
  typedef uint32_t vector##width __attribute__((vector_size(4 * width)));                                      \
  INLINE void some_blocks_##width(const uint32_t* start, uint32_t* words) {                                    \
    for (int from = 0; from < LANES; from += width) {                                                          \
      vector##width x[16], number;                                                                             \
      memcpy(&number, numbers + from, sizeof number);                                                          \
      for (int w = 0; w < 16; w++) x[w] = (w == 12 ? number : number - number) + start[w];                     \
      for (int twice = 0; twice < 10; twice++) {                                                               \
        QUARTER_ROUND(x[0], x[4], x[8], x[12])                                                                 \
        QUARTER_ROUND(x[1], x[5], x[9], x[13])                                                                 \
        QUARTER_ROUND(x[2], x[6], x[10], x[14])                                                                \
        QUARTER_ROUND(x[3], x[7], x[11], x[15])                                                                \
        QUARTER_ROUND(x[0], x[5], x[10], x[15])                                                                \
        QUARTER_ROUND(x[1], x[6], x[11], x[12])                                                                \
        QUARTER_ROUND(x[2], x[7], x[8], x[13])                                                                 \
        QUARTER_ROUND(x[3], x[4], x[9], x[14])                                                                 \
      }                                                                                                        \
      for (int w = 0; w < 16; w++) {                                                                           \
        x[w] += (w == 12 ? number : number - number) + start[w];                                               \
        memcpy(words + w * LANES + from, &x[w], sizeof number);                                                \
      }                                                                                                        \
    }                                                                                                          \
  }
SOME_BLOCKS(4)
SOME_BLOCKS(8)
SOME_BLOCKS(16)

INLINE void some_blocks(int width, const uint32_t* key, uint32_t counter, const uint32_t* nonce, uint32_t* words) {
  uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};  // "expand 32-byte k"
  memcpy(start + 4, key, 32);
  start[12] = counter;
  memcpy(start + 13, nonce, 12);
  if (width == 4) some_blocks_4(start, words);
  if (width == 8) some_blocks_8(start, words);
  if (width == 16) some_blocks_16(start, words);
}

// A stream's `count` blocks from `counter`, and where to put what is made of them.
typedef struct {
  const uint32_t *key, *nonce;
  uint32_t counter;
  int64_t count;
  void* out;
} stream;

// Blocks `from` to `until`: word w of block number b goes to out[w * count + b].
INLINE void put_blocks(int width, const stream* of, int64_t from, int64_t until) {
  for (int64_t first = from; first < until; first += LANES) {
    uint32_t words[16 * LANES];
    some_blocks(width, of->key, of->counter + (uint32_t)first, of->nonce, words);
    size_t bytes = 4 * (size_t)(until - first < LANES ? until - first : LANES);
    for (int w = 0; w < 16; w++) memcpy((uint32_t*)of->out + w * of->count + first, words + w * LANES, bytes);
  }
}

// word + add, for add 0 or 1/2: signed words are converted faster.
#define PLUS(word, add) ((double)(int32_t)((word) ^ 0x80000000u) + (0x1p31 + (add)))

// Normal draws as `random._box_muller` makes them of words[0..63], words[64..127], ...: the first half, the second half.
INLINE void box_muller(const uint32_t* words, double* one, double* other) {
  for (int k = 0; k < 64; k++) {
    double u = PLUS(words[k], 0) * 0x1p-32 + PLUS(words[64 + k], 0.5) * 0x1p-64;
    uint64_t bits;
    memcpy(&bits, &u, 8);
    int32_t exponent = ((int32_t)(bits >> 32) - 0x3fe6a09e) >> 20;
    bits -= (uint64_t)(uint32_t)exponent << 52;
    double m;
    memcpy(&m, &bits, 8);
    double f = m - 1.0, s = f / (2.0 + f), z = s * s;
    double p = z * (6.666666666666735130e-01 + z * (3.999999999940941908e-01 + z * (2.857142874366239149e-01 + z *
               (2.222219843214978396e-01 + z * (1.818357216161805012e-01 + z * (1.531383769920937332e-01 + z *
               1.479819860511658591e-01))))));
    double radius = sqrt(-2.0 * ((double)exponent * 6.93147180559945309417e-01 + (f - s * (f - p))));
    uint32_t angle = words[128 + k];
    double t = (double)(int32_t)(angle << 2) * 0x1p-32 + PLUS(words[192 + k], 0.5) * 0x1p-62;
    double x = t * 1.57079632679489661923, y = x * x;
    double sine = x + x * y * (-1.66666666666666324348e-01 + y * (8.33333333332248946124e-03 + y *
                  (-1.98412698298579493134e-04 + y * (2.75573137070700676789e-06 + y * (-2.50507602534068634195e-08 +
                  y * 1.58969099521155010221e-10)))));
    double cosine = 1.0 - 0.5 * y + y * y * (4.16666666666666019037e-02 + y * (-1.38888888888741095749e-03 + y *
                    (2.48015872894767294178e-05 + y * (-2.75573143513906633035e-07 + y * (2.08757232129817482790e-09 -
                    y * 1.13596475577881948265e-11)))));
    cosine = angle >> 31 ? -cosine : cosine;
    one[k] = radius * (angle >> 30 & 1 ? sine : cosine);
    other[k] = radius * (angle >> 30 & 1 ? cosine : sine);
  }
}

// 8 normal draws of each of LANES blocks from `first`: draw r of block b is found[r * LANES + b].
INLINE void some_draws(int width, const stream* of, int64_t first, double* found) {
  uint32_t words[16 * LANES];
  some_blocks(width, of->key, of->counter + (uint32_t)first, of->nonce, words);
  box_muller(words, found, found + 4 * LANES);
}

// 8 normal draws of each block.
INLINE void put_draws(int width, const stream* of, int64_t from, int64_t until) {
  for (int64_t first = from; first < until; first += LANES) {
    double found[8 * LANES];
    some_draws(width, of, first, found);
    size_t bytes = 8 * (size_t)(until - first < LANES ? until - first : LANES);
    for (int r = 0; r < 8; r++) memcpy((double*)of->out + r * of->count + first, found + r * LANES, bytes);
  }
}

// Some of the numbers that are added up, flat: `begin` to `end` of all. Each becomes (total + scale * draw) * norm.
typedef struct {
  const double* total;
  void* out;
  double scale, norm;
  int64_t begin, end;
  int single;
} part;

INLINE void add_draws(const part* of, int64_t at, const double* draws, int64_t count) {
  const double *total = of->total + at, scale = of->scale, norm = of->norm;
  float* single = (float*)of->out + at;
  double* wide = (double*)of->out + at;
  if (of->single)
    for (int64_t k = 0; k < count; k++) single[k] = (float)((total[k] + scale * draws[k]) * norm);
  else
    for (int64_t k = 0; k < count; k++) wide[k] = (total[k] + scale * draws[k]) * norm;
}

// The same draws as those of put_draws, added: `out` is an array of parts, the last of which has no end.
INLINE void put_noised(int width, const stream* of, int64_t from, int64_t until) {
  const part* next[8];
  for (int r = 0; r < 8; r++) next[r] = of->out;
  for (int64_t first = from; first < until; first += LANES) {
    double found[8 * LANES];
    some_draws(width, of, first, found);
    int64_t some = until - first < LANES ? until - first : LANES;
    for (int r = 0; r < 8; r++) {
      int64_t at = r * of->count + first, last = at + some;
      for (const double* draws = found + r * LANES; at < last;) {
        while (next[r]->end <= at) next[r]++;
        const part* to = next[r];
        if (to->total == NULL) break;
        int64_t count = (to->end < last ? to->end : last) - at;
        if (count == LANES)
          add_draws(to, at - to->begin, draws, LANES);
        else
          add_draws(to, at - to->begin, draws, count);
        at += count;
        draws += count;
      }
    }
  }
}

typedef void puts_numbers(const stream*, int64_t, int64_t);
#define VERSION(width, target)                                                                                         \
  target static void blocks_##width(const stream* of, int64_t from, int64_t until) { put_blocks(width, of, from, until); } \
  target static void draws_##width(const stream* of, int64_t from, int64_t until) { put_draws(width, of, from, until); }   \
  target static void noised_##width(const stream* of, int64_t from, int64_t until) { put_noised(width, of, from, until); }
VERSION(4, )
static puts_numbers *blocks = blocks_4, *draws = draws_4, *noised = noised_4;
#ifdef FOR
VERSION(8, FOR("avx2"))
VERSION(16, FOR("avx512f"))
#endif

// Let numbers be drawn by the widest version that the processor has, and that is at most so wide. Returns how wide it is.
int dpppl_use(int most) {
  int width = 4;
#ifdef FOR
  __builtin_cpu_init();
  if (most >= 8 && __builtin_cpu_supports("avx2")) width = 8;
  if (most >= 16 && __builtin_cpu_supports("avx512f")) width = 16;
  blocks = width == 16 ? blocks_16 : width == 8 ? blocks_8 : blocks_4;
  draws = width == 16 ? draws_16 : width == 8 ? draws_8 : draws_4;
  noised = width == 16 ? noised_16 : width == 8 ? noised_8 : noised_4;
#endif
  return width;
}

// For native.py's test of the library.
void dpppl_blocks(const uint32_t* key, uint32_t counter, const uint32_t* nonce, int64_t count, uint32_t* out) {
  blocks(&(stream){key, nonce, counter, count, out}, 0, count);
}

// A stream in pieces, which the caller and threads that happen to be free take one by one. The caller waits only for pieces
// that a thread has begun; who comes when none is left does nothing, and the last to leave frees the job.
#define PIECE 1024
typedef struct {
  stream of;
  puts_numbers* put;
  _Atomic int64_t next, done, users;
} job;

static void take_pieces(job* j) {
  for (;;) {
    int64_t from = PIECE * atomic_fetch_add(&j->next, 1);
    if (from >= j->of.count) return;
    int64_t until = from + PIECE < j->of.count ? from + PIECE : j->of.count;
    j->put(&j->of, from, until);
    atomic_fetch_add(&j->done, until - from);
  }
}

static void leave(job* j) {
  if (atomic_fetch_sub(&j->users, 1) == 1) free(j);
}

static void help(void* data) {
  take_pieces(data);
  leave(data);
}

static void destroy(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  api->XLA_FFI_Error_Destroy(&args);
}

static void run(XLA_FFI_CallFrame* frame, stream of, puts_numbers* put) {
  int64_t pieces = (of.count + PIECE - 1) / PIECE, threads = 1;
  job* j = pieces < 2 ? NULL : malloc(sizeof(job));
  if (j == NULL) {
    put(&of, 0, of.count);
    return;
  }
  *j = (job){of, put, 0, 0, 1};
  XLA_FFI_ThreadPool_NumThreads_Args number = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, NULL, frame->ctx, &threads};
  XLA_FFI_Error* error = frame->api->XLA_FFI_ThreadPool_NumThreads(&number);
  if (error != NULL) destroy(frame->api, error);
  for (int64_t k = 1; k < threads && k < pieces && error == NULL; k++) {
    atomic_fetch_add(&j->users, 1);
    XLA_FFI_ThreadPool_Schedule_Args helper = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, NULL, frame->ctx, help, j};
    error = frame->api->XLA_FFI_ThreadPool_Schedule(&helper);
    if (error != NULL) {
      destroy(frame->api, error);
      leave(j);
    }
  }
  take_pieces(j);
  while (atomic_load(&j->done) < of.count) sched_yield();
  leave(j);
}

// What XLA asks before the first call; true if that was all.
static int asked_for_version(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* asked = frame->extension_start;
  if (asked == NULL || asked->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)asked)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  return 1;
}

// Operands: key (..., 8), counter (..., 1), nonce (..., 3), uint32; result (..., rows, count), 64 bytes of each block.
static XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame, puts_numbers* put) {
  if (asked_for_version(frame)) return NULL;
  XLA_FFI_Buffer **operands = (XLA_FFI_Buffer**)frame->args.args, *out = frame->rets.rets[0];
  const uint32_t *key = operands[0]->data, *counter = operands[1]->data, *nonce = operands[2]->data;
  int64_t streams = 1, count = out->dims[out->rank - 1];
  for (int64_t k = 0; k < out->rank - 2; k++) streams *= out->dims[k];
  for (int64_t k = 0; k < streams; k++)
    run(frame, (stream){key + 8 * k, nonce + 3 * k, counter[k], count, (char*)out->data + 64 * count * k}, put);
  return NULL;
}

XLA_FFI_Error* dpppl_chacha20(XLA_FFI_CallFrame* frame) { return handle(frame, blocks); }
XLA_FFI_Error* dpppl_normal(XLA_FFI_CallFrame* frame) { return handle(frame, draws); }

static XLA_FFI_Error* no_memory(const XLA_FFI_Api* api, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, message, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
  return api->XLA_FFI_Error_Create(&args);
}

static int64_t size_of(const XLA_FFI_Buffer* in) {
  int64_t size = 1;
  for (int64_t k = 0; k < in->rank; k++) size *= in->dims[k];
  return size;
}

// Operands: key (..., 8) and nonce (..., 3), uint32, scales and norms (..., parts) float64, and that many arrays (..., of any shape)
// float64; results: as many, float32 or float64. The parts' numbers, one after another, take the draws of the key's first blocks.
XLA_FFI_Error* dpppl_noised(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  XLA_FFI_Buffer **operands = (XLA_FFI_Buffer**)frame->args.args, **results = (XLA_FFI_Buffer**)frame->rets.rets;
  const uint32_t *key = operands[0]->data, *nonce = operands[1]->data;
  const double *scales = operands[2]->data, *norms = operands[3]->data;
  int64_t parts = frame->rets.size, streams = size_of(operands[0]) / 8;
  part* of = malloc((size_t)(parts + 1) * sizeof(part));
  if (of == NULL) return no_memory(frame->api, "no memory for the parts of a sum");
  for (int64_t k = 0; k < streams; k++) {
    int64_t begin = 0;
    for (int64_t p = 0; p < parts; p++) {
      int64_t size = size_of(results[p]) / streams;
      int single = results[p]->dtype == XLA_FFI_DataType_F32;
      of[p] = (part){(double*)operands[4 + p]->data + k * size, (char*)results[p]->data + k * size * (single ? 4 : 8),
                     scales[k * parts + p], norms[k * parts + p], begin, begin + size, single};
      begin += size;
    }
    of[parts] = (part){NULL, NULL, 0, 0, begin, INT64_MAX, 0};
    run(frame, (stream){key + 8 * k, nonce + 3 * k, 0, (begin + 7) / 8, of}, noised);
  }
  free(of);
  return NULL;
}

// Result: the operand, in the same memory where nothing else reads the operand.
XLA_FFI_Error* dpppl_stored(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  XLA_FFI_Buffer *in = frame->args.args[0], *out = frame->rets.rets[0];
  if (out->data != in->data) memcpy(out->data, in->data, (size_t)size_of(in) * (in->dtype == XLA_FFI_DataType_F64 ? 8 : 4));
  return NULL;
}

// The first `size` distinct rows named by `count` words: as `distinct_rows`. `table` holds a power of 2 of zeros, 2 count or more.
static void choose(const uint32_t* draws, int64_t count, uint32_t num_rows, int32_t size, uint32_t* table, int bits,
                   int32_t* index, uint8_t* mask) {
  uint32_t largest_unbiased = (uint32_t)((((uint64_t)1 << 32) / num_rows) * num_rows - 1);
  for (int64_t k = 0; k < count; k++) {
    uint32_t value = draws[k] % num_rows, at = (value * 2654435769u) >> (32 - bits);
    index[k] = draws[k] <= largest_unbiased ? value : num_rows - 1;
    mask[k] = 0;
    if (draws[k] > largest_unbiased) continue;
    while (table[at] != 0 && table[at] != value + 1) at = (at + 1) & ((1u << bits) - 1);
    mask[k] = table[at] == 0 && size-- > 0;
    table[at] = value + 1;
  }
}

// Operands: draws (..., count) uint32, number of rows (..., 1) uint32, size (..., 1) int32; results (..., count) int32 and bool.
XLA_FFI_Error* dpppl_distinct(XLA_FFI_CallFrame* frame) {
  if (asked_for_version(frame)) return NULL;
  XLA_FFI_Buffer **operands = (XLA_FFI_Buffer**)frame->args.args, **results = (XLA_FFI_Buffer**)frame->rets.rets;
  const uint32_t *draws = operands[0]->data, *num_rows = operands[1]->data;
  const int32_t* size = operands[2]->data;
  int32_t* index = results[0]->data;
  uint8_t* mask = results[1]->data;
  int64_t streams = 1, count = results[0]->dims[results[0]->rank - 1];
  for (int64_t k = 0; k < results[0]->rank - 1; k++) streams *= results[0]->dims[k];
  int bits = 1;
  while (((int64_t)1 << bits) < 2 * count) bits++;
  for (int64_t k = 0; k < streams; k++) {
    uint32_t* table = bits > 31 ? NULL : calloc((size_t)1 << bits, 4);
    if (table == NULL) return no_memory(frame->api, "no memory for a table of rows");
    choose(draws + count * k, count, num_rows[k], size[k], table, bits, index + count * k, mask + count * k);
    free(table);
  }
  return NULL;
}
