/* The update rules, for gradients in the accumulator's type. Terms are mirrored in kernels/structures.py. */
#ifndef RINGTRAIN_OPTIMIZER_H
#define RINGTRAIN_OPTIMIZER_H

#include <stddef.h>

typedef struct {
    double scale, rate, momentum, decay;
    int nesterov;
} sgd_terms;

typedef struct {
    double scale, beta1, one_minus_beta1, beta2, one_minus_beta2, root_correction, epsilon;
    double coupled_decay, decoupled_decay, keep, step;
} adam_terms;

void ringtrain_sgd(int dtype, void *w, const void *g, void *velocity, size_t n, const sgd_terms *t);
void ringtrain_adam(int dtype, void *w, void *g, void *m, void *s, size_t n, const adam_terms *t);

#endif
