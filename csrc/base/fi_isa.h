/* Instruction sets that loops are compiled for, and which of them this processor has. */
#ifndef FI_ISA_H
#define FI_ISA_H

#include <stdbool.h>

enum {
    FI_ISA_GENERIC, /* plain C, which defines the results */
    FI_ISA_AVX2,    /* with BMI2 */
    FI_ISA_AVX512,  /* F and BW, and AVX2 */
    FI_ISA_COUNT
};

/* Whether this processor has one of them; false for any other number. */
bool fi_has_isa(int isa);

/* Best instruction set of this processor. */
int fi_isa(void);

#endif
