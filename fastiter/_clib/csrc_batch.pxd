# C of csrc/batch, grouped by header.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastiter._clib.csrc_order cimport fi_segment


cdef extern from "batch/fi_batch.h" nogil:
    int fi_pad_shape(int64_t *out_shape, int ndim, const int64_t *src_shapes, size_t n)
    uint64_t fi_array_bytes(const int64_t *shape, int ndim, uint64_t itemsize)
    int fi_ragged_rows(const char *payload, uint64_t available, const char *entries,
                       uint64_t stride, int ndim, uint64_t itemsize, size_t n,
                       const void **sources, int64_t *shapes)
    void fi_pad(void *dst, const int64_t *dst_shape, int ndim, size_t itemsize,
                const void *const *src, const int64_t *src_shapes, size_t n, const void *fill)


cdef extern from "batch/fi_copy.h" nogil:
    enum:
        FI_RESULT_BATCHES
        FI_UNCACHED_LEAST

    bint fi_outruns_cache(uint64_t batch_bytes, uint64_t batches)
    void fi_copy(void *dst, const void *src, size_t bytes, bint uncached)
    void fi_copy_strided(void *dst, const void *src, int ndim, const int64_t *dims,
                         const int64_t *strides, size_t itemsize)


cdef extern from "batch/fi_gather.h" nogil:
    void fi_gather(void *dst, size_t item_bytes, const void *const *src, size_t n)
    bint fi_rows_lie_within(const int64_t *rows, size_t n, int64_t length)
    void fi_rows_translate(int64_t *out, const int64_t *table, const int64_t *rows, size_t n)
    void fi_gather_rows(void *dst, size_t row_bytes, const void *base, Py_ssize_t stride,
                        const int64_t *rows, size_t n, bint uncached)


cdef extern from "batch/fi_arrow.h" nogil:
    enum:
        FI_ARROW_FIXED
        FI_ARROW_BITS
        FI_ARROW_DAYS
        FI_ARROW_LISTS
        FI_ARROW_VIEWS
    ctypedef struct fi_arrow_array:
        int64_t length
    ctypedef struct fi_chunk:
        int64_t first
        int64_t first_bit
        const void *values
    ctypedef struct fi_chunk_start:
        pass
    ctypedef struct fi_column:
        const fi_chunk *chunks
        fi_chunk_start *starts
        int64_t n_chunks
        int64_t n_rows
        uint32_t *guide
        int layout
        int levels
        bint wide[2]
        size_t width
        const void *fill
    ctypedef struct fi_span:
        const fi_chunk *chunk
        int64_t start
        int64_t length
        const void *data
    int fi_arrow_chunk(fi_chunk *chunk, const fi_column *column, const fi_arrow_array *array,
                       const int64_t *inner, int n_inner)
    size_t fi_arrow_guide_size(fi_column *column)
    void fi_arrow_start(const fi_column *column, int64_t number)
    void fi_arrow_guide(fi_column *column)
    bint fi_arrow_chunks_agree(const fi_column *column, const fi_column *other)
    bint fi_arrow_gather(void *dst, const fi_column *column, const int64_t *rows, size_t n,
                         bint uncached, uint32_t *found, bint are_known)
    int fi_arrow_spans(fi_span *spans, const fi_column *column, const int64_t *rows, size_t n,
                       size_t *bad)
    int fi_arrow_inner(fi_span *spans, const fi_column *column, const fi_span *outer)
    void fi_arrow_bits(uint8_t *dst, const uint8_t *bitmap, int64_t first, int64_t n)


cdef extern from "batch/fi_buffers.h" nogil:
    ctypedef struct fi_buffers:
        size_t limit
    void fi_buffers_init(fi_buffers *pool, size_t limit, int64_t patience)
    int fi_buffers_take(fi_buffers *pool, size_t bytes, int64_t now_ns, void **data,
                        size_t *capacity)
    void fi_buffers_give(fi_buffers *pool, void *data, size_t capacity, int64_t now_ns)
    void fi_buffers_trim(fi_buffers *pool)
    void fi_buffers_count(fi_buffers *pool, uint32_t *count, size_t *bytes)


cdef extern from "batch/fi_tokens.h" nogil:
    enum:
        FI_FIELD_DOCUMENTS
        FI_FIELD_LONGEST
        FI_FIELD_COUNT
        FI_FIELD_ALIGNED
    ctypedef struct fi_token_part:
        const char *tokens
        int64_t first
    ctypedef struct fi_document_part:
        const void *offsets
        const void *sizes
        bint wide
        int64_t unit, base, first
    ctypedef struct fi_tokens:
        const fi_token_part *parts
        int64_t n_parts, n_tokens
        const fi_document_part *documents
        int64_t n_document_parts, n_documents
        int kind
        bint has_bos, has_eos
        int64_t bos, eos
    ctypedef struct fi_row_format:
        uint32_t length
        bint shifts, borders, left
        int64_t pad, ignored
    bint fi_tokens_extent(const fi_tokens *tokens, int64_t document, int64_t *start,
                          int64_t *length)
    size_t fi_tokens_lengths(const fi_tokens *tokens, const int64_t *documents, size_t n,
                             int64_t *lengths)
    int64_t fi_tokens_find(const fi_tokens *tokens, int64_t place)
    ctypedef struct fi_row_segments:
        fi_segment *segments
        size_t *starts
        uint8_t *continues
    void fi_tokens_rows(const fi_tokens *tokens, const fi_row_format *format, int field,
                        const fi_row_segments *rows, size_t n, size_t row_bytes, char *out)
    void fi_tokens_windows(const fi_tokens *tokens, const fi_row_format *format, int field,
                           const int64_t *rows, size_t n, int64_t stride, int64_t length,
                           size_t row_bytes, char *out)


cdef extern from "batch/fi_resize.h" nogil:
    enum:
        FI_RESIZE_MOST
    ctypedef struct fi_resize_task:
        const uint8_t *pixels
        uint64_t height, width
        double left, top, right, bottom
        uint64_t size[2]
        uint64_t corner[2]
        uint64_t window[2]
        const float *table
        void *out
        bint planes, mirror

    int fi_resize(const fi_resize_task *task, int isa)
