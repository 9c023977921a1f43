/* Mappings of slots, and memory that goes back when the ring ends before its leases. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/fi_platform.h"
#include "ring/fi_window.h"

enum { SLOTS = 6, ROWS = 2048 };
#define MIB (UINT64_C(1) << 20)
#define SLOT_BYTES (UINT64_C(1) << 40)

#if defined(__linux__) && !defined(FI_PORTABLE)
#define GIVES_BACK 1
#else
#define GIVES_BACK 0
#endif

typedef struct fixture {
    fi_ring ring;
    uint64_t control;
    int look; /* another descriptor of the file, which the end of the ring does not close */
} fixture;

static void set_up(fixture *f)
{
    fi_geometry geometry = {SLOTS, 2, ROWS, 2, SLOT_BYTES};
    uint64_t total;
    int fd;
    void *base;
    CHECK_EQ(fi_ring_size(&geometry, &f->control, &total), FI_OK);
    CHECK_EQ(fi_shm_open(total, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, f->control, false, &base), FI_OK);
    CHECK_EQ(fi_ring_attach(&f->ring, &geometry, base, fd, -1), FI_OK);
    f->look = dup(fd);
    CHECK(f->look >= 0);
}

static void tear_down(fixture *f)
{
    fi_ring_detach(&f->ring);
    CHECK_EQ(fi_shm_unmap(f->ring.base, f->control), FI_OK);
    close(f->ring.fd);
    close(f->look);
}

static uint64_t mib_allocated(const fixture *f)
{
    return (fi_shm_allocated(f->look) + MIB / 2) / MIB;
}

/* Fills the first bytes of a slot, as workers do. */
static void fill(fixture *f, uint32_t slot, uint64_t bytes)
{
    uint64_t need = 0, have = 0;
    CHECK_EQ(fi_slot_commit(&f->ring, slot, 0, bytes, &need, &have), FI_OK);
    CHECK_EQ(fi_slot_reach(&f->ring, slot, bytes), FI_OK);
    memset(fi_slot_payload(&f->ring, slot), (int)slot + 1, bytes);
}

static bool is_intact(const fixture *f, uint32_t slot, uint64_t bytes)
{
    const char *payload = fi_slot_payload(&f->ring, slot);
    for (uint64_t i = 0; i < bytes; i += 64)
        if (payload[i] != (char)(slot + 1))
            return false;
    return true;
}

static void let_go(fixture *f, uint32_t slot, bool is_shared)
{
    if (fi_slot_let_go(&f->ring, slot, is_shared))
        fi_slot_free(&f->ring, slot);
}

/* A slot that grows is mapped anew; what points into its former mapping stays good. */
static void test_growth(void)
{
    fixture f;
    uint64_t offset;
    set_up(&f);
    CHECK(fi_slot_payload(&f.ring, 1) == NULL);
    CHECK_EQ(fi_slot_reach(&f.ring, 1, 1), FI_OK);
    CHECK_EQ(f.ring.windows[1].bytes, FI_LEAST_WINDOW);
    char *former = fi_slot_payload(&f.ring, 1);
    CHECK_EQ(fi_slot_reach(&f.ring, 1, FI_LEAST_WINDOW), FI_OK);
    CHECK(fi_slot_payload(&f.ring, 1) == former);
    CHECK_EQ(fi_slot_reach(&f.ring, 1, 5 * MIB), FI_OK);
    char *later = fi_slot_payload(&f.ring, 1);
    CHECK(later != former && f.ring.windows[1].bytes == 8 * MIB);
    former[100] = 3;
    later[101] = 4;
    CHECK(later[100] == 3 && former[101] == 4);
    CHECK(fi_slot_offset(&f.ring, 1, former + 100, &offset) && offset == 100);
    CHECK(fi_slot_offset(&f.ring, 1, later + 5 * MIB, &offset) && offset == 5 * MIB);
    CHECK(!fi_slot_offset(&f.ring, 1, &f, &offset) && !fi_slot_offset(&f.ring, 0, later, &offset));
    CHECK_EQ(fi_slot_reach(&f.ring, 2, 1), FI_OK);
    CHECK_EQ(fi_slot_payload(&f.ring, 2)[100], 0); /* another slot, another place in the file */
    fi_slot_unmap_smaller(&f.ring, 1);
    CHECK(!fi_slot_offset(&f.ring, 1, former + 100, &offset) || former == later);
    CHECK_EQ(later[100], 3);
    CHECK_EQ(fi_slot_reach(&f.ring, 0, SLOT_BYTES + 1), FI_E_RANGE);
    CHECK_EQ(fi_slot_reach(&f.ring, 0, SLOT_BYTES), FI_OK);
    CHECK_EQ(f.ring.windows[0].bytes, SLOT_BYTES);
    fi_slot_unmap(&f.ring, 1);
    CHECK(fi_slot_payload(&f.ring, 1) == NULL);
    CHECK_EQ(fi_slot_reach(&f.ring, 1, 1), FI_OK);
    CHECK_EQ(fi_slot_payload(&f.ring, 1)[100], 3);
    tear_down(&f);
}

