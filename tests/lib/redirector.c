/* A user's own preload, as GekkoFS, UnifyFS and Darshan have: paths below /virtual lead to the
 * directory REDIRECT_TO, and the calls of the program that name one are counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long redirected;

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static const char *there(const char *path, char *room) {
    static const char front[] = "/virtual/";
    if (!path || strncmp(path, front, sizeof front - 1) != 0) return path;
    redirected++;
    snprintf(room, 4096, "%s/%s", getenv("REDIRECT_TO"), path + sizeof front - 1);
    return room;
}

#define NEXT(name, type) ((type)next(name))

static int mode_of(int flags, va_list more) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0;
}

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...) {                                                   \
        char room[4096];                                                                           \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        int mode = mode_of(flags, more);                                                           \
        va_end(more);                                                                              \
        return NEXT(#name, int (*)(const char *, int, ...))(there(path, room), flags, mode);       \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                             \
    int name(int at, const char *path, int flags, ...) {                                           \
        char room[4096];                                                                           \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        int mode = mode_of(flags, more);                                                           \
        va_end(more);                                                                              \
        return NEXT(#name, int (*)(int, const char *, int, ...))(at, there(path, room), flags,     \
                                                                 mode);                            \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define OPENS_STREAM(name)                                                                         \
    FILE *name(const char *path, const char *mode) {                                               \
        char room[4096];                                                                           \
        return NEXT(#name, FILE * (*)(const char *, const char *))(there(path, room), mode);       \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

#define LOOKS(name)                                                                                \
    int name(const char *path, struct stat *to) {                                                  \
        char room[4096];                                                                           \
        return NEXT(#name, int (*)(const char *, struct stat *))(there(path, room), to);           \
    }
LOOKS(stat)
LOOKS(lstat)

int access(const char *path, int how) {
    char room[4096];
    return NEXT("access", int (*)(const char *, int))(there(path, room), how);
}

int rename(const char *old, const char *new) {
    char room[2][4096];
    return NEXT("rename", int (*)(const char *, const char *))(there(old, room[0]),
                                                               there(new, room[1]));
}

#define CHANGES(name)                                                                              \
    int name(const char *path) {                                                                   \
        char room[4096];                                                                           \
        return NEXT(#name, int (*)(const char *))(there(path, room));                              \
    }
CHANGES(unlink)
CHANGES(remove)
CHANGES(rmdir)

int mkdir(const char *path, mode_t mode) {
    char room[4096];
    return NEXT("mkdir", int (*)(const char *, mode_t))(there(path, room), mode);
}

/* For the program: how many calls so far. */
long redirector_count(void) {
    return redirected;
}
