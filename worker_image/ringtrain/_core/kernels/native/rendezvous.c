/* Rendezvous of ranks that map one segment: they wait for each other, compare their signatures, and leave. */
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

/* Number of reads of another rank's progress between two reads of the clock. */
#define LOOKS 8

static bool reached(progress *p, uint32_t target) {
    return (int32_t)(atomic_load_explicit(&p->value, memory_order_acquire) - target) >= 0;
}

void advance(progress *p, uint32_t value) {
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

/* Sleep at most 20 ms, to notice a stop. Return whether a signal arrived, which Python must handle. */
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

/* Return a rank that left before its own counter (at the place of `of` in its head) reached the target; else -1. */
static int left_before(const channel *c, int rank, const progress *of, uint32_t target) {
    size_t counter = (size_t)((const char *)of - (const char *)head(c, rank));
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank || !reached(&head(c, r)->left, 1)) continue; /* before a last check of its counter */
        if (!reached((progress *)((char *)head(c, r) + counter), target)) return r;
    }
    return -1;
}

/* Wait until all ranks reach the target, one after the other. */
int wait_for(const channel *c, job *j, int rank, progress *p, uint32_t target) {
    if (reached(p, target)) return DONE;
    for (double since = c->spin_s > 0 ? now() : 0, left = c->spin_s; left > 0; left = c->spin_s - (now() - since))
        for (int i = 0; i < LOOKS; i++) {
            pause_briefly();
            if (reached(p, target)) return DONE;
        }
    /* There may be more ranks than cores: the awaited rank may need the core of this one. */
    for (int i = 0; i < 4; i++) {
        sched_yield();
        if (reached(p, target)) return DONE;
    }
    if (j->hasty && !*c->stop) return AGAIN;
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
        int gone = left_before(c, rank, p, target);
        if (reached(p, target)) return DONE;
        if (gone >= 0) {
            j->blamed = gone;
            return LEFT;
        }
        if (now() - since > j->timeout_s) return TIMEOUT;
        if (signalled) return AGAIN;
    }
    return DONE;
}

void show_signature(const channel *c, const job *j) {
    signature *mine = &head(c, c->rank)->what[c->collective % PARITIES];
    /* Do not write an equal value: a write would invalidate the cache lines of all other ranks. */
    if (mine->length == j->what_bytes && !memcmp(mine->bytes, j->what, j->what_bytes)) return;
    mine->length = (uint32_t)j->what_bytes;
    memcpy(mine->bytes, j->what, j->what_bytes);
}

int compare_signatures(const channel *c, job *j) {
    const signature *mine = &head(c, c->rank)->what[c->collective % PARITIES];
    for (int r = 0; r < c->size; r++) {
        const signature *other = &head(c, r)->what[c->collective % PARITIES];
        if (other->length == mine->length && !memcmp(other->bytes, mine->bytes, mine->length)) continue;
        j->blamed = r;
        return MISMATCH;
    }
    return DONE;
}

int wait_all(const channel *c, job *j, size_t counter, uint32_t target) {
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) TRY(wait_for(c, j, r, (progress *)((char *)head(c, r) + counter), target));
    return DONE;
}

/* Record that no rank needs to wait for this one any more. */
EXPORT void ringtrain_shm_leave(const channel *c) {
    rank_head *mine = head(c, c->rank);
    progress *all[] = {&mine->staged, &mine->reduced, &mine->collected};
    advance(&mine->left, 1);
    for (int i = 0; i < 3; i++) syscall(SYS_futex, &all[i]->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
