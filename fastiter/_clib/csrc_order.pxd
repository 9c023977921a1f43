# C of csrc/order, grouped by header.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "order/fi_order.h" nogil:
    ctypedef struct fi_bitgen:
        pass

    void fi_order_permutation(const fi_bitgen *generator, int64_t *order, size_t n)


cdef extern from "order/fi_shuffle.h" nogil:
    const uint32_t FI_SHUFFLE_MAX
    ctypedef struct fi_seed:
        uint64_t words[2]
    fi_seed fi_seed_mixed(const fi_seed *seed, uint64_t number)
    unsigned int fi_shuffle_threads(uint64_t n)
    int fi_shuffle(int64_t *order, uint64_t n, const fi_seed *seed, uint64_t stream,
                   unsigned int threads)
    void fi_seed_from_entropy(fi_seed *seed, const uint32_t *entropy, size_t words)


cdef extern from "order/fi_virtual.h" nogil:
    enum:
        FI_VIRTUAL_ROUNDS
    const uint64_t FI_VIRTUAL_MAX
    ctypedef struct fi_virtual:
        pass
    int fi_virtual_init(fi_virtual *order, uint64_t n, const fi_seed *seed, uint64_t stream,
                        uint32_t rounds)
    int fi_virtual_fill(const fi_virtual *order, int isa, uint64_t start, size_t count,
                        int64_t *out)
    void fi_example_words(const fi_seed *seed, uint64_t epoch, uint64_t index, uint64_t *words)


cdef extern from "order/fi_mixture.h" nogil:
    enum:
        FI_MIXTURE_SOURCES_MAX
        FI_MIXTURE_OPEN
    const uint64_t FI_MIXTURE_TOTAL_MAX
    const uint64_t FI_MIXTURE_SLOTS_MAX
    ctypedef struct fi_mixture_source:
        uint64_t weight
        int64_t lag
        uint64_t drawn
    ctypedef struct fi_mixture:
        uint64_t total, last, slot
        uint32_t count
        fi_mixture_source *sources
        uint64_t *ready
        uint64_t *waiting
    void fi_mixture_start(fi_mixture *mixture)
    void fi_mixture_run(fi_mixture *mixture, uint64_t count, uint16_t *out)


cdef extern from "order/fi_buckets.h" nogil:
    ctypedef struct fi_buckets:
        const void *lengths
        bint wide
        uint64_t most_rows, most_tokens
        uint32_t num_ranks
        bint drops
        uint64_t *keys
        uint64_t *spare
        uint64_t room, carried
        uint32_t *out
        uint8_t *marks
        uint64_t written, batches
    uint64_t fi_buckets_window(fi_buckets *buckets, const int64_t *rows, uint64_t count, bint trial)
    void fi_buckets_finish(fi_buckets *buckets)
    void fi_buckets_arrange(const fi_buckets *buckets, const fi_seed *seed, uint32_t *starts,
                            uint32_t *rows, int64_t *cuts)


cdef extern from "order/fi_pack.h" nogil:
    enum:
        FI_OVERLONG_SPLIT
        FI_OVERLONG_TRUNCATE
        FI_OVERLONG_DROP
    ctypedef struct fi_segment:
        int64_t document
        int64_t start
        int64_t length
    size_t fi_pack_scratch(uint32_t length, uint32_t n)
    uint32_t fi_pack(uint32_t length, const uint32_t *sizes, uint32_t n, uint32_t *rows,
                     void *scratch)
    uint32_t fi_pack_pieces(int overlong, uint32_t length, const int64_t *documents,
                            const int64_t *lengths, uint32_t n, uint32_t *sizes,
                            fi_segment *pieces, uint64_t *n_whole)
    void fi_pack_segments(uint32_t length, const int64_t *documents, const int64_t *lengths,
                          uint32_t n, int overlong, const fi_segment *pieces, const uint32_t *rows,
                          uint32_t n_pieces, uint32_t n_rows, uint64_t n_whole,
                          const int64_t *places, int64_t *starts, fi_segment *segments)


cdef extern from "order/fi_weighted.h" nogil:
    const uint32_t FI_WEIGHTED_MAX
    ctypedef struct fi_alias:
        pass
    ctypedef struct fi_arrivals:
        double *times
        uint32_t *items
        uint32_t room, count
    void fi_alias_build(fi_alias *table, const double *weights, uint32_t n, double *shares,
                        uint32_t *stack)
    void fi_alias_draw(const fi_alias *table, uint32_t n, const fi_seed *seed, uint64_t stream,
                       int64_t *out, size_t count)
    double fi_race_horizon(const double *weights, uint32_t n, uint32_t k)
    int fi_race_run(int isa, const double *weights, uint32_t n, const fi_seed *seed,
                    uint64_t stream, double horizon, fi_arrivals *arrivals)
    void fi_race_rank(const fi_arrivals *arrivals, uint32_t k, uint64_t *keys, int64_t *out)
