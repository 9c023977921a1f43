#define _GNU_SOURCE
#include "os/fi_cache.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fi_checksum.h"
#include "os/fi_platform.h"

#define PLACE_BITS (((uint64_t)1 << 40) - 1)
#define LOOK_BYTES ((uint64_t)16 << 20) /* of new entries, before free memory is looked at */
#define RETRY_NS 1000000000
#define MOST_REFUSALS 8
#define VIEW_BITS 24 /* of the smallest view */

uint64_t fi_cache_start(uint64_t length)
{
    return ((FI_CACHE_INDEX + 2 * (length >> 58 ? 1ULL << 58 : length)) * 8 + 4095) / 4096 * 4096;
}

static uint64_t offset_of(uint64_t place)
{
    return (place & PLACE_BITS) * FI_CACHE_HEAD;
}

bool fi_cache_has_room(fi_cache *cache)
{
    uint64_t full = fi_cache_load(cache, FI_CACHE_FULL);
    return full == FI_CACHE_HAS_ROOM ||
           (full != FI_CACHE_AT_LIMIT &&
            fi_now_ns() >= (int64_t)fi_cache_load(cache, FI_CACHE_RETRY_NS));
}

static int refuse(fi_cache *cache, enum fi_cache_full why)
{
    fi_cache_put(cache, FI_CACHE_RETRY_NS, (uint64_t)(fi_now_ns() + RETRY_NS));
    fi_cache_put(cache, FI_CACHE_FULL, why);
    return FI_CACHE_REFUSED;
}

/* A row larger than all others does not tell that the next ones have no room. */
static int refuse_for_limit(fi_cache *cache, uint64_t bytes)
{
    fi_cache_add(cache, FI_CACHE_REFUSALS, 1);
    if (bytes > fi_cache_load(cache, FI_CACHE_LARGEST) &&
        fi_cache_load(cache, FI_CACHE_REFUSALS) < MOST_REFUSALS)
        return FI_CACHE_REFUSED;
    return refuse(cache, FI_CACHE_AT_LIMIT);
}

static uint64_t bytes_of(const fi_cache_entry *entry)
{
    return (FI_CACHE_HEAD + entry->size + FI_CACHE_HEAD - 1) / FI_CACHE_HEAD * FI_CACHE_HEAD;
}

/* Space of `bytes`, which nobody else gets. */
static int reserve(fi_cache *cache, uint64_t bytes, uint64_t *offset)
{
    uint64_t end = fi_cache_load(cache, FI_CACHE_END);
    for (;;) {
        uint64_t used = end - fi_cache_load(cache, FI_CACHE_BASE);
        if (end % FI_CACHE_HEAD != 0 || end / FI_CACHE_HEAD + bytes > PLACE_BITS ||
            used > cache->limit || bytes > cache->limit - used)
            return refuse_for_limit(cache, bytes);
        if (cache->takes_memory && end / LOOK_BYTES != (end + bytes) / LOOK_BYTES &&
            fi_memory_available() < bytes + LOOK_BYTES)
            return refuse(cache, FI_CACHE_NO_MEMORY);
        if (atomic_compare_exchange_weak_explicit(cache->words + FI_CACHE_END, &end, end + bytes,
                                                  memory_order_acq_rel, memory_order_acquire))
            break;
    }
    *offset = end;
    return FI_CACHE_FOUND;
}

/* Writes bytes into the file, or reads them from it. */
static bool move_all(int fd, char *bytes, uint64_t size, uint64_t offset, bool writes)
{
    while (size > 0) {
        ssize_t done = writes ? pwrite(fd, bytes, size, (off_t)offset)
                              : pread(fd, bytes, size, (off_t)offset);
        if (done == 0 || (done < 0 && errno != EINTR))
            return false;
        if (done > 0) {
            bytes += done;
            size -= (uint64_t)done;
            offset += (uint64_t)done;
        }
    }
    return true;
}

bool fi_cache_copy(const fi_cache *cache, uint64_t offset, void *into, uint64_t bytes)
{
    return move_all(cache->fd, into, bytes, offset, false);
}

/* An entry beyond the end of a file that was cut fills the gap with zeros, where entries were that
 * count as checked. With a new stamp all are checked again. */
static void notice_cut(fi_cache *cache)
{
    uint64_t written = fi_cache_load(cache, FI_CACHE_WRITTEN), stamp;
    struct stat status;
    if (!cache->has_sums || fstat(cache->fd, &status) != 0 || (uint64_t)status.st_size >= written ||
        !fi_cache_swap(cache, FI_CACHE_WRITTEN, written, 0))
        return;
    stamp = fi_cache_load(cache, FI_CACHE_STAMP);
    fi_cache_put(cache, FI_CACHE_STAMP, (stamp + written) * 0x9e3779b97f4a7c15u | 1);
}

static uint64_t sum_of(const fi_cache_entry *head, const void *content)
{
    uint64_t sum = fi_checksum(&head->row, sizeof *head - sizeof head->sum, 1);
    return fi_checksum(content, head->size, sum);
}

