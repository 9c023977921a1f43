# The one place where C is declared, grouped by header.

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "fi_batch.h" nogil:
    enum:
        FI_PAD_MAX_NDIM

    void fi_gather(void *dst, size_t item_bytes, const void *const *src, size_t n)
    int fi_pad_shape(int64_t *out_shape, int ndim, const int64_t *src_shapes, size_t n)
    int fi_pad(void *dst, const int64_t *dst_shape, int ndim, size_t itemsize,
               const void *const *src, const int64_t *src_shapes, size_t n, const void *fill)


cdef extern from "fi_order.h" nogil:
    ctypedef struct fi_bitgen:
        pass

    void fi_order_permutation(const fi_bitgen *generator, int64_t *order, size_t n)