/* Numbers of pages in shared memory are believed as far as the file has any. */
static void test_overwritten_size(void)
{
    fixture f;
    uint64_t bytes;
    set_up(&f);
    fill(&f, 0, 2 * MIB);
    fi_slot_unmap(&f.ring, 0);
    CHECK_EQ(fi_slot_reach_all(&f.ring, 0, &bytes), FI_OK);
    CHECK(bytes == 2 * MIB && f.ring.windows[0].bytes == 2 * MIB);
    fi_store_relaxed(&f.ring.slots[0].committed, UINT64_MAX);
    CHECK_EQ(fi_slot_reach_all(&f.ring, 0, &bytes), FI_E_CORRUPT);
    CHECK_EQ(f.ring.windows[0].bytes, 2 * MIB);
    tear_down(&f);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which need their own */
static void use_little_space(void)
{
    fixture f;
    uint64_t need = 0, have = 0, offset;
    set_up(&f);
    fill(&f, 0, 1000);
    fi_store_relaxed(&f.ring.slots[0].heap, fi_heap_word(0));
    const struct rlimit none = {0, 0};
    CHECK_EQ(setrlimit(RLIMIT_AS, &none), 0);
    CHECK_EQ(fi_slot_reach(&f.ring, 0, 3 * MIB), FI_E_SPACE);
    CHECK_EQ(fi_heap_take(&f.ring, 0, 3 * MIB, &offset, &need, &have), FI_E_SPACE);
    CHECK(need == 3 * MIB && fi_slot_used(&f.ring, 0) == 0);
    CHECK_EQ(fi_heap_take(&f.ring, 0, 1000, &offset, &need, &have), FI_OK); /* what fits goes on */
    CHECK_EQ(f.ring.windows[0].bytes, FI_LEAST_WINDOW);
}

static void test_no_address_space(void)
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        use_little_space();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}
#else
static void test_no_address_space(void)
{
}
#endif

/* At the end the ring gives back what no lease holds, then each lease its slot, in any order. */
static void test_close(void)
{
    fixture f;
    set_up(&f);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        fill(&f, slot, 4 * MIB);
    memset(f.ring.words, 1, SLOTS * ROWS * sizeof *f.ring.words);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        fi_entry_set(&f.ring, slot, 5, slot, 10);
    uint64_t before = mib_allocated(&f);
    CHECK(before >= 4 * SLOTS || !GIVES_BACK);
    fi_slot_hold(&f.ring, 1);
    f.ring.windows[1].used = 2 * MIB - 5000;
    fi_slot_hold(&f.ring, 3); /* uses all of it */
    fi_slot_hold(&f.ring, 4);
    let_go(&f, 4, false); /* goes on being the ring's */
    CHECK(is_intact(&f, 4, 4 * MIB));
    fi_ring_close(&f.ring, false);
    close(f.ring.fd);
    f.ring.fd = -1;
    CHECK(is_intact(&f, 1, 2 * MIB - 5000) && is_intact(&f, 3, 4 * MIB));
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        CHECK((fi_slot_payload(&f.ring, slot) != NULL) == (slot == 1 || slot == 3));
    uint64_t offset, bytes;
    fi_entry_get(&f.ring, 3, 5, &offset, &bytes);
    CHECK(offset == 3 && bytes == 10);
    CHECK_EQ(fi_slot_reach(&f.ring, 0, 1), EBADF);
    if (GIVES_BACK) {
        CHECK_EQ(mib_allocated(&f), 6);
        CHECK(fi_load_relaxed(fi_row_word(&f.ring, 2, ROWS / 2)) == 0);
    }
    let_go(&f, 3, false);
    CHECK(fi_slot_payload(&f.ring, 3) == NULL && is_intact(&f, 1, 2 * MIB - 5000));
    CHECK(mib_allocated(&f) == 2 || !GIVES_BACK);
    let_go(&f, 1, false);
    CHECK(mib_allocated(&f) == 0 || !GIVES_BACK);
    f.ring.fd = dup(f.look);
    tear_down(&f);
}

