/* Every function of the C library that takes a path finds the files of the devices. Programs that were
   linked to a C library before 2.33 call __xstat and its like. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#define OLD_AT(name) __asm__(".symver " #name "," #name "@GLIBC_2.4")
#else
#define OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#define OLD_AT(name) OLD(name)
#endif
int __xstat(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
OLD(__xstat);
OLD(__lxstat);
OLD_AT(__fxstatat);
OLD(__xstat64);
OLD(__lxstat64);
OLD_AT(__fxstatat64);

/* _STAT_VER */
#if defined(__x86_64__)
enum { VERSION = 1 };
#else
enum { VERSION = 0 };
#endif

static int failed;

static void expect(const char *function, const char *path, int result)
{
    if (result < 0) {
        printf("%s: %s: %s\n", function, path, strerror(errno));
        failed = 1;
    }
}

/* The file exists, with or without the attribute. */
static int attribute(ssize_t result)
{
    return result < 0 && errno == ENOENT ? -1 : 0;
}

static void find(const char *path)
{
    struct stat status;
    struct stat64 status64;
    struct statx extended;
    int here = AT_FDCWD;

    expect("stat", path, stat(path, &status));
    expect("stat64", path, stat64(path, &status64));
    expect("lstat", path, lstat(path, &status));
    expect("lstat64", path, lstat64(path, &status64));
    expect("fstatat", path, fstatat(here, path, &status, 0));
    expect("fstatat64", path, fstatat64(here, path, &status64, 0));
    expect("statx", path, statx(here, path, 0, STATX_ALL, &extended));
    expect("__xstat", path, __xstat(VERSION, path, &status));
    expect("__xstat64", path, __xstat64(VERSION, path, &status64));
    expect("__lxstat", path, __lxstat(VERSION, path, &status));
    expect("__lxstat64", path, __lxstat64(VERSION, path, &status64));
    expect("__fxstatat", path, __fxstatat(VERSION, here, path, &status, 0));
    expect("__fxstatat64", path, __fxstatat64(VERSION, here, path, &status64, 0));
    expect("access", path, access(path, F_OK));
    expect("eaccess", path, eaccess(path, F_OK));
    expect("euidaccess", path, euidaccess(path, F_OK));
    expect("faccessat", path, faccessat(here, path, F_OK, 0));
    expect("listxattr", path, listxattr(path, NULL, 0));
    expect("llistxattr", path, llistxattr(path, NULL, 0));
    expect("getxattr", path, attribute(getxattr(path, "user.none", NULL, 0)));
    expect("lgetxattr", path, attribute(lgetxattr(path, "user.none", NULL, 0)));
}

static void list(const char *path)
{
    struct dirent **found;
    struct dirent64 **found64;

    expect("scandir", path, scandir(path, &found, NULL, alphasort));
    expect("scandir64", path, scandir64(path, &found64, NULL, alphasort64));
    expect("scandirat", path, scandirat(AT_FDCWD, path, &found, NULL, alphasort));
    expect("opendir", path, opendir(path) == NULL ? -1 : 0);
    expect("realpath", path, realpath(path, NULL) == NULL ? -1 : 0);
    expect("canonicalize_file_name", path, canonicalize_file_name(path) == NULL ? -1 : 0);
}

int main(void)
{
    char target[256];

    find("/dev/infiniband");
    find("/dev/infiniband/");
    find("/dev/infiniband/uverbs0");
    find("/dev/infiniband/rdma_cm");
    find("/sys/class/infiniband/mlx5_0/node_type");
    find("/sys/class/infiniband/mlx5_0/ports/1/gids/0");
    find("/sys/class/infiniband_verbs");
    find("/proc/self/maps");
    list("/dev/infiniband");
    list("/sys/class/infiniband");
    list("/sys/class/infiniband/mlx5_0/ports");
    list("/proc/self/task");
    expect("readlink", "device", readlink("/sys/class/infiniband/mlx5_0", target, sizeof(target)));
    expect("readlinkat", "device",
           readlinkat(AT_FDCWD, "/sys/class/infiniband/mlx5_0", target, sizeof(target)));
    if (access("/sys/class/infiniband/mlx5_9", F_OK) == 0 || access("/nowhere", F_OK) == 0) {
        puts("what does not exist is found");
        failed = 1;
    }
    puts(failed ? "failed" : "every function finds the devices");
    return failed;
}
