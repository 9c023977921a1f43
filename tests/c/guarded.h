/* Random bytes, and outputs with guard bytes around them. */
#ifndef FI_TEST_GUARDED_H
#define FI_TEST_GUARDED_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { GUARD = 64, GUARD_BYTE = 0xA5 };

static uint64_t random_state = 88172645463325252u;

static inline uint64_t random_below(uint64_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

/* Exactly as large as needed, so that AddressSanitizer sees each byte too many. */
static inline unsigned char *random_bytes(size_t n)
{
    unsigned char *bytes = malloc(n ? n : 1);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)random_below(256);
    }
    return bytes;
}

static inline unsigned char *guarded(size_t n)
{
    unsigned char *block = malloc(n + 2 * GUARD);
    CHECK(block != NULL);
    memset(block, GUARD_BYTE, n + 2 * GUARD);
    return block;
}

static inline void check_guards(const unsigned char *block, size_t n)
{
    for (size_t i = 0; i < GUARD; i++) {
        CHECK(block[i] == GUARD_BYTE);
        CHECK(block[GUARD + n + i] == GUARD_BYTE);
    }
}

#endif