/* A slot that a forked child may have views of keeps its bytes, whenever the lease has ended. */
static void test_close_with_shared(void)
{
    fixture f;
    set_up(&f);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        fill(&f, slot, MIB);
        fi_slot_hold(&f.ring, slot);
    }
    let_go(&f, 0, true);
    let_go(&f, 1, false);
    fi_ring_close(&f.ring, false);
    let_go(&f, 2, true);
    let_go(&f, 3, false);
    for (uint32_t slot = 0; slot < 4; slot++)
        CHECK(fi_slot_payload(&f.ring, slot) == NULL);
    for (uint32_t slot = 0; slot < 4; slot++) {
        CHECK_EQ(fi_slot_reach(&f.ring, slot, MIB), FI_OK); /* the child's view */
        CHECK(is_intact(&f, slot, MIB) == (slot % 2 == 0) || !GIVES_BACK);
    }
    tear_down(&f);
}

/* Where something else refers to the pages of held slots, these stay mapped until the end. */
static void test_close_with_registered(void)
{
    fixture f;
    set_up(&f);
    fill(&f, 0, MIB);
    fill(&f, 1, MIB);
    fi_slot_hold(&f.ring, 1);
    f.ring.windows[1].used = 1;
    fi_ring_close(&f.ring, true);
    CHECK(fi_slot_payload(&f.ring, 0) == NULL);
    let_go(&f, 1, false);
    CHECK(is_intact(&f, 1, MIB));
    tear_down(&f);
}

static void test_hidden_and_forgotten(void)
{
    fixture f;
    set_up(&f);
    fill(&f, 0, MIB);
    fill(&f, 0, 3 * MIB);
    char *later = fi_slot_payload(&f.ring, 0);
    CHECK_EQ(fi_ring_inherit(&f.ring, f.control, false), FI_OK);
    fill(&f, 1, MIB);
    CHECK(f.ring.is_hidden);
    CHECK_EQ(fi_ring_inherit(&f.ring, f.control, true), FI_OK);
    CHECK_EQ(fi_ring_forget(&f.ring, f.control), FI_OK);
    CHECK(later[0] == 0 && fi_slot_payload(&f.ring, 1)[0] == 0);
    later[0] = 9;
    CHECK(mib_allocated(&f) >= 4 || !GIVES_BACK); /* the others' memory stays */
    tear_down(&f);
}

/* Leases end in other threads while the ring does. */
static void *end_leases(void *argument)
{
    fixture *f = argument;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        let_go(f, slot, slot == 2);
    return NULL;
}

static void test_close_beside_leases(void)
{
    for (uint32_t round = 0; round < 200; round++) {
        fixture f;
        pthread_t threads[2];
        set_up(&f);
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            fill(&f, slot, FI_PAGE);
            fi_slot_hold(&f.ring, slot);
            fi_slot_hold(&f.ring, slot);
        }
        for (int i = 0; i < 2; i++)
            CHECK_EQ(pthread_create(threads + i, NULL, end_leases, &f), 0);
        fi_ring_close(&f.ring, false);
        for (int i = 0; i < 2; i++)
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            CHECK(fi_slot_payload(&f.ring, slot) == NULL);
        CHECK_EQ(fi_slot_reach(&f.ring, 2, FI_PAGE), FI_OK);
        CHECK(is_intact(&f, 2, FI_PAGE));
        tear_down(&f);
    }
}

int main(void)
{
    test_growth();
    test_overwritten_size();
    test_no_address_space();
    test_close();
    test_close_with_shared();
    test_close_with_registered();
    test_hidden_and_forgotten();
    test_close_beside_leases();
    return 0;
}
