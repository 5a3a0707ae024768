/* Reduce and update in one pass: every rank folds its own chunk of gradients that all ranks map, applies the update
   rule to each block while it is in the cache, and writes the new weights into every rank's memory. */
#include "shm.h"

#include <stdbool.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "fold.h"
#include "optimizer.h"

/* Sizes of the structs that Python mirrors, in the order of kernels/structures.py, which compares them at loading. */
EXPORT const uint32_t ringtrain_struct_bytes[] = {
    sizeof(rank_head), sizeof(channel), sizeof(job), sizeof(span), sizeof(update), sizeof(sgd_terms), sizeof(adam_terms),
};

/* Copy with non-temporal stores: another rank reads the copy later. */
static void copy_away(char *into, const char *from, uint64_t bytes) {
#if defined(__SSE2__)
    uint64_t head = -(uintptr_t)into % 16;
    if (head > bytes) head = bytes;
    memcpy(into, from, head);
    uint64_t whole = (bytes - head) / 64 * 64;
    for (uint64_t at = head; at < head + whole; at += 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(into + at + i), _mm_loadu_si128((const __m128i *)(from + at + i)));
    memcpy(into + head + whole, from + head + whole, bytes - head - whole);
#else
    memcpy(into, from, bytes);
#endif
}

/* Return whether no rank has the gradient that begins with `first`: the reduced value is -0 then. A present gradient
   never begins with -0 (optim/presence.py), and a sum is -0 only if all terms are. */
static bool absent(int kind, const char *first) {
    if (kind == F32) {
        uint32_t bits;
        memcpy(&bits, first, 4);
        return bits == 0x80000000u;
    }
    uint64_t bits;
    memcpy(&bits, first, 8);
    return bits == 0x8000000000000000u;
}

/* Apply the rule to `count` elements of one span, from `first` on, an index into the states. */
static void apply(const update *u, int kind, char *w, char *gradient, uint64_t first, uint64_t count,
                  const void *terms) {
    uint64_t offset = first * element_bytes(kind);
    char *one = u->states[0] ? u->states[0] + offset : NULL, *two = u->states[1] ? u->states[1] + offset : NULL;
    if (u->rule == RULE_SGD)
        ringtrain_sgd(kind, w, gradient, one, count, terms);
    else
        ringtrain_adam(kind, w, gradient, one, two, count, terms);
}

/* Do the same span by span. `s`: in: span of the first element; out: span of the next block's first element. */
static void apply_spans(const update *u, int kind, char *w, char *gradients, uint64_t first, uint64_t count,
                        span **s) {
    uint64_t bytes = element_bytes(kind), done = 0;
    while (done < count) {
        int64_t at = u->offset + (int64_t)(first + done);
        while ((*s)->end <= at) (*s)++;
        uint64_t left = (uint64_t)((*s)->end - at), some = left < count - done ? left : count - done;
        char *gradient = gradients + done * bytes;
        if ((*s)->fate == UNKNOWN) (*s)->fate = absent(kind, gradient) ? STAYS : MOVES;
        if ((*s)->fate == MOVES) apply(u, kind, w + done * bytes, gradient, first + done, some, (*s)->terms);
        done += some;
    }
}

/* Copy half-precision weights that differ from the rounded master copy: the program has set them. */
EXPORT void ringtrain_follow(int dtype, float *master, const uint16_t *weights, uint64_t count) {
    _Alignas(64) uint16_t rounded[BLOCK_BYTES / 2];
    for (uint64_t at = 0; at < count; at += BLOCK_BYTES / 2) {
        uint64_t some = count - at < BLOCK_BYTES / 2 ? count - at : BLOCK_BYTES / 2;
        narrow(dtype, rounded, master + at, some, 0);
        if (memcmp(rounded, weights + at, some * 2) == 0) continue;
        for (uint64_t i = 0; i < some; i++)
            if (rounded[i] != weights[at + i]) widen(dtype, master + at + i, weights + at + i, 1);
    }
}

