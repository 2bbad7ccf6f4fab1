// ChaCha20 (RFC 8439) and normal draws from it, for XLA on CPUs: what dpppl/chacha.py and dpppl/random.py define.

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define LANES 16
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

#define ROTATE(x, by) (((x) << (by)) | ((x) >> (32 - (by))))
#define QUARTER_ROUND(a, b, c, d)                                       \
  a += b; d ^= a; d = ROTATE(d, 16); c += d; b ^= c; b = ROTATE(b, 12); \
  a += b; d ^= a; d = ROTATE(d, 8);  c += d; b ^= c; b = ROTATE(b, 7);

static const uint32_t CONSTANTS[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};

// LANES blocks of the keystream: word w of block number `counter` + b is words[w][b].
static inline void some_blocks(const uint32_t* key, uint32_t counter, const uint32_t* nonce, lanes words[16]) {
  lanes start[16];
  for (int w = 0; w < 4; w++) start[w] = (lanes){0} + CONSTANTS[w];
  for (int w = 0; w < 8; w++) start[4 + w] = (lanes){0} + key[w];
  for (int b = 0; b < LANES; b++) start[12][b] = counter + b;
  for (int w = 0; w < 3; w++) start[13 + w] = (lanes){0} + nonce[w];
  lanes x[16];
  for (int w = 0; w < 16; w++) x[w] = start[w];
  for (int twice = 0; twice < 10; twice++) {
    QUARTER_ROUND(x[0], x[4], x[8], x[12])
    QUARTER_ROUND(x[1], x[5], x[9], x[13])
    QUARTER_ROUND(x[2], x[6], x[10], x[14])
    QUARTER_ROUND(x[3], x[7], x[11], x[15])
    QUARTER_ROUND(x[0], x[5], x[10], x[15])
    QUARTER_ROUND(x[1], x[6], x[11], x[12])
    QUARTER_ROUND(x[2], x[7], x[8], x[13])
    QUARTER_ROUND(x[3], x[4], x[9], x[14])
  }
  for (int w = 0; w < 16; w++) words[w] = x[w] + start[w];
}

// Word w of block number b goes to out[w * count + b], for `count` blocks from `counter`.
void dpppl_blocks(const uint32_t* key, uint32_t counter, const uint32_t* nonce, int64_t count, uint32_t* out) {
  for (int64_t first = 0; first < count; first += LANES) {
    lanes words[16];
    some_blocks(key, counter + (uint32_t)first, nonce, words);
    size_t bytes = 4 * (size_t)(count - first < LANES ? count - first : LANES);
    for (int w = 0; w < 16; w++) memcpy(out + w * count + first, &words[w], bytes);
  }
}

// Normal draws as `random._box_muller` makes them of words[0..63], words[64..127], ...: the first half, the second half.
static inline void box_muller(const uint32_t* words, double* one, double* other) {
  for (int k = 0; k < 64; k++) {
    double u = (double)words[k] * 0x1p-32 + ((double)words[64 + k] + 0.5) * 0x1p-64;
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
    double t = (double)(int32_t)(angle << 2) * 0x1p-32 + ((double)words[192 + k] + 0.5) * 0x1p-62;
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

// 8 * count normal draws from `count` blocks.
void dpppl_draws(const uint32_t* key, uint32_t counter, const uint32_t* nonce, int64_t count, double* out) {
  for (int64_t first = 0; first < count; first += LANES) {
    union { lanes rows[16]; uint32_t flat[256]; } words;
    some_blocks(key, counter + (uint32_t)first, nonce, words.rows);
    double found[8 * LANES];
    box_muller(words.flat, found, found + 4 * LANES);
    size_t bytes = 8 * (size_t)(count - first < LANES ? count - first : LANES);
    for (int r = 0; r < 8; r++) memcpy(out + r * count + first, found + r * LANES, bytes);
  }
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

// Operands: key (..., 8), counter (..., 1), nonce (..., 3), uint32; result (..., rows, count).
#define HANDLER(name, function, type, rows)                                                                          \
  XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {                                                                    \
    if (asked_for_version(frame)) return NULL;                                                                       \
    XLA_FFI_Buffer** operands = (XLA_FFI_Buffer**)frame->args.args;                                                  \
    XLA_FFI_Buffer* out = frame->rets.rets[0];                                                                       \
    const uint32_t *key = operands[0]->data, *counter = operands[1]->data, *nonce = operands[2]->data;               \
    int64_t streams = 1, count = out->dims[out->rank - 1];                                                           \
    for (int64_t k = 0; k < out->rank - 2; k++) streams *= out->dims[k];                                             \
    for (int64_t k = 0; k < streams; k++)                                                                            \
      function(key + 8 * k, counter[k], nonce + 3 * k, count, (type*)out->data + rows * count * k);                  \
    return NULL;                                                                                                     \
  }

HANDLER(dpppl_chacha20, dpppl_blocks, uint32_t, 16)
HANDLER(dpppl_normal, dpppl_draws, double, 8)
