/* fi_cache: a row is stored once, and read whole or not at all, whatever its file holds; space is used once and
 * counted; clearing while others store leaves no row of before. */
#define _GNU_SOURCE
#include "check.h"

#define fi_memory_available memory_of_the_test
#include "os/fi_cache.c"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static uint64_t available = UINT64_MAX;

uint64_t memory_of_the_test(void)
{
    return available;
}

enum { ROWS = 50, BYTES = 1000 };

typedef struct {
    fi_cache_entry head;
    unsigned char content[BYTES];
} entry;

static void begin(fi_cache *cache, uint64_t limit, bool has_sums)
{
    uint64_t start = fi_cache_start(ROWS);
    void *base;
    *cache = (fi_cache){.length = ROWS, .limit = limit, .has_sums = has_sums};
    FILE *file = tmpfile();
    CHECK(file != NULL);
    cache->fd = dup(fileno(file));
    fclose(file);
    CHECK(cache->fd >= 0 && ftruncate(cache->fd, (off_t)start) == 0);
    CHECK_EQ(fi_shm_map(cache->fd, 0, start, false, &base), FI_OK);
    cache->words = base;
    fi_cache_put(cache, FI_CACHE_END, start);
    fi_cache_put(cache, FI_CACHE_COMMITTED, start);
    fi_cache_put(cache, FI_CACHE_STAMP, 77);
}

static void end(fi_cache *cache)
{
    fi_cache_unmap(cache);
    CHECK_EQ(fi_shm_unmap((void *)cache->words, fi_cache_start(ROWS)), FI_OK);
    close(cache->fd);
}

static int store(fi_cache *cache, uint64_t row, uint64_t token, size_t bytes)
{
    entry made;
    memset(made.content, (int)row, sizeof made.content);
    uint64_t claim = fi_cache_claim_of(token, 5, row);
    CHECK_EQ(fi_cache_token(claim), token);
    CHECK_EQ(fi_cache_key(claim), 5);
    CHECK(!fi_cache_is_place(claim));
    if (!fi_cache_swap(cache, fi_cache_row(row), 0, claim))
        return FI_CACHE_NONE;
    made.head = (fi_cache_entry){.size = bytes, .signature = 11, .fields = bytes / 2};
    if (cache->has_sums)
        return fi_cache_store(cache, row, claim, &made.head, FI_CACHE_HEAD + bytes, NULL, 0);
    const fi_cache_part rest = {(char *)made.content + bytes / 3, FI_CACHE_HEAD + bytes / 3, bytes - bytes / 3};
    return fi_cache_store(cache, row, claim, &made.head, FI_CACHE_HEAD + bytes / 3, &rest, 1);
}

/* Whether a row was copied whole by the way without its head's check; false if it is empty, or was emptied. */
static bool copy_row(fi_cache *cache, uint64_t row)
{
    struct {
        fi_cache_entry head;
        unsigned char fields[FI_CACHE_PEEK - FI_CACHE_HEAD];
    } found;
    unsigned char content[BYTES];
    uint64_t word;
    if (!fi_cache_peek(cache, row, &word, &found.head) || found.head.size > BYTES)
        return false;
    uint64_t at = found.head.offset + FI_CACHE_HEAD;
    const char *view = fi_cache_view(cache, at, found.head.size);
    CHECK(view == NULL || !cache->has_sums);
    if (view != NULL)
        memcpy(content, view, found.head.size);
    else if (!fi_cache_copy(cache, at, content, found.head.size))
        return false;
    if (!fi_cache_has(cache, row, word))
        return false;
    for (uint64_t i = 0; i < found.head.size; i++)
        CHECK_EQ(content[i] + (i < found.head.fields ? found.fields[i] : row), 2 * row);
    return true;
}

static int try_row(fi_cache *cache, uint64_t row, uint64_t word)
{
    unsigned char content[BYTES];
    fi_cache_entry head;
    int rc = fi_cache_head(cache, row, word, &head);
    if (rc != FI_CACHE_FOUND || head.size > BYTES)
        return FI_CACHE_BAD;
    rc = fi_cache_read(cache, word, &head, content);
    for (uint64_t i = 0; rc == FI_CACHE_FOUND && i < head.size; i++)
        CHECK_EQ(content[i], row);
    return rc;
}