int fi_cache_store(fi_cache *cache, uint64_t row, uint64_t claim, fi_cache_entry *entry,
                   uint64_t begun, const fi_cache_part *parts, int n)
{
    uint64_t word = fi_cache_row(row), offset = 0;
    uint64_t bytes = bytes_of(entry);
    int rc = reserve(cache, bytes, &offset);
    if (rc != FI_CACHE_FOUND) {
        (void)fi_cache_swap(cache, word, claim, 0);
        return rc;
    }
    notice_cut(cache);
    entry->sum = entry->zeros[0] = entry->zeros[1] = 0;
    entry->row = row;
    entry->offset = offset;
    if (cache->has_sums)
        entry->sum = sum_of(entry, entry + 1);
    bool is_written = move_all(cache->fd, (char *)entry, begun, offset, true);
    for (int i = 0; is_written && i < n; i++)
        is_written = move_all(cache->fd, (char *)(uintptr_t)parts[i].bytes, parts[i].size,
                              offset + parts[i].offset, true);
    if (is_written) {
        /* Any storer of this opening writes the same stamp. */
        fi_cache_put(cache, word + 1, fi_cache_load(cache, FI_CACHE_STAMP));
        if (fi_cache_swap(cache, word, claim, FI_CACHE_PLACE | offset / FI_CACHE_HEAD)) {
            fi_cache_add(cache, FI_CACHE_COMMITTED, bytes);
            fi_raise_to(cache->words + FI_CACHE_LARGEST, bytes);
            fi_raise_to(cache->words + FI_CACHE_WRITTEN, offset + FI_CACHE_HEAD + entry->size);
            fi_cache_put(cache, FI_CACHE_REFUSALS, 0);
            if (fi_cache_load(cache, FI_CACHE_FULL) > FI_CACHE_AT_LIMIT)
                fi_cache_put(cache, FI_CACHE_FULL, FI_CACHE_HAS_ROOM);
            return FI_CACHE_FOUND;
        }
    }
    fi_shm_decommit(cache->fd, offset, bytes);
    if (is_written) { /* the cache was cleared, which has counted out the space before its end */
        if (offset >= fi_cache_load(cache, FI_CACHE_CLEARED))
            fi_cache_add(cache, FI_CACHE_BASE, bytes);
        return FI_CACHE_NONE;
    }
    /* The space counts no more; unless the cache was cleared before, which has counted it out. */
    fi_cache_add(cache, FI_CACHE_BASE, bytes);
    if (!fi_cache_swap(cache, word, claim, 0))
        fi_cache_add(cache, FI_CACHE_BASE, -bytes);
    return refuse(cache, FI_CACHE_NO_SPACE);
}

int fi_cache_head(const fi_cache *cache, uint64_t row, uint64_t word, fi_cache_entry *head)
{
    uint64_t offset = offset_of(word);
    struct stat status;
    if (offset < fi_cache_start(cache->length) ||
        !fi_cache_copy(cache, offset, head, sizeof *head) || head->row != row ||
        head->offset != offset || head->fields > head->size || fstat(cache->fd, &status) != 0 ||
        (uint64_t)status.st_size < offset || /* it was cut meanwhile */
        head->size > (uint64_t)status.st_size - offset)
        return FI_CACHE_BAD;
    return FI_CACHE_FOUND;
}

bool fi_cache_is_checked(const fi_cache *cache, uint64_t row, uint64_t word)
{
    if (!cache->has_sums)
        return true;
    if (cache->checked != NULL) /* relaxed: it tells of bytes in the file, not in memory */
        return atomic_load_explicit(cache->checked + row, memory_order_relaxed) == word;
    return fi_cache_load(cache, fi_cache_row(row) + 1) == fi_cache_load(cache, FI_CACHE_STAMP);
}

static void note_checked(fi_cache *cache, uint64_t row, uint64_t word, uint64_t stamp)
{
    if (cache->checked != NULL)
        atomic_store_explicit(cache->checked + row, word, memory_order_relaxed);
    else
        fi_cache_put(cache, fi_cache_row(row) + 1, stamp);
}

int fi_cache_read(fi_cache *cache, uint64_t word, const fi_cache_entry *head, void *content)
{
    uint64_t stamp = fi_cache_load(cache, FI_CACHE_STAMP);
    bool is_checked = fi_cache_is_checked(cache, head->row, word);
    bool is_whole = fi_cache_copy(cache, head->offset + FI_CACHE_HEAD, content, head->size);
    if (is_whole && !is_checked) {
        is_whole = head->sum == sum_of(head, content);
        if (is_whole)
            note_checked(cache, head->row, word, stamp);
    }
    if (!fi_cache_has(cache, head->row, word))
        return FI_CACHE_NONE;
    return is_whole ? FI_CACHE_FOUND : FI_CACHE_BAD;
}

