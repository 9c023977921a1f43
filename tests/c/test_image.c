/* fi_image: private mappings of written memory, and its end beside the caller. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/fi_image.h"
#include "os/fi_platform.h"

#define MIB (UINT64_C(1) << 20)

static int open_image(uint64_t bytes)
{
    uint64_t need, have;
    int fd;
    CHECK_EQ(fi_image_open(bytes, &fd, &need, &have), FI_OK);
    CHECK(need == bytes && have >= bytes);
    return fd;
}

static void write_at(int fd, uint64_t offset, char byte)
{
    CHECK_EQ(pwrite(fd, &byte, 1, (off_t)offset), 1);
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0 || errno != EBADF;
}

static void test_readers_write_for_themselves(void)
{
    int fd = open_image(MIB);
    void *first, *second;
    char seen;
    write_at(fd, MIB - 1, 7);
    CHECK_EQ(fi_shm_map(fd, 0, MIB, true, &first), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, MIB, true, &second), FI_OK);
    CHECK_EQ(((char *)first)[MIB - 1], 7);
    ((char *)first)[MIB - 1] = 8;
    CHECK_EQ(((char *)second)[MIB - 1], 7);
    CHECK_EQ(pread(fd, &seen, 1, (off_t)MIB - 1), 1);
    CHECK_EQ(seen, 7);
    fi_image_close(fd, MIB);
    CHECK(!is_open(fd));
    CHECK_EQ(((char *)second)[MIB - 1], 7);
    CHECK_EQ(munmap(first, MIB), 0);
    CHECK_EQ(munmap(second, MIB), 0);
    CHECK_EQ(fi_shm_map(-1, 0, MIB, true, &first), EBADF);
}

static void test_no_page_before_the_writing(void)
{
    struct stat status;
    int fd = open_image(256 * MIB);
    CHECK_EQ(fstat(fd, &status), 0);
    CHECK_EQ(status.st_blocks, 0);
    CHECK_EQ(status.st_size, 256 * MIB);
    fi_image_close(fd, 256 * MIB);
    fi_image_settle();
}

static void test_what_cannot_fit_is_refused(void)
{
    uint64_t need, have;
    int fd;
    CHECK_EQ(fi_image_open(UINT64_C(1) << 45, &fd, &need, &have), FI_E_MEMORY);
    CHECK(fd == -1 && need == UINT64_C(1) << 45 && have < need);
}

/* Mappings of images in a process; where there is no /proc, none are seen. */
static int mappings(pid_t pid)
{
    char path[64], line[4096];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, "/memfd:fastiter") || strstr(line, "/dev/shm/fastiter-");
    if (file)
        fclose(file);
    return count;
}

static void fill(int fd, uint64_t bytes)
{
    char *piece = malloc(MIB);
    CHECK(piece != NULL);
    memset(piece, 1, MIB);
    for (uint64_t offset = 0; offset < bytes; offset += MIB)
        CHECK_EQ(pwrite(fd, piece, MIB, (off_t)offset), (ssize_t)MIB);
    free(piece);
}

static void test_much_memory_ends_beside_the_caller(void)
{
    enum { BYTES = 256 << 20 };
    int fd = open_image(BYTES);
    fill(fd, BYTES);
    fi_image_close(fd, BYTES);
    CHECK(!is_open(fd));
    /* A child that is forked now must neither hold the memory nor wait for a thread it has not. */
    int ends[2], life[2];
    char byte;
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(pipe(life), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fi_image_settle();
        close(life[1]);
        CHECK_EQ(write(ends[1], "", 1), 1);
        _exit((int)read(life[0], &byte, 1)); /* until the test ends, however it does */
    }
    CHECK_EQ(read(ends[0], &byte, 1), 1);
    CHECK_EQ(mappings(child), 0);
    fi_image_settle();
    CHECK_EQ(mappings(getpid()), 0);
    close(life[1]);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    close(life[0]);
    close(ends[0]);
    close(ends[1]);
}

static void test_no_address_space_for_the_thread(void)
{
    int fd = open_image(128 * MIB);
    struct rlimit before, little = {0};
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    little = before;
    little.rlim_cur = 1;
    CHECK_EQ(setrlimit(RLIMIT_AS, &little), 0);
    fi_image_close(fd, 128 * MIB);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    CHECK(!is_open(fd));
    fi_image_settle();
}

int main(void)
{
    test_readers_write_for_themselves();
    test_no_page_before_the_writing();
    test_what_cannot_fit_is_refused();
    test_much_memory_ends_beside_the_caller();
    test_no_address_space_for_the_thread();
    return 0;
}
