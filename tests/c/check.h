/* The checks of the C tests: say where and what, then abort, so that a sanitizer or debugger sees the stack. */
#ifndef FASTITER_TESTS_CHECK_H
#define FASTITER_TESTS_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: %s: false: %s\n", __FILE__, __LINE__, __func__,         \
                    #condition);                                                            \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

/* For integers: prints both values. */
#define CHECK_EQ(left, right)                                                               \
    do {                                                                                    \
        intmax_t left_ = (intmax_t)(left), right_ = (intmax_t)(right);                      \
        if (left_ != right_) {                                                              \
            fprintf(stderr, "%s:%d: %s: %s is %" PRIdMAX ", %s is %" PRIdMAX "\n",          \
                    __FILE__, __LINE__, __func__, #left, left_, #right, right_);            \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

#endif