/* FI_CACHE_NONE if the row is empty, or was emptied meanwhile. A row that is found has its own content. */
static int read_row(fi_cache *cache, uint64_t row)
{
    uint64_t word = fi_cache_load(cache, fi_cache_row(row));
    int rc = fi_cache_is_place(word) ? try_row(cache, row, word) : FI_CACHE_NONE;
    return rc == FI_CACHE_BAD && fi_cache_load(cache, fi_cache_row(row)) != word ? FI_CACHE_NONE : rc;
}

static uint64_t used(const fi_cache *cache)
{
    return fi_cache_load(cache, FI_CACHE_END) - fi_cache_load(cache, FI_CACHE_BASE);
}

static void rows_and_limit(void)
{
    fi_cache cache;
    uint64_t start = fi_cache_start(ROWS), bytes = (FI_CACHE_HEAD + BYTES + 63) / 64 * 64;
    begin(&cache, start + 2 * bytes + FI_CACHE_HEAD, true);
    CHECK_EQ(read_row(&cache, 1), FI_CACHE_NONE);
    CHECK_EQ(store(&cache, 1, 9, BYTES), FI_CACHE_FOUND);
    CHECK_EQ(store(&cache, 1, 8, BYTES), FI_CACHE_NONE); /* it is there */
    CHECK_EQ(store(&cache, 2, 9, BYTES), FI_CACHE_FOUND);
    CHECK_EQ(used(&cache), start + 2 * bytes);
    CHECK_EQ(store(&cache, 3, 9, BYTES), FI_CACHE_REFUSED);
    CHECK_EQ(fi_cache_load(&cache, FI_CACHE_FULL), FI_CACHE_AT_LIMIT);
    CHECK(!fi_cache_has_room(&cache));
    CHECK_EQ(fi_cache_load(&cache, fi_cache_row(3)), 0); /* the claim is gone */
    CHECK_EQ(store(&cache, 4, 9, 0), FI_CACHE_FOUND);    /* an empty one fits */
    CHECK_EQ(read_row(&cache, 1) | read_row(&cache, 2) | read_row(&cache, 4), FI_CACHE_FOUND);
    fi_cache_clear(&cache);
    CHECK_EQ(read_row(&cache, 1), FI_CACHE_NONE);
    CHECK_EQ(used(&cache), start);
    CHECK_EQ(store(&cache, 3, 9, BYTES), FI_CACHE_FOUND);
    CHECK_EQ(read_row(&cache, 3), FI_CACHE_FOUND);
    CHECK_EQ(fi_cache_load(&cache, FI_CACHE_COMMITTED), used(&cache));
    end(&cache);
}

/* The machine's memory is looked at before each 16 MiB, and again a second after it was short. */
static void short_memory(void)
{
    fi_cache cache;
    begin(&cache, UINT64_MAX, false);
    cache.takes_memory = true;
    available = 1000;
    CHECK_EQ(store(&cache, 1, 1, BYTES), FI_CACHE_FOUND);
    fi_cache_put(&cache, FI_CACHE_END, LOOK_BYTES - FI_CACHE_HEAD);
    CHECK_EQ(store(&cache, 2, 1, BYTES), FI_CACHE_REFUSED);
    CHECK_EQ(fi_cache_load(&cache, FI_CACHE_FULL), FI_CACHE_NO_MEMORY);
    CHECK_EQ(fi_cache_load(&cache, fi_cache_row(2)), 0);
    CHECK(!fi_cache_has_room(&cache));
    CHECK_EQ(read_row(&cache, 1), FI_CACHE_FOUND);
    fi_cache_put(&cache, FI_CACHE_RETRY_NS, 0); /* the second is over */
    CHECK(fi_cache_has_room(&cache));
    CHECK_EQ(store(&cache, 2, 1, BYTES), FI_CACHE_REFUSED);
    available = UINT64_MAX;
    CHECK_EQ(store(&cache, 2, 1, BYTES), FI_CACHE_FOUND);
    CHECK_EQ(fi_cache_load(&cache, FI_CACHE_FULL), FI_CACHE_HAS_ROOM);
    end(&cache);
}

