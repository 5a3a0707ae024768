/* Element-wise folding of contributions, bitwise equal to numpy's ufuncs in reduction/fold.py. */
#ifndef RINGTRAIN_FOLD_H
#define RINGTRAIN_FOLD_H

#include <stddef.h>

/* Increase it with every change of a signature, or of the meaning of a field, in any of these files. */
#define INTERFACE 15

/* The codes of wire/dtypes.py. */
enum dtype { F16 = 1, BF16, F32, F64, I32, I64, U8, BOOL };
enum op { SUM = 0, MIN, MAX, PRODUCT };

/* One clone for each width of vector registers, chosen when the library is loaded. No clone may fuse a
   multiplication and an addition: results would then depend on the machine. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) /* not yet ready then */
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif
#define EXPORT __attribute__((visibility("default")))

/* Bytes of a block, which stays in the first-level cache. */
#define BLOCK_BYTES 16384

size_t element_bytes(int dtype);

/* Half types are folded in float32. */
int accumulator(int dtype);

/* accumulator[i] = source[i], widened. */
void widen(int dtype, void *into, const void *source, size_t count);

/* into[i] = source[i] rounded to nearest even; `divisor` > 0 divides first, in the accumulator's type. */
void narrow(int dtype, void *into, void *accumulated, size_t count, int divisor);

/* into[i] = a[i] op b[i] in an accumulator's type. `into` may be `a` or `b`. */
void combine(int dtype, int op, void *into, const void *a, const void *b, size_t count);

/* running = (…(before op parts[0]) op …) op parts[n - 1] of at most a block, in the accumulator's type. `before`: in
   that type, or NULL. `wide`: scratch memory, as long as `running`. */
void fold_block(int dtype, int op, const void *before, const void *const *parts, int n, size_t count, void *running,
                void *wide);

/* into = (…(before op parts[0]) op …) op parts[n - 1]; `before` as in fold_block. `into` may be one of the parts. */
void ringtrain_fold(int dtype, int op, int divisor, const void *before, void *into, const void *const *parts, int n,
                    size_t count);

#endif
