#define _GNU_SOURCE
#include "os/fi_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int fi_lock_set(int own, uint64_t byte, enum fi_lock kind)
{
    static const short types[] = {
        [FI_UNLOCKED] = F_UNLCK, [FI_SHARED] = F_RDLCK, [FI_EXCLUSIVE] = F_WRLCK};
    struct flock lock = {
        .l_type = types[kind], .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    while (fcntl(own, F_OFD_SETLK, &lock) != 0) {
        if (errno == EACCES)
            return EAGAIN;
        if (errno != EINTR)
            return errno;
    }
    return FI_OK;
}

int fi_lock_open(int fd, int *own)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *own = open(path, O_RDWR | O_CLOEXEC);
    if (*own < 0)
        return errno;
    int rc = fi_lock_set(*own, 0, FI_UNLOCKED);
    if (rc == FI_OK)
        return FI_OK;
    close(*own);
    *own = -1;
    return rc == EINVAL ? ENOSYS : rc; /* kernels before 3.15, and some that imitate one */
}
