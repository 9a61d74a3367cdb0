/* Notes what is on the disk, for `turnflow torture kill --power`: loaded before turnflow, it takes
 * the place of fsync and fdatasync. What a file holds when it is synchronised is copied to
 * POWER_SHADOW/data-IDENTITY, and the names in a directory are listed in
 * POWER_SHADOW/names-IDENTITY, for what is below one of POWER_ROOTS (separated by colons). An
 * identity is an inode with its time of birth. The disk itself is not waited for. One note is made at a
 * time, also by the process that renames files: an older one must not replace a newer one.
 *
 * cc -shared -fPIC -O1 -o power.so power.c
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int identity(int dir, const char *name, char *out, size_t size) {
    struct statx s;
    int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
    if (statx(dir, name, flags, STATX_INO | STATX_BTIME, &s)) return -1;
    snprintf(out, size, "%llu-%lld-%u", (unsigned long long)s.stx_ino, (long long)s.stx_btime.tv_sec,
             s.stx_btime.tv_nsec);
    return 0;
}

static int is_watched(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    const char *root = getenv("POWER_ROOTS");
    if (length < 0 || !root || !getenv("POWER_SHADOW")) return 0;
    path[length] = 0;
    while (*root) {
        size_t n = strcspn(root, ":");
        if (n && !strncmp(path, root, n) && (path[n] == '/' || !path[n])) return 1;
        root += n + (root[n] == ':');
    }
    return 0;
}

/* Copies a file as it is now, or lists a directory. */
static int note(int fd) {
    static atomic_uint number;
    char id[96], to[PATH_MAX], beside[PATH_MAX], self[64];
    struct stat s;
    if (fstat(fd, &s) || identity(fd, "", id, sizeof id)) return -1;
    if (!S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode)) return 0;
    const char *shadow = getenv("POWER_SHADOW");
    snprintf(to, sizeof to, "%s/%s-%s", shadow, S_ISDIR(s.st_mode) ? "names" : "data", id);
    snprintf(beside, sizeof beside, "%s/new-%d-%u", shadow, getpid(), number++);
    int out = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0) return -1;
    /* A descriptor of its own: the one that is synchronised may be for writing only. */
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int in = open(self, O_RDONLY | O_CLOEXEC);
    if (in < 0) return -1;
    if (S_ISDIR(s.st_mode)) {
        DIR *dir = fdopendir(in);
        struct dirent *entry;
        while (dir && (entry = readdir(dir))) {
            char child[96];
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
            if (identity(dirfd(dir), entry->d_name, child, sizeof child)) continue;
            dprintf(out, "%s %s", child, entry->d_name);
            if (write(out, "", 1) != 1) return -1;
        }
        if (dir) closedir(dir);
    } else {
        char buffer[1 << 16];
        ssize_t n;
        while ((n = read(in, buffer, sizeof buffer)) > 0)
            if (write(out, buffer, n) != n) return -1;
        close(in);
    }
    close(out);
    return rename(beside, to);
}

static int synchronise(int fd) {
    if (fcntl(fd, F_GETFD) < 0) return -1;
    int before = errno;
    if (is_watched(fd)) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/lock", getenv("POWER_SHADOW"));
        /* Also for the threads of one process: each has a description of its own. */
        int lock = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        int failed = lock < 0 || flock(lock, LOCK_EX) || note(fd);
        if (failed) {
            perror("power.c: cannot note what is synchronised");
            abort();
        }
        close(lock);
    }
    errno = before;
    return 0;
}

int fsync(int fd) { return synchronise(fd); }
int fdatasync(int fd) { return synchronise(fd); }
