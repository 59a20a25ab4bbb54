/* CRC32C (Castagnoli), by the fastest means of the processor at hand, and the seeded checksum of a block.
 *
 * Polynomials over GF(2) are bit-reflected, as the CRC is: the lowest bit is the highest power, and the first byte of
 * a message holds its highest powers. P is x^32 + 0x1EDC6F41, which reflected is 0x82F63B78. A kernel takes and
 * returns the bare register; gl_crc32c() inverts it at both ends, as RFC 3720 asks.
 *
 * Each file that includes this has its own copy of everything, chosen once, when that file is loaded. */
#ifndef GUIDELOOM_CRC32C_H
#define GUIDELOOM_CRC32C_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t (*gl_crc32c_kernel)(uint32_t state, const uint8_t *data, size_t length);

/* Little-endian, wherever this runs; compilers make it one load (and a byte swap, where there is need). */
static inline uint64_t gl_load8(const uint8_t *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

static inline void gl_store8(uint8_t *p, uint64_t word) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(word >> 8 * i);
}

/* ---- Tables, for any processor: slicing-by-8 (Kounavis and Berry, 2005). ----
 *
 * Table k holds, for each byte, the register after that byte and k zero bytes. It is linear in the byte, so its 256
 * entries are the sums of eight: bit i of the byte stands for x^(7-i), and gives x^(32 + 8k + 7-i) mod P. */
#define GL_SUMS2(x, a) (x), (x) ^ (a)
#define GL_SUMS4(x, a, b) GL_SUMS2(x, a), GL_SUMS2((x) ^ (b), a)
#define GL_SUMS8(x, a, b, c) GL_SUMS4(x, a, b), GL_SUMS4((x) ^ (c), a, b)
#define GL_SUMS16(x, a, b, c, d) GL_SUMS8(x, a, b, c), GL_SUMS8((x) ^ (d), a, b, c)
#define GL_SUMS32(x, a, b, c, d, e) GL_SUMS16(x, a, b, c, d), GL_SUMS16((x) ^ (e), a, b, c, d)
#define GL_SUMS64(x, a, b, c, d, e, f) GL_SUMS32(x, a, b, c, d, e), GL_SUMS32((x) ^ (f), a, b, c, d, e)
#define GL_SUMS128(x, a, b, c, d, e, f, g) GL_SUMS64(x, a, b, c, d, e, f), GL_SUMS64((x) ^ (g), a, b, c, d, e, f)
#define GL_TABLE(a, b, c, d, e, f, g, h) \
    { GL_SUMS128(0u, a, b, c, d, e, f, g), GL_SUMS128(h, a, b, c, d, e, f, g) }

static const uint32_t gl_crc32c_tables[8][256] = {
    GL_TABLE(0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78),
    GL_TABLE(0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9),
    GL_TABLE(0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743),
    GL_TABLE(0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f),
    GL_TABLE(0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c),
    GL_TABLE(0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6),
    GL_TABLE(0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4),
    GL_TABLE(0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664),
};

static inline uint32_t gl_crc32c_by_tables(uint32_t state, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word = gl_load8(data);
        uint32_t low = (uint32_t)word ^ state, high = (uint32_t)(word >> 32); /* only the low half has to wait */
        state = 0;
        for (int k = 0; k < 4; k++) state ^= gl_crc32c_tables[3 - k][high >> 8 * k & 255];
        for (int k = 0; k < 4; k++) state ^= gl_crc32c_tables[7 - k][low >> 8 * k & 255];
    }
    for (; length > 0; data++, length--) state = state >> 8 ^ gl_crc32c_tables[0][(state ^ *data) & 255];
    return state;
}

static inline int gl_crc32c_always(void) { return 1; }

/* ---- The instructions for CRC32C and for carry-less products, where there are such. ----
 *
 * gl_step8() takes the register over eight bytes: (state + word) x^32 mod P. gl_product() is carry-less; read as 64
 * reflected bits, the product of two reflected 32-bit polynomials a and b is a b x. */
#if defined(__GNUC__) && defined(__x86_64__)
#define GL_CRC32C_INSTRUCTIONS 1
#define GL_CRC32C_SERIAL_NAME "x86-64 crc32"
#define GL_CRC32C_LANES_NAME "x86-64 crc32, three lanes"
#define GL_CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))
#include <immintrin.h>

GL_CRC32C_TARGET static inline uint64_t gl_step8(uint64_t state, uint64_t word) { return _mm_crc32_u64(state, word); }
GL_CRC32C_TARGET static inline uint64_t gl_step1(uint64_t state, uint8_t byte) {
    return _mm_crc32_u8((uint32_t)state, byte);
}
GL_CRC32C_TARGET static inline uint64_t gl_product(uint64_t a, uint64_t b) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128((int64_t)b), 0x00);
    return (uint64_t)_mm_cvtsi128_si64(product);
}
static inline int gl_crc32c_has_step(void) { return __builtin_cpu_supports("sse4.2"); }
static inline int gl_crc32c_has_product(void) { return gl_crc32c_has_step() && __builtin_cpu_supports("pclmul"); }

