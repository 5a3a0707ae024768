#include "shm.h"

#include <stdbool.h>
#include <string.h>

#include "fold.h"

/* A round handles up to chunk_bytes of every rank's chunk:

     stage    copy what other ranks own into the slots meant for them
     reduce   fold the slots that were meant for this rank; show the result
     collect  copy the others' results

   Round r + 1 is staged before round r is reduced, and round r - 1 is collected after, so that ranks rarely
   wait. Slots and results have two halves, used by even and odd rounds. Buffers that all ranks map need neither:
   each rank reads its own chunk and the results of others in place. */

EXPORT uint64_t ringtrain_shm_bytes(int size, uint64_t chunk_bytes) {
    return (uint64_t)size * (sizeof(rank_head) + PARITIES * (uint64_t)(size + 1) * chunk_bytes);
}

/* Return slot `to` of rank `from`; slot `size` is the result. */
static char *slot(const channel *c, int from, int to, uint32_t round) {
    uint64_t index = ((uint64_t)from * (c->size + 1) + to) * PARITIES + round % PARITIES;
    return c->base + sizeof(rank_head) * c->size + index * c->chunk_bytes;
}

static uint64_t step_of(const channel *c, const job *j) {
    /* Rounds are needed for slots, and for results that are read while they are in the cache. */
    if (j->peers && !(j->reduces && j->gathered)) return (uint64_t)1 << 48;
    return c->chunk_bytes / element_bytes(j->dtype);
}

static uint32_t rounds_of(const channel *c, const job *j) {
    uint64_t step = step_of(c, j), most = 1;
    for (int r = 0; r < c->size; r++) {
        uint64_t rounds = ((uint64_t)(j->chunks[c->size + r] - j->chunks[r]) + step - 1) / step;
        if (rounds > most) most = rounds;
    }
    return (uint32_t)most;
}

/* Return the elements of the rank's chunk that round `index` handles. */
static uint64_t part(const channel *c, const job *j, int rank, uint32_t index, uint64_t *begin) {
    uint64_t step = step_of(c, j), end = j->chunks[c->size + rank];
    *begin = j->chunks[rank] + index * step;
    if (*begin >= end) return 0;
    return end - *begin < step ? end - *begin : step;
}

/* Return elements of the own contribution: in place, or a copy in `into` if they are in several pieces. */
static const char *own_elements(job *j, uint64_t begin, uint64_t count, char *into) {
    uint64_t bytes = element_bytes(j->dtype);
    if (!j->pieces) return j->source + begin * bytes;
    if (!count) return into;
    const piece *p = j->pieces + j->piece;
    while (p->begin > (int64_t)begin) p--;
    while (p[1].begin <= (int64_t)begin) p++;
    j->piece = (uint32_t)(p - j->pieces); /* the next elements are in this piece or one of the next */
    uint64_t some = (uint64_t)p[1].begin - begin;
    if (some >= count) return p->data + (begin - p->begin) * bytes;
    for (uint64_t done = 0; done < count; done += some, p++) {
        const char *from = p->data + (begin + done - p->begin) * bytes;
        some = (uint64_t)p[1].begin - begin - done < count - done ? (uint64_t)p[1].begin - begin - done : count - done;
        memcpy(into + done * bytes, from, some * bytes);
    }
    return into;
}

static void copy_own(job *j, uint64_t begin, uint64_t count, char *into) {
    const char *from = own_elements(j, begin, count, into);
    if (from != into) memcpy(into, from, count * element_bytes(j->dtype));
}

static int stage(const channel *c, job *j, uint32_t index) {
    uint32_t round = j->started + index;
    uint64_t begin;
    for (int r = 0; j->reduces && !j->peers && r < c->size; r++) {
        if (r == c->rank) continue;
        uint64_t count = part(c, j, r, index, &begin);
        if (!count) continue;
        TRY(wait_for(c, j, r, &head(c, r)->reduced, round - 1));
        copy_own(j, begin, count, slot(c, c->rank, r, round));
    }
    advance(&head(c, c->rank)->staged, round + 1);
    return DONE;
}

/* Return `count` elements of `rank` for the chunk of this rank, from `begin`, the first one of the round. */
static const char *contribution(
    const channel *c, job *j, int rank, uint32_t round, uint64_t begin, uint64_t at, uint64_t count, char *into
) {
    uint64_t bytes = element_bytes(j->dtype);
    if (j->peers) return j->peers[rank] + (begin + at) * bytes;
    return rank == c->rank ? own_elements(j, begin + at, count, into) : slot(c, rank, c->rank, round) + at * bytes;
}

