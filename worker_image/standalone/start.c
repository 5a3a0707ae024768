/* Program bin/ringtrain and python/bin/python3 of the standalone directory: starts the directory's Python by its loader.
 *
 * It is linked statically, so that it runs in an image without any library. It finds the directory by its own path, so
 * that the directory can be anywhere. The loader uses only libraries in the directory. Variables by which an image would
 * change that process (its preloaded libraries), or that Python changes itself, are renamed;
 * ringtrain_job/standalone.py restores them for the programs that the agent starts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_PATH 4096
#define ASIDE "RINGTRAIN_ASIDE_"

static const char *const put_aside[] = {"LD_PRELOAD", "LD_AUDIT", "LC_CTYPE"};

static int fail(const char *what) {
    fprintf(stderr, "ringtrain: %s: %s\n", what, strerror(errno));
    return 127;
}

/* Remove the last component of `path`. Return 0 if there is none. */
static int cut(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    return slash != NULL;
}

static char *joined(const char *directory, const char *name) {
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0) exit(fail("memory"));
    return path;
}

static int set_variables_aside(void) {
    for (size_t i = 0; i < sizeof put_aside / sizeof *put_aside; i++) {
        char name[64];
        const char *value = getenv(put_aside[i]);
        snprintf(name, sizeof name, ASIDE "%s", put_aside[i]);
        if (setenv(name, value ? value : "", 1) || unsetenv(put_aside[i])) return -1;
    }
    return 0;
}

/* Source and target of `copy`, for the function that nftw calls. */
static size_t from_length;
static const char *to;

static int copy_file(const char *from, const char *target, const struct stat *is) {
    const int source = open(from, O_RDONLY | O_CLOEXEC);
    const int sink = open(target, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, is->st_mode & 0777);
    if (source < 0 || sink < 0) return -1;
    for (off_t left = is->st_size; left > 0;) {
        const ssize_t sent = sendfile(sink, source, NULL, (size_t)left);
        if (sent <= 0) return -1;
        left -= sent;
    }
    return fchmod(sink, is->st_mode & 0777) | close(source) | close(sink);
}

static int copy_entry(const char *path, const struct stat *is, int kind, struct FTW *at) {
    (void)at;
    char *target = joined(to, path + from_length);
    const int failed = kind == FTW_D   ? mkdir(target, is->st_mode & 0777) && errno != EEXIST
                       : kind == FTW_F ? copy_file(path, target, is)
                                       : (errno = EINVAL, 1);
    if (failed) exit(fail(path));
    free(target);
    return 0;
}

/* Copy the directory `base` into the empty volume `target`, readable by any user. Python takes a second to do so. */
static int copy_tree(const char *base, const char *target) {
    static const char *const parts[] = {"bin", "python"};
    umask(0);
    to = target;
    from_length = strlen(base) + 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (nftw(joined(base, parts[i]), copy_entry, 16, FTW_PHYS)) return fail(target);
    return 0;
}

int main(int count, char **arguments) {
    char own[MOST_PATH];
    const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length < 0) return fail("/proc/self/exe");
    own[length] = 0;
    const char *name = strrchr(own, '/');
    const int is_command = name && strcmp(name, "/ringtrain") == 0;
    if (!cut(own) || !cut(own)) return fail("the program's directory can't be found");
    if (is_command && count == 3 && strcmp(arguments[1], "copy") == 0) return copy_tree(own, arguments[2]);
    const char *base = is_command ? joined(own, "python") : own;
    char *loader = joined(base, "lib/ld.so");
    char *start[] = {loader, "--argv0", joined(base, "bin/python3"), "--library-path", joined(base, "lib"),
                     joined(base, "lib/python3"), "-I", "-B", "-u", "-m", "ringtrain"};
    const int words = (int)(sizeof start / sizeof *start) - (is_command ? 0 : 2);
    char **all = calloc((size_t)(words + count + 1), sizeof *all);
    if (!all || set_variables_aside()) return fail("memory");
    memcpy(all, start, (size_t)words * sizeof *all);
    for (int i = 1; i < count; i++) all[words + i - 1] = arguments[i];
    execv(loader, all);
    return fail(loader);
}
