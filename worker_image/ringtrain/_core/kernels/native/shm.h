/* Collectives of ranks that map one segment of memory. The layout is mirrored in kernels/structures.py. */
#ifndef RINGTRAIN_SHM_H
#define RINGTRAIN_SHM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LINE 128 /* bytes: neighbouring cache lines are fetched in pairs */
#define SIGNATURE_BYTES 32768
#define PARITIES 2

/* How many rounds a rank has done, and how many ranks sleep until it changes. */
typedef struct {
    _Alignas(LINE) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} progress;

/* What a rank means to do: compared before anybody uses its data. The caller makes sure that it fits. */
typedef struct {
    uint32_t length;
    uint8_t bytes[SIGNATURE_BYTES - 4];
} signature;

/* A rank's part of the segment's head. */
typedef struct {
    progress staged;    /* contributions of round r lie in its slots when this is above r */
    progress reduced;   /* its chunk of round r lies in its result when this is above r; its slots may be reused */
    progress collected; /* it has read all results of round r when this is above r */
    progress left;      /* 1 when it takes part in nothing any more */
    signature what[PARITIES];
} rank_head;

/* One rank's end of the segment. */
typedef struct {
    char *base;
    int32_t rank, size;
    uint64_t chunk_bytes;
    uint32_t round;      /* counted alike on all ranks, modulo 2^32 */
    uint64_t collective; /* how many have been done, alike on all ranks */
    double spin_s; /* how long to look before sleeping */
    const _Atomic uint32_t *stop; /* set by this process when it no longer wants to wait */
} channel;

/* A part of a buffer: where in the buffer it begins, in elements, and where it lies. */
typedef struct {
    int64_t begin;
    const char *data;
} piece;

/* One collective. Buffers that it does not need are NULL. */
typedef struct {
    const uint8_t *what;
    uint64_t what_bytes;
    int32_t dtype, op, divisor, reduces;
    int32_t hasty; /* AGAIN, instead of sleeping, where another rank lets it wait */
    const int64_t *chunks; /* where each rank's chunk begins in the whole buffer, then where each ends */
    const char *const *peers; /* the whole buffer of every rank, where all can read all; else NULL */
    const piece *pieces;   /* the whole buffer in parts that lie anywhere, and one more that ends it; else NULL */
    const char *source;    /* whole buffer: this rank's contribution, or (not reducing) its chunk in place */
    const char *before;    /* accumulator's type, own chunk: folded before rank 0 */
    char *partial;         /* accumulator's type, own chunk: gets the fold, neither divided nor rounded */
    char *own;             /* own chunk: gets the result */
    char *gathered;        /* whole buffer: gets everybody's chunk */
    double timeout_s;      /* without any progress of the rank that is waited for */
    uint32_t started, next, phase, piece;
    int32_t blamed; /* out: the rank that was waited for, or whose signature differs */
} job;

/* Elements of one parameter within the own chunk, up to `end`. `terms`: of its rule. `fate`: 0 until the first
   element has been reduced, which tells whether any rank has a gradient (see absent() in update.c). */
typedef struct {
    int64_t end;
    const void *terms;
    int64_t fate;
} span;

enum fate { UNKNOWN = 0, MOVES, STAYS };

/* What becomes of the own chunk once it is reduced: new weights, in every rank's memory. */
typedef struct {
    int32_t rule; /* enum rule */
    int32_t last; /* whether to wait until all ranks have done theirs */
    int32_t targets; /* how many ranks' weights there are */
    span *spans;          /* of the whole own chunk, without gaps */
    int64_t offset;       /* where in the own chunk the first element is that this call updates */
    char *const *weights; /* the whole buffer of every rank; the own one holds the weights before the update */
    char *master;         /* own chunk in float32, for half types; else NULL */
    char *reduced;        /* own chunk: gets the reduced gradients, as a reduction leaves them; may be NULL, or the
                             own contribution */
    char *states[2];      /* own chunk, in the accumulator's type; NULL where the rule has less */
    char *kept[3];        /* own chunk, in the accumulator's type: get weights (or master) and states from before the
                             update; NULL where nobody wants them */
    uint64_t *kept_count; /* grows by the elements that are kept, and changed */
} update;

enum rule { RULE_SGD = 1, RULE_ADAM };

enum outcome { DONE = 0, AGAIN, TIMEOUT, STOPPED, MISMATCH, LEFT };

#define TRY(call)                          \
    do {                                   \
        int outcome_ = (call);             \
        if (outcome_ != DONE) return outcome_; \
    } while (0)

static inline rank_head *head(const channel *c, int rank) { return (rank_head *)c->base + rank; }

/* rendezvous.c: what shm.c and update.c wait by. It uses nothing of theirs. */
void advance(progress *p, uint32_t value);
int wait_for(const channel *c, job *j, int rank, progress *p, uint32_t target);
/* Until a counter of all others has come to `target`: STAGED, REDUCED or COLLECTED. */
int wait_all(const channel *c, job *j, size_t counter, uint32_t target);
#define STAGED offsetof(rank_head, staged)
#define REDUCED offsetof(rank_head, reduced)
#define COLLECTED offsetof(rank_head, collected)
void show_signature(const channel *c, const job *j);
int compare_signatures(const channel *c, job *j);

#endif