#elif defined(__GNUC__) && defined(__AARCH64EL__) && (defined(__linux__) || defined(__APPLE__))
#define GL_CRC32C_INSTRUCTIONS 1
#define GL_CRC32C_SERIAL_NAME "aarch64 crc32c"
#define GL_CRC32C_LANES_NAME "aarch64 crc32c, three lanes"
#define GL_CRC32C_TARGET /* none: gcc and clang spell it differently, and the assembler is told instead */
#include <arm_neon.h>

static inline uint64_t gl_step8(uint64_t state, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
}
static inline uint64_t gl_step1(uint64_t state, uint8_t byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
    return state;
}
static inline uint64_t gl_product(uint64_t a, uint64_t b) {
    uint64x2_t product;
    __asm__(".arch_extension aes\n\tpmull %0.1q, %1.1d, %2.1d"
            : "=w"(product) : "w"(vcreate_u64(a)), "w"(vcreate_u64(b)));
    return vgetq_lane_u64(product, 0);
}
#if defined(__APPLE__)
static inline int gl_crc32c_has_step(void) { return 1; }
static inline int gl_crc32c_has_product(void) { return 1; }
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>
static inline int gl_crc32c_has_step(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
static inline int gl_crc32c_has_product(void) {
    return gl_crc32c_has_step() && (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
}
#endif
#endif

#if defined(GL_CRC32C_INSTRUCTIONS)
/* The register over up to a few hundred bytes; each step waits for the one before it. */
GL_CRC32C_TARGET static inline uint32_t gl_crc32c_serial(uint32_t state, const uint8_t *data, size_t length) {
    uint64_t wide = state;
    for (; length >= 8; data += 8, length -= 8) wide = gl_step8(wide, gl_load8(data));
    for (; length > 0; data++, length--) wide = gl_step1(wide, *data);
    return (uint32_t)wide;
}

/* Three lanes (Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011): the
 * instruction starts each cycle but answers after three, so three neighbouring runs of bytes are taken at once. The
 * first register must then move over the two lanes behind it, and the second over one.
 *
 * To move a register r by n bits is to multiply it by x^n mod P. gl_step8(0, gl_product(r, k)) is r k x^33 mod P, so
 * k is x^(n-33) mod P. This holds for each constant from here on. */
GL_CRC32C_TARGET static inline uint64_t gl_crc32c_three(
    uint64_t first, const uint8_t *data, size_t lane_bytes, uint64_t over_two, uint64_t over_one
) {
    uint64_t second = 0, third = 0;
    for (const uint8_t *end = data + lane_bytes; data < end; data += 8) {
        first = gl_step8(first, gl_load8(data));
        second = gl_step8(second, gl_load8(data + lane_bytes));
        third = gl_step8(third, gl_load8(data + 2 * lane_bytes));
    }
    return third ^ gl_step8(0, gl_product(first, over_two) ^ gl_product(second, over_one));
}

/* Lanes of 1360 bytes leave 16 of a block of 4096; lanes of 168 serve what is shorter. */
GL_CRC32C_TARGET static inline uint32_t gl_crc32c_lanes(uint32_t state, const uint8_t *data, size_t length) {
    uint64_t wide = state;
    for (; length >= 3 * 1360; data += 3 * 1360, length -= 3 * 1360)
        wide = gl_crc32c_three(wide, data, 1360, 0x5aa1f3cf, 0x3f70cc6f); /* n = 2 * 8 * 1360 and 8 * 1360 */
    for (; length >= 3 * 168; data += 3 * 168, length -= 3 * 168)
        wide = gl_crc32c_three(wide, data, 168, 0xa60ce07b, 0x1b3d8f29); /* n = 2 * 8 * 168 and 8 * 168 */
    return gl_crc32c_serial((uint32_t)wide, data, length);
}
#endif

/* ---- Folding with four carry-less products an instruction (Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", Intel, 2009). ----
 *
 * 128 bits of the message, u x^64 + v, move by n bits as u (x^(n+64) mod P) + v (x^n mod P): 96 bits at most, that
 * the message n bits further on takes in. As above the constants lack x^33: by_n holds x^(n+64-33) and x^(n-33) mod P,
 * the first in its low half. */
#if defined(__GNUC__) && defined(__x86_64__)
#define GL_CRC32C_FOLDING_TARGET __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

static inline int gl_crc32c_has_folding(void) {
    return gl_crc32c_has_product() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

GL_CRC32C_FOLDING_TARGET static inline __m512i gl_fold(__m512i value, __m512i constants, __m512i onto) {
    __m512i u = _mm512_clmulepi64_epi128(value, constants, 0x00);
    __m512i v = _mm512_clmulepi64_epi128(value, constants, 0x11);
    return _mm512_ternarylogic_epi64(u, v, onto, 0x96); /* the sum of all three */
}

GL_CRC32C_FOLDING_TARGET static inline uint32_t gl_crc32c_folding(uint32_t state, const uint8_t *data, size_t length) {
    if (length < 256) return gl_crc32c_serial(state, data, length);

    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0xb9e02b86, 0xdcb17aa4));
    const __m512i by_1024 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0d3b6092, 0x6992cea2));
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x9e4addf8, 0x740eef02));
    const __m512i by_384_256_128_none =
        _mm512_set_epi64(0, 0, 0x493c7d27, 0xf20c0dfe, 0xba4fc28e, 0x3da6d0cb, 0xddc0152b, 0x1c291d04);

    /* Four accumulators of 512 bits: enough that no product waits for another. */
    __m512i a = _mm512_loadu_si512(data), b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (data += 256, length -= 256; length >= 256; data += 256, length -= 256) {
        a = gl_fold(a, by_2048, _mm512_loadu_si512(data));
        b = gl_fold(b, by_2048, _mm512_loadu_si512(data + 64));
        c = gl_fold(c, by_2048, _mm512_loadu_si512(data + 128));
        d = gl_fold(d, by_2048, _mm512_loadu_si512(data + 192));
    }
    a = gl_fold(gl_fold(a, by_1024, c), by_512, gl_fold(b, by_1024, d));
    for (; length >= 64; data += 64, length -= 64) a = gl_fold(a, by_512, _mm512_loadu_si512(data));

    /* The four quarters onto the last, which stays, and the 128 bits left through the register. */
    a = gl_fold(a, by_384_256_128_none, _mm512_maskz_mov_epi64(0xc0, a));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i quarter = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    uint64_t wide = gl_step8(0, (uint64_t)_mm_cvtsi128_si64(quarter));
    wide = gl_step8(wide, (uint64_t)_mm_extract_epi64(quarter, 1));
    return gl_crc32c_serial((uint32_t)wide, data, length);
}
#endif

