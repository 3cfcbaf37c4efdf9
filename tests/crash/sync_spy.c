/* Stands between a program and fsync/fdatasync (LD_PRELOAD), to make a power cut and a failing disk out of an
 * ordinary directory.
 *
 * SYNC_SPY_SHADOW  a directory: each synced file is copied there, under its inode number, before the sync is
 *                  reported as done. After a kill, a file's shadow is what a power cut would have left of it. Of a
 *                  directory the names of its entries are kept, in a file that ends in `.entries`.
 * SYNC_SPY_FAIL    a path: while it exists, every sync fails with EIO.
 * SYNC_SPY_STUCK   a path: while it exists, no sync ends.
 * SYNC_SPY_LIE     when set, a sync is reported as done and copies nothing: the deliberately broken disk. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Copies what is not a hole, so that a preallocated file costs only what was written to it. */
static int copy(int from, int to, off_t size) {
    char buffer[1 << 16];
    off_t at = 0;
    while (at < size && (at = lseek(from, at, SEEK_DATA)) >= 0) {
        off_t end = lseek(from, at, SEEK_HOLE);
        while (at < end) {
            size_t want = end - at < (off_t)sizeof buffer ? (size_t)(end - at) : sizeof buffer;
            ssize_t got = pread(from, buffer, want, at);
            if (got <= 0 || pwrite(to, buffer, got, at) != got) return got == 0 ? 0 : -1;
            at += got;
        }
    }
    return ftruncate(to, size);
}

/* Writes the names of a directory's entries, each on a line. */
static int list(int directory, int to) {
    DIR *entries = fdopendir(directory);
    struct dirent *entry;
    int result = entries ? 0 : -1;
    while (entries && (entry = readdir(entries)))
        if (write(to, entry->d_name, strlen(entry->d_name)) < 0 || write(to, "\n", 1) != 1) result = -1;
    if (entries) closedir(entries);
    return result;
}

static int spied(int fd, int (*real)(int)) {
    const char *shadow = getenv("SYNC_SPY_SHADOW"), *fail = getenv("SYNC_SPY_FAIL");
    const char *stuck = getenv("SYNC_SPY_STUCK");
    char source[64], taken[4096], kept[4096];
    struct stat file;
    int result = -1;
    while (stuck && access(stuck, F_OK) == 0) usleep(1000);
    if (fail && access(fail, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    if (!shadow || getenv("SYNC_SPY_LIE") || fstat(fd, &file) != 0) return real(fd);
    int is_directory = S_ISDIR(file.st_mode);
    if (!is_directory && !S_ISREG(file.st_mode)) return real(fd);
    pthread_mutex_lock(&one_at_a_time);
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    snprintf(taken, sizeof taken, "%s/taken", shadow);
    snprintf(kept, sizeof kept, "%s/%lu%s", shadow, (unsigned long)file.st_ino, is_directory ? ".entries" : "");
    int from = open(source, O_RDONLY | O_CLOEXEC);
    int to = open(taken, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (from < 0 || to < 0 || fstat(from, &file) != 0) abort();
    if (is_directory ? list(dup(from), to) : copy(from, to, file.st_size)) abort();
    result = real(fd);
    if (result == 0 && rename(taken, kept) != 0) abort();
    close(from);
    close(to);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

int fsync(int fd) { return spied(fd, (int (*)(int))dlsym(RTLD_NEXT, "fsync")); }

int fdatasync(int fd) { return spied(fd, (int (*)(int))dlsym(RTLD_NEXT, "fdatasync")); }
