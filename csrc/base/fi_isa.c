#include "base/fi_isa.h"

bool fi_has_isa(int isa)
{
    switch (isa) {
    case FI_ISA_GENERIC:
        return true;
#ifdef __x86_64__
    case FI_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    case FI_ISA_AVX512:
        return fi_has_isa(FI_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw");
#endif
    default:
        return false;
    }
}

int fi_isa(void)
{
    int isa = FI_ISA_COUNT - 1;

    while (!fi_has_isa(isa))
        isa--;
    return isa;
}
