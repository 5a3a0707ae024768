/* The update rules of optim/kernels.py in one pass over the arrays, with the same operations in the same order on every
   element: results are bitwise equal. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "fold.h"
#include "optimizer.h"

#define INLINE static inline __attribute__((always_inline))

/* Each rule is an inline body with constant flags, and one function per case without a branch in its loop. */
#define RULES(T, ROOT)                                                                                          \
    INLINE void sgd_body_##T(T *w, const T *g, T *v, size_t n, const sgd_terms *t, bool decays, bool nesterov) { \
        T scale = (T)t->scale, rate = (T)t->rate, momentum = (T)t->momentum, decay = (T)t->decay;               \
        _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++) {                                                   \
            T gradient = g[i] * scale;                                                                          \
            if (decays) gradient = gradient + w[i] * decay;                                                     \
            if (v) {                                                                                            \
                T velocity = v[i] * momentum + gradient;                                                        \
                v[i] = velocity;                                                                                \
                gradient = nesterov ? gradient + velocity * momentum : velocity;                                \
            }                                                                                                   \
            w[i] = w[i] - gradient * rate;                                                                      \
        }                                                                                                       \
    }                                                                                                           \
    WIDE static void sgd_##T(T *w, const T *g, size_t n, const sgd_terms *t) {                                  \
        sgd_body_##T(w, g, NULL, n, t, t->decay != 0, false);                                                   \
    }                                                                                                           \
    WIDE static void sgd_momentum_##T(T *w, const T *g, T *v, size_t n, const sgd_terms *t) {                   \
        sgd_body_##T(w, g, v, n, t, t->decay != 0, false);                                                      \
    }                                                                                                           \
    WIDE static void sgd_nesterov_##T(T *w, const T *g, T *v, size_t n, const sgd_terms *t) {                   \
        sgd_body_##T(w, g, v, n, t, t->decay != 0, true);                                                       \
    }                                                                                                           \
    INLINE void adam_body_##T(T *w, T *g, T *m, T *s, size_t n, const adam_terms *t, bool couples, bool only) {  \
        T scale = (T)t->scale, beta1 = (T)t->beta1, rest1 = (T)t->one_minus_beta1, beta2 = (T)t->beta2;         \
        T rest2 = (T)t->one_minus_beta2, root = (T)t->root_correction, epsilon = (T)t->epsilon;                 \
        T coupled = (T)t->coupled_decay, decoupled = (T)t->decoupled_decay, keep = (T)t->keep, step = (T)t->step; \
        bool decays = t->decoupled_decay != 0;                                                                  \
        _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++) {                                                   \
            T gradient = g[i] * scale;                                                                          \
            if (couples) gradient = gradient + w[i] * coupled;                                                  \
            T mean = m[i] * beta1 + gradient * rest1;                                                           \
            m[i] = mean;                                                                                        \
            T square = s[i] * beta2 + (gradient * gradient) * rest2;                                            \
            s[i] = square;                                                                                      \
            T direction = mean / (ROOT(square) * root + epsilon) * step;                                        \
            if (only)                                                                                           \
                g[i] = decays ? direction + w[i] * decoupled : direction;                                       \
            else                                                                                                \
                w[i] = (decays ? w[i] * keep : w[i]) - direction;                                               \
        }                                                                                                       \
    }                                                                                                           \
    WIDE static void adam_##T(T *w, T *g, T *m, T *s, size_t n, const adam_terms *t) {                          \
        adam_body_##T(w, g, m, s, n, t, false, false);                                                          \
    }                                                                                                           \
    WIDE static void adam_coupled_##T(T *w, T *g, T *m, T *s, size_t n, const adam_terms *t) {                  \
        adam_body_##T(w, g, m, s, n, t, true, false);                                                           \
    }                                                                                                           \
    WIDE static void direction_##T(T *w, T *g, T *m, T *s, size_t n, const adam_terms *t) {                     \
        adam_body_##T(w, g, m, s, n, t, t->coupled_decay != 0, true);                                           \
    }                                                                                                           \
    WIDE static void descend_##T(T *w, const T *d, size_t n, double rate) {                                     \
        for (size_t i = 0; i < n; i++) w[i] = w[i] - d[i] * (T)rate;                                            \
    }

RULES(float, sqrtf)
RULES(double, sqrt)

#define SGD(T)                                                   \
    do {                                                         \
        if (!velocity || t->momentum == 0) sgd_##T(w, g, n, t);  \
        else if (t->nesterov) sgd_nesterov_##T(w, g, velocity, n, t); \
        else sgd_momentum_##T(w, g, velocity, n, t);             \
    } while (0)

EXPORT void ringtrain_sgd(int dtype, void *w, const void *g, void *velocity, size_t n, const sgd_terms *t) {
    if (dtype == F32) SGD(float);
    else SGD(double);
}

EXPORT void ringtrain_adam(int dtype, void *w, void *g, void *m, void *s, size_t n, const adam_terms *t) {
    bool couples = t->coupled_decay != 0;
    if (dtype == F32) (couples ? adam_coupled_float : adam_float)(w, g, m, s, n, t);
    else (couples ? adam_coupled_double : adam_double)(w, g, m, s, n, t);
}

/* Write the direction to the gradients. */
EXPORT void ringtrain_adam_direction(int dtype, void *w, void *g, void *m, void *s, size_t n, const adam_terms *t) {
    if (dtype == F32) direction_float(w, g, m, s, n, t);
    else direction_double(w, g, m, s, n, t);
}

EXPORT void ringtrain_descend(int dtype, void *w, const void *d, size_t n, double rate) {
    if (dtype == F32) descend_float(w, d, n, rate);
    else descend_double(w, d, n, rate);
}

static inline double squared(double x) { return x * x; }

/* Compute the sum of squares of each segment, from one of `starts` to the next: the first square, plus the others in
   numpy's order for at most 128 numbers: in eight columns, which are added in pairs, then the remainder. */
#define SQUARE_SUMS(T)                                                                                       \
    WIDE static void square_sums_##T(const T *values, const int64_t *starts, size_t n, double *sums) {       \
        for (size_t s = 0; s < n; s++) {                                                                     \
            const T *v = values + starts[s] + 1;                                                             \
            int64_t count = starts[s + 1] - starts[s] - 1, i = 0;                                            \
            double rest = 0, c[8];                                                                           \
            if (count >= 8) {                                                                                \
                for (int k = 0; k < 8; k++) c[k] = squared(v[k]);                                            \
                for (i = 8; i + 8 <= count; i += 8)                                                          \
                    for (int k = 0; k < 8; k++) c[k] += squared(v[i + k]);                                   \
                rest = ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));                    \
            }                                                                                                \
            for (; i < count; i++) rest += squared(v[i]);                                                    \
            sums[s] = squared(v[-1]) + rest;                                                                 \
        }                                                                                                    \
    }

SQUARE_SUMS(float)
SQUARE_SUMS(double)

/* `starts`: n + 1 indexes; the last one is the end of the last segment. */
EXPORT void ringtrain_square_sums(int dtype, const void *values, const int64_t *starts, size_t n, double *sums) {
    if (dtype == F32) square_sums_float(values, starts, n, sums);
    else square_sums_double(values, starts, n, sums);
}
