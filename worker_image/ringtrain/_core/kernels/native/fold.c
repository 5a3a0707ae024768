#include "fold.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

size_t element_bytes(int dtype) {
    static const uint8_t bytes[] = {0, 2, 2, 4, 8, 4, 8, 1, 1};
    return bytes[dtype];
}

int accumulator(int dtype) { return dtype == F16 || dtype == BF16 ? F32 : dtype; }

/* Integers wrap around as in numpy, by unsigned arithmetic. Floats propagate NaN from both operands. */
#define ADD(T, U, x, y) ((T)((U)(x) + (U)(y)))
#define MULTIPLY(T, U, x, y) ((T)((U)(x) * (U)(y)))
#define LESSER(T, U, x, y) ((x) < (y) || (x) != (x) ? (x) : (y))
#define GREATER(T, U, x, y) ((x) > (y) || (x) != (x) ? (x) : (y))

#define LOOP(name, T, U, EXPRESSION)                                                    \
    WIDE static void name(T *into, const T *a, const T *b, size_t count) {              \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) {                       \
            T x = a[i], y = b[i];                                                       \
            into[i] = EXPRESSION(T, U, x, y);                                           \
        }                                                                               \
    }
#define LOOPS(T, U)               \
    LOOP(add_##T, T, U, ADD)      \
    LOOP(min_##T, T, U, LESSER)   \
    LOOP(max_##T, T, U, GREATER)  \
    LOOP(mul_##T, T, U, MULTIPLY)

LOOPS(float, float)
LOOPS(double, double)
LOOPS(int32_t, uint32_t)
LOOPS(int64_t, uint64_t)
LOOPS(uint8_t, uint8_t)

#define CASE(T)                                                                        \
    switch (op) {                                                                      \
    case SUM: add_##T(into, a, b, count); return;                                      \
    case MIN: min_##T(into, a, b, count); return;                                      \
    case MAX: max_##T(into, a, b, count); return;                                      \
    default: mul_##T(into, a, b, count); return;                                       \
    }

void combine(int dtype, int op, void *into, const void *a, const void *b, size_t count) {
    switch (dtype) {
    case F32: CASE(float)
    case F64: CASE(double)
    case I32: CASE(int32_t)
    case I64: CASE(int64_t)
    case BOOL: op = op == SUM || op == MAX ? MAX : MIN; /* or, and */ /* fall through */
    default: CASE(uint8_t)
    }
}

WIDE static void widen_bf16(uint32_t *into, const uint16_t *source, size_t count) {
    for (size_t i = 0; i < count; i++) into[i] = (uint32_t)source[i] << 16;
}

WIDE static void narrow_bf16(uint16_t *into, const uint32_t *source, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = source[i];
        uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
        into[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
}

WIDE static void widen_f16(float *into, const uint16_t *source, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = source[i] & 0x7fff, sign = (uint32_t)(source[i] & 0x8000) << 16;
        uint32_t normal = (magnitude << 13) + 0x38000000u; /* from the exponent's bias of 15 to 127 */
        /* Integer arithmetic: a processor that flushes subnormal numbers to 0 does so only for floats. */
        float small = (float)(int32_t)magnitude * 0x1p-24f;
        uint32_t bits;
        memcpy(&bits, &small, 4);
        bits = magnitude >= 0x0400 ? normal : bits;
        bits = magnitude >= 0x7c00 ? normal | 0x7f800000 : bits;
        bits |= sign;
        memcpy(&into[i], &bits, 4);
    }
}

WIDE static void narrow_f16(uint16_t *into, const float *source, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &source[i], 4);
        uint32_t sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        /* Normal numbers: rebias and round to even. Subnormal ones: adding 0.5 aligns the last place. */
        uint32_t normal = (bits - 0x38000000u + 0xfff + ((bits >> 13) & 1)) >> 13;
        float small;
        memcpy(&small, &bits, 4);
        small += 0.5f;
        uint32_t subnormal;
        memcpy(&subnormal, &small, 4);
        subnormal -= 0x3f000000u;
        uint32_t half = bits < 0x38800000u ? subnormal : normal;
        half = bits >= 0x477ff000u ? 0x7c00 : half;
        half = bits > 0x7f800000u ? 0x7e00 : half;
        into[i] = (uint16_t)(sign | half);
    }
}

WIDE static void divide_float(float *values, size_t count, float divisor) {
    for (size_t i = 0; i < count; i++) values[i] /= divisor;
}

WIDE static void divide_double(double *values, size_t count, double divisor) {
    for (size_t i = 0; i < count; i++) values[i] /= divisor;
}

void widen(int dtype, void *into, const void *source, size_t count) {
    if (dtype == F16)
        widen_f16(into, source, count);
    else if (dtype == BF16)
        widen_bf16(into, source, count);
    else if (into != source)
        memcpy(into, source, count * element_bytes(dtype));
}

/* A mean below the smallest number of its type is 0 and not -0: -0 means that no rank has a gradient. */
WIDE static void unsign(uint16_t *rounded, const float *exact, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (rounded[i] == 0x8000 && exact[i] != 0) rounded[i] = 0;
}

void narrow(int dtype, void *into, void *accumulated, size_t count, int divisor) {
    if (divisor > 0 && accumulator(dtype) == F32)
        divide_float(accumulated, count, (float)divisor);
    else if (divisor > 0 && dtype == F64)
        divide_double(accumulated, count, (double)divisor);
    if (dtype == F16)
        narrow_f16(into, accumulated, count);
    else if (dtype == BF16)
        narrow_bf16(into, accumulated, count);
    else if (into != accumulated)
        memcpy(into, accumulated, count * element_bytes(dtype));
    if (divisor > 0 && accumulator(dtype) != dtype) unsign(into, accumulated, count);
}

void fold_block(int dtype, int op, const void *before, const void *const *parts, int n, size_t count, void *running,
                void *wide) {
    int kind = accumulator(dtype);
    const void *sum = before;
    for (int p = 0; p < n; p++) {
        const void *next = parts[p];
        if (kind != dtype) {
            widen(dtype, sum ? wide : running, next, count);
            next = sum ? wide : running;
        }
        if (sum) combine(kind, op, running, sum, next, count);
        sum = sum || kind != dtype ? running : next;
    }
    if (sum != running) memcpy(running, sum, count * element_bytes(kind)); /* there is only one part */
}

/* `as_it_is`: `into` has the accumulator's type and receives the fold without division and rounding. */
static void fold(int dtype, int op, int divisor, const char *before, char *into, const void *const *parts, int n,
                 size_t count, bool as_it_is) {
    _Alignas(64) char running[2 * BLOCK_BYTES], wide[2 * BLOCK_BYTES];
    size_t bytes = element_bytes(dtype), kind_bytes = element_bytes(accumulator(dtype)), step = BLOCK_BYTES / bytes;
    const void *here[n];
    for (size_t at = 0; at < count; at += step) {
        size_t some = count - at < step ? count - at : step;
        for (int p = 0; p < n; p++) here[p] = (const char *)parts[p] + at * bytes;
        fold_block(dtype, op, before ? before + at * kind_bytes : NULL, here, n, some, running, wide);
        if (as_it_is)
            memcpy(into + at * kind_bytes, running, some * kind_bytes);
        else
            narrow(dtype, into + at * bytes, running, some, divisor);
    }
}

EXPORT void ringtrain_fold(int dtype, int op, int divisor, const void *before, void *into, const void *const *parts,
                           int n, size_t count) {
    fold(dtype, op, divisor, before, into, parts, n, count, false);
}

/* Do the same for the parts of this pod: the next pod continues the fold from the result. */
EXPORT void ringtrain_fold_partial(int dtype, int op, const void *before, void *partial, const void *const *parts,
                                   int n, size_t count) {
    fold(dtype, op, 0, before, partial, parts, n, count, true);
}

/* Compared with kernels/library.py when the library is loaded. */
EXPORT int ringtrain_interface(void) { return INTERFACE; }