bool fi_cache_has(const fi_cache *cache, uint64_t row, uint64_t word)
{
    atomic_thread_fence(memory_order_acquire); /* after what was read */
    return fi_cache_load(cache, fi_cache_row(row)) == word; /* emptied before pages are given back */
}

void fi_cache_drop(fi_cache *cache, uint64_t row, uint64_t word)
{
    fi_cache_entry head;
    bool has_head = fi_cache_head(cache, row, word, &head) == FI_CACHE_FOUND;
    if (!fi_cache_is_place(word) || !fi_cache_swap(cache, fi_cache_row(row), word, 0))
        return;
    fi_cache_add(cache, FI_CACHE_DAMAGED, 1);
    if (has_head) /* its space holds no row any more */
        fi_cache_add(cache, FI_CACHE_COMMITTED, -bytes_of(&head));
}

void fi_cache_unmap(fi_cache *cache)
{
    for (int i = 0; i < FI_CACHE_VIEWS; i++) {
        char *view = atomic_exchange_explicit(cache->views + i, NULL, memory_order_relaxed);
        if (view != NULL)
            (void)munmap(view, (size_t)1 << i);
    }
}

/* A view reaches beyond the end of the file, for what is written later, so that few are made. */
const char *fi_cache_map(fi_cache *cache, uint64_t offset, uint64_t bytes)
{
    uint64_t end = offset + bytes;
    struct stat status;
    int i = VIEW_BITS;
    if (end < offset || end >> (FI_CACHE_VIEWS - 1) != 0)
        return NULL;
    if (end > atomic_load_explicit(&cache->seen, memory_order_relaxed)) {
        if (fstat(cache->fd, &status) != 0 || end > (uint64_t)status.st_size)
            return NULL;
        atomic_store_explicit(&cache->seen, (uint64_t)status.st_size, memory_order_relaxed);
    }
    while (end >> i != 0)
        i++;
    /* Relaxed: what lies there is ordered by the row's word. */
    char *view = atomic_load_explicit(cache->views + i, memory_order_relaxed), *known = NULL;
    if (view == NULL) {
        view = mmap(NULL, (size_t)1 << i, PROT_READ, MAP_SHARED, cache->fd, 0);
        if (view == MAP_FAILED)
            return NULL;
        if (!atomic_compare_exchange_strong_explicit(cache->views + i, &known, view,
                                                     memory_order_relaxed, memory_order_relaxed)) {
            (void)munmap(view, (size_t)1 << i); /* another thread was faster */
            view = known;
        }
    }
    return view + offset;
}

const char *fi_cache_view(fi_cache *cache, uint64_t offset, uint64_t bytes)
{
    return cache->has_sums ? NULL : fi_cache_map(cache, offset, bytes);
}

bool fi_cache_peek(fi_cache *cache, uint64_t row, uint64_t *word, fi_cache_entry *head)
{
    *word = fi_cache_load(cache, fi_cache_row(row));
    if (!fi_cache_is_place(*word) || !fi_cache_is_checked(cache, row, *word))
        return false;
    uint64_t offset = offset_of(*word);
    const char *view = fi_cache_view(cache, offset, FI_CACHE_HEAD);
    if (view != NULL)
        *head = *(const fi_cache_entry *)view;
    else if (!fi_cache_copy(cache, offset, head, sizeof *head))
        return false;
    if (head->signature == 0 || head->row != row || head->offset != offset ||
        head->fields > FI_CACHE_PEEK - FI_CACHE_HEAD)
        return false;
    view = fi_cache_view(cache, offset + FI_CACHE_HEAD, head->fields);
    if (view == NULL)
        return fi_cache_copy(cache, offset + FI_CACHE_HEAD, head + 1, head->fields);
    memcpy(head + 1, view, head->fields);
    return true;
}

/* Whoever has space before this end made its claim before, and loses it now; what lies behind stays. */
void fi_cache_clear(fi_cache *cache)
{
    uint64_t committed = fi_cache_load(cache, FI_CACHE_COMMITTED);
    uint64_t start = fi_cache_start(cache->length), end = fi_cache_load(cache, FI_CACHE_END);
    fi_cache_put(cache, FI_CACHE_CLEARED, end);
    for (uint64_t row = 0; row < cache->length; row++) {
        uint64_t at = fi_cache_row(row), word = fi_cache_load(cache, at);
        while (word != 0 && (!fi_cache_is_place(word) || offset_of(word) < end) &&
               !fi_cache_swap(cache, at, word, 0)) /* claims too: what they store is lost */
            word = fi_cache_load(cache, at);
    }
    fi_shm_decommit(cache->fd, start, end - start);
    fi_cache_put(cache, FI_CACHE_BASE, end - start);
    fi_cache_add(cache, FI_CACHE_COMMITTED, start - committed); /* others store meanwhile */
    fi_cache_put(cache, FI_CACHE_FULL, FI_CACHE_HAS_ROOM);
}
