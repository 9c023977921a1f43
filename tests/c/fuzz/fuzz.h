/* Common parts of the fuzz targets: numbers out of the input, zeros once it is used up. */
#ifndef FASTITER_TESTS_FUZZ_H
#define FASTITER_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* The target; libFuzzer, or driver.c, calls it with one input after the other. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct fuzz_input {
    const uint8_t *data;
    size_t left;
} fuzz_input;

static inline uint8_t fuzz_u8(fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->data++;
}

static inline uint32_t fuzz_u32(fuzz_input *in)
{
    uint32_t number = 0;
    for (int i = 0; i < 4; i++)
        number = number << 8 | fuzz_u8(in);
    return number;
}

static inline uint64_t fuzz_u64(fuzz_input *in)
{
    uint64_t high = fuzz_u32(in);
    return high << 32 | fuzz_u32(in);
}

#endif
