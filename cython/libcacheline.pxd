# The instructions that write back and drop cache lines, with the fences they need. C declarations alone.
#
# x86-64: clwb keeps the line, clflushopt and clflush drop it; the first two are ordered by fences alone (Intel SDM
# volume 2, CLWB and CLFLUSHOPT), and the processor is asked by CPUID which it has. arm64: "dc cvac" and "dc civac",
# which Linux lets programs use, completed by "dsb sy". Elsewhere there is no instruction a program may use.
from libc.stdint cimport uint8_t, uint32_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    enum { FP_NONE, FP_CLFLUSH, FP_CLFLUSHOPT, FP_CLWB, FP_DC };
    #if defined(__x86_64__)
    #include <cpuid.h>
    #include <immintrin.h>
    static uint32_t fp_line_bytes(void) {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !((d >> 19) & 1)) return 64;
        return ((b >> 8) & 0xff) * 8;
    }
    static int fp_best(int wanted) {
        unsigned a, b = 0, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) b = 0;
        if (wanted >= FP_CLWB && ((b >> 24) & 1)) return FP_CLWB;
        if (wanted >= FP_CLFLUSHOPT && ((b >> 23) & 1)) return FP_CLFLUSHOPT;
        return FP_CLFLUSH;
    }
    static inline void fp_line(int with, uint8_t *p) {
        switch (with) {
        case FP_CLWB: __asm__ volatile("clwb %0" : "+m"(*(volatile char *)p)); break;
        case FP_CLFLUSHOPT: __asm__ volatile("clflushopt %0" : "+m"(*(volatile char *)p)); break;
        default: __asm__ volatile("clflush %0" : "+m"(*(volatile char *)p));
        }
    }
    static inline void fp_full_fence(void) { _mm_mfence(); }
    #elif defined(__aarch64__)
    static uint32_t fp_line_bytes(void) {
        uint64_t type;
        __asm__("mrs %0, ctr_el0" : "=r"(type));
        return 4u << ((type >> 16) & 0xf);
    }
    static int fp_best(int wanted) { return FP_DC; }
    static inline void fp_line(int with, uint8_t *p) {
        if (with == FP_CLWB) __asm__ volatile("dc cvac, %0" : : "r"(p) : "memory");
        else __asm__ volatile("dc civac, %0" : : "r"(p) : "memory");
    }
    static inline void fp_full_fence(void) { __asm__ volatile("dsb sy" : : : "memory"); }
    #else
    static uint32_t fp_line_bytes(void) { return 64; }
    static int fp_best(int wanted) { return FP_NONE; }
    static inline void fp_line(int with, uint8_t *p) { (void)with; (void)p; }
    static inline void fp_full_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    #endif
    """
    enum:
        NO_INSTRUCTION "FP_NONE"
        CLFLUSH "FP_CLFLUSH"
        CLFLUSHOPT "FP_CLFLUSHOPT"
        CLWB "FP_CLWB"
        ARM_DC "FP_DC"
    uint32_t cpu_line_bytes "fp_line_bytes"()
    int best_instruction "fp_best"(int wanted)
    void line_instruction "fp_line"(int instruction, uint8_t *line)
    void full_fence "fp_full_fence"()