/* Fold `count` elements of all ranks block by block, and publish each block while it is in the cache. */
static void fold_part(const channel *c, job *j, uint32_t round, uint64_t begin, uint64_t count) {
    _Alignas(64) char running[2 * BLOCK_BYTES], wide[2 * BLOCK_BYTES], own[BLOCK_BYTES];
    uint64_t bytes = element_bytes(j->dtype), kind_bytes = element_bytes(accumulator(j->dtype));
    uint64_t step = BLOCK_BYTES / bytes, first = begin - j->chunks[c->rank];
    const void *parts[c->size];
    for (uint64_t at = 0; at < count; at += step) {
        uint64_t some = count - at < step ? count - at : step;
        for (int r = 0; r < c->size; r++) parts[r] = contribution(c, j, r, round, begin, at, some, own);
        const void *before = j->before ? j->before + (first + at) * kind_bytes : NULL;
        fold_block(j->dtype, j->op, before, parts, c->size, some, running, wide);
        if (j->partial) {
            memcpy(j->partial + (first + at) * kind_bytes, running, some * kind_bytes);
            continue;
        }
        narrow(j->dtype, j->own + (first + at) * bytes, running, some, j->divisor);
        if (j->gathered && !j->peers)
            memcpy(slot(c, c->rank, c->size, round) + at * bytes, j->own + (first + at) * bytes, some * bytes);
    }
}

static int reduce(const channel *c, job *j, uint32_t index) {
    uint32_t round = j->started + index;
    uint64_t begin, bytes = element_bytes(j->dtype), count = part(c, j, c->rank, index, &begin);
    if (count && j->gathered && !j->peers) TRY(wait_all(c, j, COLLECTED, round - 1));
    if (count && j->reduces) {
        TRY(wait_all(c, j, STAGED, round + 1));
        fold_part(c, j, round, begin, count);
    } else if (count && j->gathered && !j->peers) {
        memcpy(slot(c, c->rank, c->size, round), j->source + begin * bytes, count * bytes);
    }
    advance(&head(c, c->rank)->reduced, round + 1);
    return DONE;
}

static int collect(const channel *c, job *j, uint32_t index) {
    uint32_t round = j->started + index;
    uint64_t begin, bytes = element_bytes(j->dtype);
    for (int i = 1; j->gathered && i < c->size; i++) {
        int r = (c->rank + i) % c->size; /* ranks do not read the same rank's memory at the same time */
        uint64_t count = part(c, j, r, index, &begin);
        if (!count) continue;
        TRY(wait_for(c, j, r, &head(c, r)->reduced, round + 1));
        const char *result = j->peers ? j->peers[r] + begin * bytes : slot(c, r, c->size, round);
        memcpy(j->gathered + begin * bytes, result, count * bytes);
    }
    advance(&head(c, c->rank)->collected, round + 1);
    return DONE;
}

/* Put the whole buffer in one slot: every rank folds all of it, which saves a barrier. */
static int all_reduce_small(channel *c, job *j, uint64_t count) {
    uint32_t round = j->started;
    if (j->phase == 0) {
        TRY(wait_all(c, j, REDUCED, round - 1));
        copy_own(j, 0, count, slot(c, c->rank, c->rank, round));
        advance(&head(c, c->rank)->staged, round + 1);
        j->phase = 1;
    }
    TRY(wait_all(c, j, STAGED, round + 1));
    TRY(compare_signatures(c, j));
    const void *parts[c->size];
    for (int r = 0; r < c->size; r++) parts[r] = slot(c, r, r, round);
    ringtrain_fold(j->dtype, j->op, j->divisor, NULL, j->gathered, parts, c->size, count);
    advance(&head(c, c->rank)->reduced, round + 1);
    advance(&head(c, c->rank)->collected, round + 1);
    c->round = round + 1;
    return DONE;
}

static int run_rounds(channel *c, job *j) {
    uint32_t rounds = rounds_of(c, j);
    if (j->phase == 0) {
        TRY(stage(c, j, 0));
        j->phase = 1;
    }
    if (j->phase == 1) {
        TRY(wait_all(c, j, STAGED, j->started + 1));
        TRY(compare_signatures(c, j));
        j->phase = 2;
    }
    for (; j->next <= rounds && j->phase < 5; j->next++, j->phase = 2) {
        if (j->phase == 2) {
            if (j->next + 1 < rounds) TRY(stage(c, j, j->next + 1));
            j->phase = 3;
        }
        if (j->phase == 3) {
            if (j->next < rounds) TRY(reduce(c, j, j->next));
            j->phase = 4;
        }
        if (j->next > 0) TRY(collect(c, j, j->next - 1));
    }
    j->phase = 5;
    /* Wait until no rank reads the caller's buffers any more. */
    if (j->peers) TRY(wait_all(c, j, COLLECTED, j->started + rounds));
    c->round = j->started + rounds;
    return DONE;
}

/* Run `j`, or continue it after AGAIN. After any result but DONE the channel must not be used any more. */
EXPORT int ringtrain_shm_run(channel *c, job *j, int small) {
    if (j->phase == 0 && j->next == 0) {
        j->started = c->round;
        show_signature(c, j);
    }
    int outcome = small ? all_reduce_small(c, j, (uint64_t)j->chunks[2 * c->size - 1]) : run_rounds(c, j);
    if (outcome == DONE) c->collective++;
    return outcome;
}