/* Copy the values that the update will change. */
static void keep(const update *u, int kind, const char *w, uint64_t first, uint64_t count) {
    uint64_t offset = first * element_bytes(kind), bytes = count * element_bytes(kind);
    for (int i = 0; i < 3; i++)
        if (u->kept[i]) copy_away(u->kept[i] + offset, i ? u->states[i - 1] + offset : w, bytes);
}

/* Update elements `begin` to `end` of the weights by the gradients; states and master begin at `begin`. */
static void update_range(const channel *c, const job *j, const update *u, uint64_t begin, uint64_t end) {
    _Alignas(64) char running[2 * BLOCK_BYTES], wide[2 * BLOCK_BYTES];
    int kind = accumulator(j->dtype);
    uint64_t bytes = element_bytes(j->dtype), step = BLOCK_BYTES / bytes;
    const void *parts[c->size];
    span *s = u->spans;
    for (uint64_t at = begin; at < end; at += step) {
        uint64_t count = end - at < step ? end - at : step, first = at - begin;
        for (int r = 0; r < c->size; r++) parts[r] = j->peers[r] + at * bytes;
        const void *before = j->before ? j->before + first * element_bytes(kind) : NULL;
        fold_block(j->dtype, j->op, before, parts, c->size, count, running, wide);
        if (kind != j->dtype) { /* bitwise equal to the result of a reduction */
            narrow(j->dtype, wide, running, count, j->divisor);
            widen(j->dtype, running, wide, count);
        }
        if (u->reduced) copy_away(u->reduced + first * bytes, kind != j->dtype ? wide : running, count * bytes);
        char *own = u->weights[c->rank] + at * bytes;
        char *updated = u->master ? u->master + first * element_bytes(kind) : own;
        if (u->master) ringtrain_follow(j->dtype, (float *)updated, (const uint16_t *)own, count);
        if (u->kept_count) keep(u, kind, updated, first, count);
        apply_spans(u, kind, updated, running, first, count, &s);
        if (u->master) narrow(j->dtype, own, u->master + first * element_bytes(kind), count, 0);
        for (int r = 0; r < u->targets; r++)
            if (r != c->rank) copy_away(u->weights[r] + at * bytes, own, count * bytes);
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
    if (u->kept_count) *u->kept_count += end - begin;
}

/* Do the same for `count` elements, without a barrier: `before`, as in a job, and `parts` have arrived.
   `u->weights`: this rank's weights are the first. */
EXPORT void ringtrain_update(int dtype, int op, int divisor, const char *before, const char *const *parts, int size,
                             const update *u, uint64_t count) {
    channel c = {.rank = 0, .size = size};
    job j = {.dtype = dtype, .op = op, .divisor = divisor, .before = before, .peers = parts};
    update_range(&c, &j, u, 0, count);
}

static void stage(channel *c, job *j) {
    if (j->phase) return;
    j->started = c->round;
    show_signature(c, j);
    advance(&head(c, c->rank)->staged, j->started + 1);
    j->phase = 1;
}

static void end_round(channel *c, job *j) {
    c->round = j->started + 1;
    c->collective++;
}

/* Return when all ranks have arrived: their earlier writes are visible. Otherwise like ringtrain_shm_run. */
EXPORT int ringtrain_shm_meet(channel *c, job *j) {
    stage(c, j);
    TRY(wait_all(c, j, STAGED, j->started + 1));
    TRY(compare_signatures(c, j));
    advance(&head(c, c->rank)->reduced, j->started + 1);
    advance(&head(c, c->rank)->collected, j->started + 1);
    end_round(c, j);
    return DONE;
}

/* Like ringtrain_shm_run. The caller may write to gradients after the next barrier, or after the last update. */
EXPORT int ringtrain_shm_update(channel *c, job *j, const update *u) {
    stage(c, j);
    if (j->phase == 1) {
        TRY(wait_all(c, j, STAGED, j->started + 1));
        TRY(compare_signatures(c, j));
        update_range(c, j, u, j->chunks[c->rank], j->chunks[c->size + c->rank]);
        advance(&head(c, c->rank)->reduced, j->started + 1);
        advance(&head(c, c->rank)->collected, j->started + 1);
        j->phase = 2;
    }
    if (u->last) TRY(wait_all(c, j, COLLECTED, j->started + 1));
    end_round(c, j);
    return DONE;
}
