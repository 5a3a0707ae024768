#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fold.h"

/* A round handles up to chunk_bytes of every rank's chunk:

     stage    copy what other ranks own into the slots meant for them
     reduce   fold the slots that were meant for this rank; show the result
     collect  copy the others' results

   Round r + 1 is staged before round r is reduced, and round r - 1 is collected after, so that ranks rarely meet
   waiting. Slots and results have two sides, used by even and odd rounds. Buffers that all ranks map need neither:
   each rank reads what it owns, and what others have done, where it lies. */

static rank_head *head(const channel *c, int rank) { return (rank_head *)c->base + rank; }

EXPORT uint64_t ringtrain_shm_bytes(int size, uint64_t chunk_bytes) {
    return (uint64_t)size * (sizeof(rank_head) + PARITIES * (uint64_t)(size + 1) * chunk_bytes);
}

/* Slot `to` of `from`; slot `size` is the result. */
static char *slot(const channel *c, int from, int to, uint32_t round) {
    uint64_t index = ((uint64_t)from * (c->size + 1) + to) * PARITIES + round % PARITIES;
    return c->base + sizeof(rank_head) * c->size + index * c->chunk_bytes;
}

static bool reached(progress *p, uint32_t target) {
    return (int32_t)(atomic_load_explicit(&p->value, memory_order_acquire) - target) >= 0;
}

