/* Collectives of ranks that map one segment of memory. The layout is mirrored in kernels/structures.py. */
#ifndef RINGTRAIN_SHM_H
#define RINGTRAIN_SHM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LINE 128 /* bytes: neighbouring cache lines are fetched in pairs */
#define SIGNATURE_BYTES 32768
#define PARITIES 2

/* Number of rounds that a rank has done, and of ranks that sleep until it changes. */
typedef struct {
    _Alignas(LINE) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} progress;

/* Signature of a rank's collective: compared before any rank uses its data. The caller checks that it fits. */
typedef struct {
    uint32_t length;
    uint8_t bytes[SIGNATURE_BYTES - 4];
} signature;

/* A rank's part of the segment's head. */
typedef struct {
    progress staged;    /* contributions of round r are in its slots if this is above r */
    progress reduced;   /* its chunk of round r is in its result if this is above r; its slots may be reused */
    progress collected; /* it has read all results of round r if this is above r */
    progress left;      /* 1 if it takes part in no later collective */
    signature what[PARITIES];
} rank_head;

/* One rank's end of the segment. */
typedef struct {
    char *base;
    int32_t rank, size;
    uint64_t chunk_bytes;
    uint32_t round;      /* equal on all ranks, modulo 2^32 */
    uint64_t collective; /* number of collectives done, equal on all ranks */
    double spin_s; /* time to poll before sleeping */
    const _Atomic uint32_t *stop; /* set by this process to stop waiting */
} channel;

/* Part of a buffer: index of its first element, and its address. */
typedef struct {
    int64_t begin;
    const char *data;
} piece;

/* One collective. Buffers that it does not need are NULL. */
typedef struct {
    const uint8_t *what;
    uint64_t what_bytes;
    int32_t dtype, op, divisor, reduces;
    int32_t hasty; /* return AGAIN instead of sleeping if it must wait for a rank */
    const int64_t *chunks; /* begin of each rank's chunk in the whole buffer, then end of each */
    const char *const *peers; /* whole buffer of every rank, if this process maps them all; else NULL */
    const piece *pieces;   /* whole buffer in separate parts, and one more as its end; else NULL */
    const char *source;    /* whole buffer: this rank's contribution, or (not reducing) its chunk in place */
    const char *before;    /* accumulator's type, own chunk: folded before rank 0 */
    char *partial;         /* accumulator's type, own chunk: output, the fold without division and rounding */
    char *own;             /* own chunk: output, the result */
    char *gathered;        /* whole buffer: output, every rank's chunk */
    double timeout_s;      /* limit for the time without progress of the awaited rank */
    uint32_t started, next, phase, piece;
    int32_t blamed; /* output: the awaited rank, or the one whose signature differs */
} job;

/* Elements of one parameter within the own chunk, up to `end`. `terms`: terms of its rule. `fate`: 0 until the first
   element has been reduced, which shows whether any rank has a gradient (see absent() in update.c). */
typedef struct {
    int64_t end;
    const void *terms;
    int64_t fate;
} span;

enum fate { UNKNOWN = 0, MOVES, STAYS };

/* Update of the own chunk after its reduction: new weights in every rank's memory. */
typedef struct {
    int32_t rule; /* enum rule */
    int32_t last; /* whether to wait until all ranks have done their updates */
    int32_t targets; /* number of ranks in `weights` */
    span *spans;          /* spans of the whole own chunk, without gaps */
    int64_t offset;       /* index in the own chunk of the first element to update */
    char *const *weights; /* whole buffer of every rank; the own one has the weights before the update */
    char *master;         /* own chunk in float32, for half types; else NULL */
    char *reduced;        /* own chunk: output, the reduced gradients, as of a reduction; may be NULL, or the
                             own contribution */
    char *states[2];      /* own chunk, in the accumulator's type; NULL if the rule has fewer */
    char *kept[3];        /* own chunk, in the accumulator's type: output, weights (or master) and states from
                             before the update; NULL if not needed */
    uint64_t *kept_count; /* increased by the number of elements copied to `kept` and changed */
} update;

enum rule { RULE_SGD = 1, RULE_ADAM };

enum outcome { DONE = 0, AGAIN, TIMEOUT, STOPPED, MISMATCH, LEFT };

#define TRY(call)                          \
    do {                                   \
        int outcome_ = (call);             \
        if (outcome_ != DONE) return outcome_; \
    } while (0)

static inline rank_head *head(const channel *c, int rank) { return (rank_head *)c->base + rank; }

/* rendezvous.c: waiting functions of shm.c and update.c, of which it uses nothing. */
void advance(progress *p, uint32_t value);
int wait_for(const channel *c, job *j, int rank, progress *p, uint32_t target);
/* Wait until a counter of all other ranks reaches `target`: STAGED, REDUCED or COLLECTED. */
int wait_all(const channel *c, job *j, size_t counter, uint32_t target);
#define STAGED offsetof(rank_head, staged)
#define REDUCED offsetof(rank_head, reduced)
#define COLLECTED offsetof(rank_head, collected)
void show_signature(const channel *c, const job *j);
int compare_signatures(const channel *c, job *j);

#endif
