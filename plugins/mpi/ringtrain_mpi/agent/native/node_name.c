/* gethostname() that answers $RINGTRAIN_MPI_NODE_NAME: preloaded into mpirun's daemons, see agent/mpi/worker.py. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static int answer(char *name, size_t length) {
    struct utsname system;
    const char *found = getenv("RINGTRAIN_MPI_NODE_NAME");
    if (!found || !*found) {
        if (uname(&system) != 0) return -1;
        found = system.nodename;
    }
    const size_t needed = strlen(found) + 1;
    if (needed > length) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(name, found, needed);
    return 0;
}

int gethostname(char *name, size_t length) { return answer(name, length); }

/* What programs call that were compiled with -D_FORTIFY_SOURCE. `size`: of the buffer. */
int __gethostname_chk(char *name, size_t length, size_t size) {
    if (length > size) abort();
    return answer(name, length);
}
