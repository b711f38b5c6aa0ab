# GCC's atomic builtins on aligned words. C declarations alone.
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    static inline uint64_t fp_load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline void fp_store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static inline uint64_t fp_fetch_add(uint64_t *p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
    static inline uint64_t fp_compare_swap(uint64_t *p, uint64_t expected, uint64_t desired) {
        __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return expected;
    }
    static inline uint32_t fp_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline void fp_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static inline uint32_t fp_add32(uint32_t *p, int32_t v) {
        return __atomic_add_fetch(p, (uint32_t)v, __ATOMIC_SEQ_CST);
    }
    static inline void fp_fence(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
    """
    uint64_t load_word "fp_load"(const uint64_t *word)
    void store_word "fp_store"(uint64_t *word, uint64_t value)
    uint64_t fetch_add_word "fp_fetch_add"(uint64_t *word, uint64_t value)
    uint64_t compare_swap_word "fp_compare_swap"(uint64_t *word, uint64_t expected, uint64_t desired)
    uint32_t load_count "fp_load32"(const uint32_t *count)
    void store_count "fp_store32"(uint32_t *count, uint32_t value)
    uint32_t add_count "fp_add32"(uint32_t *count, int32_t value)
    void acquire_fence "fp_fence"()
