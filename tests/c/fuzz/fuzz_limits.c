/* Fuzz target: the small files of /proc and /sys that tell how much memory there is. */
#define _GNU_SOURCE
#include "../../../csrc/os/fi_platform.c"

#include "check.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"", "MemTotal:", "\ninactive_file ", "x"};
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_EQ(pwrite(fd, data, size, 0), (ssize_t)size);
    uint64_t number;
    for (size_t key = 0; key < sizeof keys / sizeof *keys; key++)
        (void)read_number(path, keys[key], &number);
    (void)file_cache(path, "");
    (void)file_cache(path, "total_");
    return 0;
}
