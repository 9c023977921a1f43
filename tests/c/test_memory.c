/* Memory that may be taken, on machines of all sizes: fi_platform.c with a /proc/meminfo and control groups of
 * the test's own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static int open_meminfo(const char *path);

#define open(path, flags) open_meminfo(path)
#define fopen(path, mode) ((void)(path), (FILE *)NULL)
#include "../../csrc/os/fi_platform.c"
#undef open
#undef fopen

static char meminfo[128];

static int open_meminfo(const char *path)
{
    int ends[2];
    CHECK(strcmp(path, "/proc/meminfo") == 0);
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], meminfo, strlen(meminfo)), (ssize_t)strlen(meminfo));
    close(ends[1]);
    return ends[0];
}

#define MIB (UINT64_C(1) << 20)

static uint64_t to_be_had(uint64_t total_mib, uint64_t available_mib)
{
    snprintf(meminfo, sizeof meminfo, "MemTotal: %" PRIu64 " kB\nMemAvailable: %" PRIu64 " kB\n",
             total_mib << 10, available_mib << 10);
    return fi_memory_available() / MIB;
}

/* 5 % stay free, but 256 MiB at least, or a quarter of a small machine, and 2 GiB at most. */
static void test_reserve(void)
{
    CHECK_EQ(to_be_had(400, 400), 300);
    CHECK_EQ(to_be_had(2000, 1000), 1000 - 256);
    CHECK_EQ(to_be_had(20000, 15000), 15000 - 1000);
    CHECK_EQ(to_be_had(2000000, 100000), 100000 - 2048);
    CHECK_EQ(to_be_had(2000000, 1000), 0);
}

int main(void)
{
    test_reserve();
    return 0;
}
