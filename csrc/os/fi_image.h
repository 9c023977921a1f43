/* Memory that is written once and then read by many processes: the images of objects.
 *
 * An image is anonymous shared memory (fi_shm_open). Readers map it privately (fi_shm_map), so that what they
 * write is theirs alone, page by page. It lives as long as a descriptor or a mapping of it.
 */
#ifndef FI_IMAGE_H
#define FI_IMAGE_H

#include "base/fi_base.h"

/* Opens memory for an image. Its pages come with the writing; whether there is room for all of
 * them is checked here, because the kernel answers a lack later by killing a process.
 * FI_E_MEMORY: refused by that check, with need and have in the results. */
int fi_image_open(uint64_t bytes, int *fd, uint64_t *need, uint64_t *have);

/* Closes a descriptor of an image of `bytes`. If it was the last, the kernel frees the pages, some
 * 80 ms for each GB: that happens in a thread of its own, where `bytes` are many. The descriptor
 * itself is closed on return, and children forked meanwhile hold nothing. */
void fi_image_close(int fd, uint64_t bytes);

/* Waits until all that was closed so far is free. */
void fi_image_settle(void);

#endif
