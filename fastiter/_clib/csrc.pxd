# All of csrc, as modules cimport it. What lies in its larger folders is declared in a file for each.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastiter._clib.csrc_batch cimport *
from fastiter._clib.csrc_order cimport *
from fastiter._clib.csrc_ring cimport *


cdef extern from "base/fi_isa.h" nogil:
    int fi_isa()


cdef extern from "base/fi_base.h" nogil:
    enum:
        FI_OK
        FI_E_MEMORY
        FI_E_FULL
        FI_E_RANGE
        FI_E_CORRUPT
        FI_E_BUSY
        FI_E_SPACE
        FI_PAGE
        FI_MOST_NDIM
    const uint64_t FI_MOST_BYTES
    uint64_t fi_align_up(uint64_t value, uint64_t alignment)


cdef extern from "base/fi_checksum.h" nogil:
    uint64_t fi_checksum(const void *bytes, size_t count, uint64_t seed)
    uint64_t fi_place_seed(uint64_t q, uint32_t row, uint32_t kind)


cdef extern from "os/fi_process.h" nogil:
    int fi_process_id()
    bint fi_run_fork_handlers()
    void fi_fork_for_handlers()
    uint64_t fi_library_changes()


cdef extern from "os/fi_thread.h" nogil:
    bint fi_can_start_threads(size_t count)


cdef extern from "os/fi_locks.h" nogil:
    enum fi_lock:
        FI_UNLOCKED
        FI_SHARED
        FI_EXCLUSIVE
    int fi_lock_open(int fd, int *own)
    int fi_lock_set(int own, uint64_t byte, fi_lock kind)


cdef extern from "os/fi_cache.h" nogil:
    enum:
        FI_CACHE_TOKENS
        FI_CACHE_HEAD
        FI_CACHE_PEEK
        FI_CACHE_END
        FI_CACHE_BASE
        FI_CACHE_STAMP
        FI_CACHE_HITS
        FI_CACHE_STORED
        FI_CACHE_FAILED
        FI_CACHE_UNCACHED
        FI_CACHE_FETCH_NS
        FI_CACHE_COMMITTED
        FI_CACHE_FULL
        FI_CACHE_TOLD
        FI_CACHE_KEYS
        FI_CACHE_INDEX
        FI_CACHE_FOUND
        FI_CACHE_BAD
    ctypedef uint64_t atomic_word "_Atomic uint64_t"
    ctypedef struct fi_cache_entry:
        uint64_t row, offset, size, signature, fields
    ctypedef struct fi_cache_part:
        const char *bytes
        uint64_t offset, size
    ctypedef struct fi_cache:
        int fd
        atomic_word *words
        uint64_t length, limit
        bint takes_memory, has_sums
        atomic_word *checked
    uint64_t fi_cache_start(uint64_t length)
    uint64_t fi_cache_load(const fi_cache *cache, uint64_t word)
    void fi_cache_put(fi_cache *cache, uint64_t word, uint64_t value)
    void fi_cache_add(fi_cache *cache, uint64_t word, uint64_t value)
    bint fi_cache_swap(fi_cache *cache, uint64_t word, uint64_t before, uint64_t to)
    uint64_t fi_cache_row(uint64_t row)
    bint fi_cache_is_place(uint64_t word)
    uint64_t fi_cache_claim_of(uint64_t token, uint64_t key, uint64_t number)
    uint64_t fi_cache_token(uint64_t claim)
    uint64_t fi_cache_key(uint64_t claim)
    bint fi_cache_has_room(fi_cache *cache)
    int fi_cache_store(fi_cache *cache, uint64_t row, uint64_t claim, fi_cache_entry *entry,
                       uint64_t begun, const fi_cache_part *parts, int n)
    bint fi_cache_is_checked(const fi_cache *cache, uint64_t row, uint64_t word)
    int fi_cache_head(const fi_cache *cache, uint64_t row, uint64_t word, fi_cache_entry *head)
    int fi_cache_read(fi_cache *cache, uint64_t word, const fi_cache_entry *head, void *content)
    bint fi_cache_peek(fi_cache *cache, uint64_t row, uint64_t *word, fi_cache_entry *head)
    void fi_cache_drop(fi_cache *cache, uint64_t row, uint64_t word)
    bint fi_cache_copy(const fi_cache *cache, uint64_t offset, void *into, uint64_t bytes)
    const char *fi_cache_map(fi_cache *cache, uint64_t offset, uint64_t bytes)
    const char *fi_cache_view(fi_cache *cache, uint64_t offset, uint64_t bytes)
    bint fi_cache_has(const fi_cache *cache, uint64_t row, uint64_t word)
    void fi_cache_unmap(fi_cache *cache)
    void fi_cache_clear(fi_cache *cache)


cdef extern from "os/fi_platform.h" nogil:
    int fi_shm_open(uint64_t bytes, int *fd)
    int fi_shm_allocate(int fd, uint64_t offset, uint64_t bytes)
    int fi_shm_map(int fd, uint64_t offset, uint64_t bytes, bint private, void **base)
    int fi_shm_unmap(void *base, uint64_t bytes)
    uint64_t fi_shm_limit(uint64_t parts)
    uint64_t fi_memory_available() nogil
    uint64_t fi_memory_total() nogil
    void fi_shm_decommit(int fd, uint64_t offset, uint64_t nbytes) nogil
    bint fi_bells_need_pipes()
    int fi_bell_pipe_open(fi_bell_pipe *pipe)
    void fi_bell_pipe_close(fi_bell_pipe *pipe)
    int fi_event_open(int *ends)
    void fi_event_ring(int write_end)
    void fi_event_drain(int read_end)
    int fi_wait(const int *descriptors, uint32_t count, int64_t timeout_ns, uint8_t *ready)
    int64_t fi_now_ns()
    int64_t fi_coarse_ns()
    void fi_cpu_times(int64_t *cpu_ns, int64_t *delay_ns)
    void fi_heap_trim()
    void fi_heap_keep()


cdef extern from "os/fi_watch.h" nogil:
    int fi_watch_parent(int parent_pidfd, int parent_death_pipe)
    int fi_die_with_parent(int parent)
    int fi_exit_within(int64_t ns, int status)
    int fi_exit_unless_renewed(int64_t ns, int status)


cdef extern from "os/fi_image.h" nogil:
    int fi_image_open(uint64_t bytes, int *fd, uint64_t *need, uint64_t *have)
    void fi_image_close(int fd, uint64_t bytes)


cdef extern from "<pthread.h>":
    ctypedef unsigned long pthread_t
    pthread_t pthread_self()
    bint pthread_equal(pthread_t one, pthread_t other)
    int pthread_atfork(void (*before)() noexcept, void (*in_parent)() noexcept,
                       void (*in_child)() noexcept)
