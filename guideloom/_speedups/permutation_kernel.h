/* The shuffle's network on blocks, both directions, over 32-bit halves in two arrays, so that compilers vectorise it.
 *
 * A value of the domain is h * 2^k + l with h < a <= 2^31 and l < 2^k <= 2^32. Keys alternate, that of the high half
 * first. Everything is unsigned, so every machine computes the same bits. The mixer's constants are from Wellons' hash
 * prospector; its last xor-shift is left out, as only its high bits are used.
 */
#ifndef GUIDELOOM_PERMUTATION_KERNEL_H
#define GUIDELOOM_PERMUTATION_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define GUIDELOOM_NUM_KEYS 10 /* one for each half-round */

/* Baseline x86-64 has no 32-bit vector multiply: choose at run time. That takes gcc and the dynamic linker of glibc,
 * and no thread sanitiser, which crashes in the choice. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__INTEL_COMPILER) && !defined(__SANITIZE_THREAD__) \
    && defined(__x86_64__) && defined(__GLIBC__)
#define GUIDELOOM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GUIDELOOM_CLONES
#endif

static inline uint32_t guideloom_mix32(uint32_t x, uint32_t key) {
    x = (x ^ key) * UINT32_C(0x7FEB352D);
    x ^= x >> 15;
    return x * UINT32_C(0x846CA68B);
}

static inline uint32_t guideloom_min32(uint32_t x, uint32_t y) {
    return x < y ? x : y;
}

/* One loop a half-round: gcc's code for both in one loop takes half as long again. */

static GUIDELOOM_CLONES void guideloom_encipher(uint32_t *restrict high, uint32_t *restrict low, size_t count,
                                                uint32_t a, uint32_t k, const uint32_t *keys) {
    const uint32_t mask = UINT32_MAX >> (32 - k);
    for (size_t r = 0; r < GUIDELOOM_NUM_KEYS; r += 2) {
        const uint32_t high_key = keys[r], low_key = keys[r + 1];
        for (size_t i = 0; i < count; i++) {
            const uint32_t sum = high[i] + (uint32_t)((uint64_t)guideloom_mix32(low[i], high_key) * a >> 32);
            high[i] = guideloom_min32(sum, sum - a); /* where sum < a, sum - a wraps to something larger */
        }
        for (size_t i = 0; i < count; i++) {
            low[i] = (low[i] + (guideloom_mix32(high[i], low_key) >> (32 - k))) & mask;
        }
    }
}

static GUIDELOOM_CLONES void guideloom_decipher(uint32_t *restrict high, uint32_t *restrict low, size_t count,
                                                uint32_t a, uint32_t k, const uint32_t *keys) {
    const uint32_t mask = UINT32_MAX >> (32 - k);
    for (size_t r = GUIDELOOM_NUM_KEYS; r > 0; r -= 2) {
        const uint32_t high_key = keys[r - 2], low_key = keys[r - 1];
        for (size_t i = 0; i < count; i++) {
            low[i] = (low[i] - (guideloom_mix32(high[i], low_key) >> (32 - k))) & mask;
        }
        for (size_t i = 0; i < count; i++) {
            const uint32_t rest = high[i] - (uint32_t)((uint64_t)guideloom_mix32(low[i], high_key) * a >> 32);
            high[i] = guideloom_min32(rest, rest + a); /* where rest wrapped, rest + a is the smaller one, below a */
        }
    }
}

#endif