static void advance(progress *p, uint32_t value) {
    atomic_store_explicit(&p->value, value, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&p->sleepers, memory_order_relaxed))
        syscall(SYS_futex, &p->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleep at most 20 ms, so that a stop is noticed. Whether a signal came: Python must see to it. */
static bool sleep_until_changed(progress *p, uint32_t target) {
    static const struct timespec slice = {0, 20000000};
    atomic_fetch_add(&p->sleepers, 1);
    uint32_t seen = atomic_load(&p->value);
    bool signalled = false;
    if ((int32_t)(seen - target) < 0)
        signalled = syscall(SYS_futex, &p->value, FUTEX_WAIT, seen, &slice, NULL, 0) < 0 && errno == EINTR;
    atomic_fetch_sub(&p->sleepers, 1);
    return signalled;
}

static int wait_for(const channel *c, job *j, int rank, progress *p, uint32_t target) {
    if (reached(p, target)) return DONE;
    for (int i = 0; i < c->spins; i++) {
        pause_briefly();
        if (reached(p, target)) return DONE;
    }
    /* More ranks than cores: the one that is waited for may need this one's. */
    for (int i = 0; i < 4; i++) {
        sched_yield();
        if (reached(p, target)) return DONE;
    }
    j->blamed = rank;
    double since = now();
    uint32_t seen = atomic_load(&p->value);
    while (!reached(p, target)) {
        if (*c->stop) return STOPPED;
        bool signalled = sleep_until_changed(p, target);
        uint32_t value = atomic_load(&p->value);
        if (value != seen) {
            seen = value;
            since = now();
        }
        bool left = reached(&head(c, rank)->left, 1); /* before a last look at what it did before it left */
        if (reached(p, target)) return DONE;
        if (left) return LEFT;
        if (now() - since > j->timeout_s) return TIMEOUT;
        if (signalled) return AGAIN;
    }
    return DONE;
}

#define TRY(call)                          \
    do {                                   \
        int outcome_ = (call);             \
        if (outcome_ != DONE) return outcome_; \
    } while (0)

static void show_signature(const channel *c, const job *j) {
    signature *mine = &head(c, c->rank)->what[c->collective % PARITIES];
    mine->length = (uint32_t)j->what_bytes;
    uint64_t kept = j->what_bytes < sizeof mine->bytes ? j->what_bytes : sizeof mine->bytes;
    memcpy(mine->bytes, j->what, kept);
}

static int compare_signatures(const channel *c, job *j) {
    const signature *mine = &head(c, c->rank)->what[c->collective % PARITIES];
    uint64_t kept = mine->length < sizeof mine->bytes ? mine->length : sizeof mine->bytes;
    for (int r = 0; r < c->size; r++) {
        const signature *other = &head(c, r)->what[c->collective % PARITIES];
        if (other->length == mine->length && !memcmp(other->bytes, mine->bytes, kept)) continue;
        j->blamed = r;
        return MISMATCH;
    }
    return DONE;
}

static uint64_t step_of(const channel *c, const job *j) {
    /* A partial has no result to show: only slots bound it. */
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

/* The elements of rank's chunk that round `index` handles. */
static uint64_t part(const channel *c, const job *j, int rank, uint32_t index, uint64_t *begin) {
    uint64_t step = step_of(c, j), end = j->chunks[c->size + rank];
    *begin = j->chunks[rank] + index * step;
    if (*begin >= end) return 0;
    return end - *begin < step ? end - *begin : step;
}

static int stage(const channel *c, job *j, uint32_t index) {
    uint32_t round = j->started + index;
    uint64_t begin, bytes = element_bytes(j->dtype);
    for (int r = 0; j->reduces && !j->peers && r < c->size; r++) {
        if (r == c->rank) continue;
        uint64_t count = part(c, j, r, index, &begin);
        if (!count) continue;
        TRY(wait_for(c, j, r, &head(c, r)->reduced, round - 1));
        memcpy(slot(c, c->rank, r, round), j->source + begin * bytes, count * bytes);
    }
    advance(&head(c, c->rank)->staged, round + 1);
    return DONE;
}

static int all_staged(const channel *c, job *j, uint32_t round) {
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) TRY(wait_for(c, j, r, &head(c, r)->staged, round + 1));
    return DONE;
}

static const char *contribution(const channel *c, const job *j, int rank, uint32_t round, uint64_t begin) {
    if (j->peers) return j->peers[rank] + begin * element_bytes(j->dtype);
    return rank == c->rank ? j->source + begin * element_bytes(j->dtype) : slot(c, rank, c->rank, round);
}

/* Fold `count` elements of all ranks block by block, and show each block while it is in the cache. */
static void fold_part(const channel *c, const job *j, uint32_t round, uint64_t begin, uint64_t count) {
    _Alignas(64) char running[2 * BLOCK_BYTES], wide[2 * BLOCK_BYTES];
    int kind = accumulator(j->dtype);
    uint64_t bytes = element_bytes(j->dtype), kind_bytes = element_bytes(kind), step = BLOCK_BYTES / bytes;
    uint64_t first = begin - j->chunks[c->rank];
    for (uint64_t at = 0; at < count; at += step) {
        uint64_t some = count - at < step ? count - at : step;
        const void *sum = j->before ? j->before + (first + at) * kind_bytes : NULL;
        for (int r = 0; r < c->size; r++) {
            const void *next = contribution(c, j, r, round, begin) + at * bytes;
            if (kind != j->dtype) {
                widen(j->dtype, sum ? wide : running, next, some);
                next = sum ? wide : running;
            }
            if (sum) combine(kind, j->op, running, sum, next, some);
            sum = sum || kind != j->dtype ? running : next;
        }
        if (sum != running) memcpy(running, sum, some * kind_bytes); /* a world of one */
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
    if (count && j->gathered && !j->peers)
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) TRY(wait_for(c, j, r, &head(c, r)->collected, round - 1));
    if (count && j->reduces) {
        TRY(all_staged(c, j, round));
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
        int r = (c->rank + i) % c->size; /* not all at the same rank's memory at once */
        uint64_t count = part(c, j, r, index, &begin);
        if (!count) continue;
        TRY(wait_for(c, j, r, &head(c, r)->reduced, round + 1));
        const char *result = j->peers ? j->peers[r] + begin * bytes : slot(c, r, c->size, round);
        memcpy(j->gathered + begin * bytes, result, count * bytes);
    }
    advance(&head(c, c->rank)->collected, round + 1);
    return DONE;
}

/* Everything in one slot: every rank folds all by itself, which saves a meeting. */
static int all_reduce_small(channel *c, job *j, uint64_t count) {
    uint32_t round = j->started;
    uint64_t bytes = element_bytes(j->dtype) * count;
    if (j->phase == 0) {
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) TRY(wait_for(c, j, r, &head(c, r)->reduced, round - 1));
        memcpy(slot(c, c->rank, c->rank, round), j->source, bytes);
        advance(&head(c, c->rank)->staged, round + 1);
        j->phase = 1;
    }
    TRY(all_staged(c, j, round));
    TRY(compare_signatures(c, j));
    const void *parts[c->size];
    for (int r = 0; r < c->size; r++) parts[r] = slot(c, r, r, round);
    extern void ringtrain_fold(int, int, int, void *, const void *const *, int, size_t);
    ringtrain_fold(j->dtype, j->op, j->divisor, j->gathered, parts, c->size, count);
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
        TRY(all_staged(c, j, j->started));
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
    /* Buffers belong to the caller again when nobody reads them any more. */
    for (int r = 0; j->peers && r < c->size; r++)
        if (r != c->rank) TRY(wait_for(c, j, r, &head(c, r)->collected, j->started + rounds));
    c->round = j->started + rounds;
    return DONE;
}

/* Nobody need wait for this rank any more. */
EXPORT void ringtrain_shm_leave(const channel *c) {
    rank_head *mine = head(c, c->rank);
    progress *all[] = {&mine->staged, &mine->reduced, &mine->collected};
    advance(&mine->left, 1);
    for (int i = 0; i < 3; i++) syscall(SYS_futex, &all[i]->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Run `j`, or go on with it after AGAIN. After any other outcome than DONE the channel must not be used any more. */
EXPORT int ringtrain_shm_run(channel *c, job *j, int small) {
    if (j->phase == 0 && j->next == 0) {
        j->started = c->round;
        show_signature(c, j);
    }
    int outcome = small ? all_reduce_small(c, j, (uint64_t)j->chunks[2 * c->size - 1]) : run_rounds(c, j);
    if (outcome == DONE) c->collective++;
    return outcome;
}