/* ---- The choice, and what callers use. ---- */
typedef struct {
    const char *name;
    int (*usable)(void);
    gl_crc32c_kernel kernel;
} gl_crc32c_implementation;

static const gl_crc32c_implementation gl_crc32c_implementations[] = { /* the fastest first */
#if defined(GL_CRC32C_FOLDING_TARGET)
    {"x86-64 avx512 vpclmulqdq", gl_crc32c_has_folding, gl_crc32c_folding},
#endif
#if defined(GL_CRC32C_INSTRUCTIONS)
    {GL_CRC32C_LANES_NAME, gl_crc32c_has_product, gl_crc32c_lanes},
    {GL_CRC32C_SERIAL_NAME, gl_crc32c_has_step, gl_crc32c_serial},
#endif
    {"software", gl_crc32c_always, gl_crc32c_by_tables},
};
enum { GL_CRC32C_NUM_IMPLEMENTATIONS = sizeof gl_crc32c_implementations / sizeof gl_crc32c_implementations[0] };

/* Software, also right, until the loader has run the constructor: no thread can see a choice half made. */
static const gl_crc32c_implementation *gl_crc32c_chosen =
    &gl_crc32c_implementations[GL_CRC32C_NUM_IMPLEMENTATIONS - 1];

#if defined(GL_CRC32C_INSTRUCTIONS)
__attribute__((constructor)) static void gl_crc32c_choose(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    gl_crc32c_chosen = gl_crc32c_implementations;
    while (!gl_crc32c_chosen->usable()) gl_crc32c_chosen++;
}
#endif

/* CRC32C of `data` after what `crc` is the CRC32C of; start with 0. */
static inline uint32_t gl_crc32c(uint32_t crc, const uint8_t *data, size_t length) {
    return ~gl_crc32c_chosen->kernel(~crc, data, length);
}

/* CRC32C of `file_seed` as 4 bytes and `block` as 8 bytes, both little-endian: what the checksum of a block begins with,
 * so that it also tells whether the block is at its place and in its file. */
static inline uint32_t gl_block_place(uint32_t file_seed, uint64_t block) {
    uint8_t place[16];
    gl_store8(place, file_seed);
    gl_store8(place + 4, block); /* over the seed's upper half, which is zero */
    return gl_crc32c(0, place, 12);
}

/* Checksum of a block. */
static inline uint32_t gl_block_crc(uint32_t file_seed, uint64_t block, const uint8_t *data, size_t length) {
    return gl_crc32c(gl_block_place(file_seed, block), data, length);
}

#endif
