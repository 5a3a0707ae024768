/* Rounding to a half type for transfer; the rounding error is stored for the next call. */
#include <math.h>
#include <stdint.h>

#include "fold.h"

WIDE static void add_lost(float *sum, const float *values, const float *lost, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] = values[i] + lost[i];
}

WIDE static void keep_lost(float *lost, const float *sum, const float *sent, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float difference = sum[i] - sent[i];
        /* An overflow is not added to all later values. */
        lost[i] = fabsf(difference) <= 3.4028235e38f ? difference : 0.0f;
    }
}

/* half[i] = values[i] + lost[i], rounded; lost[i] = the rounding error. */
EXPORT void ringtrain_squeeze(int dtype, uint16_t *half, const float *values, float *lost, size_t count) {
    _Alignas(64) float sum[BLOCK_BYTES / 4], sent[BLOCK_BYTES / 4];
    size_t step = BLOCK_BYTES / 4;
    for (size_t at = 0; at < count; at += step) {
        size_t some = count - at < step ? count - at : step;
        add_lost(sum, values + at, lost + at, some);
        narrow(dtype, half + at, sum, some, 0);
        widen(dtype, sent, half + at, some);
        keep_lost(lost + at, sum, sent, some);
    }
}

EXPORT void ringtrain_widen(int dtype, float *into, const uint16_t *half, size_t count) { widen(dtype, into, half, count); }