static void copies(bool has_sums)
{
    fi_cache cache;
    begin(&cache, UINT64_MAX, has_sums);
    for (uint64_t row = 0; row < ROWS; row++) { /* the view grows */
        CHECK(!copy_row(&cache, row));
        CHECK_EQ(store(&cache, row, 1, BYTES - row), FI_CACHE_FOUND);
        CHECK(copy_row(&cache, row));
        CHECK(copy_row(&cache, row / 2));
    }
    CHECK(fi_cache_view(&cache, UINT64_MAX - 5, 10) == NULL);
    CHECK(fi_cache_view(&cache, 0, UINT64_C(1) << 50) == NULL);
    CHECK_EQ((fi_cache_view(&cache, 64, 64) == NULL), has_sums);
    fi_cache_put(&cache, FI_CACHE_STAMP, 78);
    CHECK_EQ(copy_row(&cache, 5), !has_sums); /* it is to be checked first */
    CHECK_EQ(read_row(&cache, 5), FI_CACHE_FOUND);
    CHECK(copy_row(&cache, 5));
    fi_cache_clear(&cache);
    CHECK(!copy_row(&cache, 5));
    end(&cache);
}

/* Each byte of an entry in turn, in an opening that has not looked at it; and words of the index at random. */
static void damage(void)
{
    fi_cache cache;
    begin(&cache, UINT64_MAX, true);
    CHECK_EQ(store(&cache, 7, 1, BYTES), FI_CACHE_FOUND);
    uint64_t at = fi_cache_start(ROWS), word = fi_cache_load(&cache, fi_cache_row(7));
    for (uint64_t i = 0; i < FI_CACHE_HEAD + BYTES; i++) {
        unsigned char before, after;
        fi_cache_put(&cache, FI_CACHE_STAMP, 100 + i);
        CHECK_EQ(pread(cache.fd, &before, 1, (off_t)(at + i)), 1);
        after = before ^ 0x41;
        CHECK_EQ(pwrite(cache.fd, &after, 1, (off_t)(at + i)), 1);
        CHECK_EQ(read_row(&cache, 7), FI_CACHE_BAD);
        CHECK_EQ(pwrite(cache.fd, &before, 1, (off_t)(at + i)), 1);
        CHECK_EQ(read_row(&cache, 7), FI_CACHE_FOUND);
    }
    uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t other = random | UINT64_C(1) << 63;
        fi_cache_put(&cache, fi_cache_row(7), i % 2 ? other : (word & ~UINT64_C(255)) | (random >> 56));
        int rc = read_row(&cache, 7);
        CHECK(rc == FI_CACHE_BAD || fi_cache_load(&cache, fi_cache_row(7)) == word || i % 2);
    }
    fi_cache_put(&cache, fi_cache_row(7), word);
    for (off_t bytes = (off_t)(at + FI_CACHE_HEAD + BYTES - 1); bytes >= (off_t)at; bytes -= 31) {
        CHECK_EQ(ftruncate(cache.fd, bytes), 0);
        fi_cache_put(&cache, FI_CACHE_STAMP, 5000 + (uint64_t)bytes);
        CHECK_EQ(read_row(&cache, 7), FI_CACHE_BAD);
    }
    end(&cache);
}

static fi_cache shared;
static atomic_bool is_over;

static void *fill(void *token)
{
    while (!atomic_load(&is_over))
        for (uint64_t row = 0; row < ROWS; row++) {
            int rc = store(&shared, row, (uint64_t)(uintptr_t)token, BYTES);
            CHECK(rc == FI_CACHE_FOUND || rc == FI_CACHE_NONE);
            CHECK(read_row(&shared, row) != FI_CACHE_BAD);
            (void)copy_row(&shared, row);
        }
    return NULL;
}

static void clearing_beside_others(bool has_sums)
{
    pthread_t threads[3];
    begin(&shared, UINT64_MAX, has_sums);
    atomic_store(&is_over, false);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, fill, (void *)(i + 1)), 0);
    for (int i = 0; i < 300; i++) {
        usleep(200);
        fi_cache_clear(&shared);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (uint64_t row = 0; row < ROWS; row++)
        CHECK(read_row(&shared, row) != FI_CACHE_BAD);
    end(&shared);
}

int main(void)
{
    CHECK(fi_cache_start(UINT64_MAX) > (uint64_t)1 << 62); /* it does not wrap around */
    rows_and_limit();
    short_memory();
    copies(true);
    copies(false);
    damage();
    clearing_beside_others(true);
    clearing_beside_others(false);
    return 0;
}
