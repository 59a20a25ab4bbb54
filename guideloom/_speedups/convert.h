/* Copy one field of structured rows into a dense array, converting on the way.
 *
 * A field of `count` rows lies `stride` bytes apart, `inner` elements each; the destination is dense. Sources may be
 * unaligned (a row of uint16 and uint8 has three bytes), so elements are loaded with memcpy, which compiles to a plain
 * load. A conversion that cannot hold every value of its source is checked, and reports the first value that does not fit.
 */
#ifndef GUIDELOOM_CONVERT_H
#define GUIDELOOM_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Codes of element types; CONVERT_BYTES copies elements of any size as they are. */
enum { CONVERT_U1, CONVERT_I1, CONVERT_U2, CONVERT_I2, CONVERT_U4, CONVERT_I4, CONVERT_U8, CONVERT_I8, CONVERT_F4, CONVERT_F8, CONVERT_BYTES };

#define CONVERT_LOAD(T, value, from) T value; memcpy(&value, (from), sizeof(T))

/* Conversions that always fit, and floating ones, which round. */
#define CONVERT_PLAIN(S, D)                                                                                    \
    {                                                                                                          \
        D *to = (D *)target;                                                                                   \
        if (inner == 1) {                                                                                      \
            for (size_t i = 0; i < count; i++) { CONVERT_LOAD(S, v, source + i * stride); to[i] = (D)v; }      \
        } else {                                                                                               \
            for (size_t i = 0; i < count; i++)                                                                 \
                for (size_t j = 0; j < inner; j++) {                                                           \
                    CONVERT_LOAD(S, v, source + i * stride + j * sizeof(S)); to[i * inner + j] = (D)v;         \
                }                                                                                              \
        }                                                                                                      \
        return -1;                                                                                             \
    }

/* Integers into a type that may be too small: convert all, note whether any failed, then look for the first. */
#define CONVERT_CHECKED(S, D)                                                                                  \
    {                                                                                                          \
        D *to = (D *)target;                                                                                   \
        int bad = 0;                                                                                           \
        for (size_t i = 0; i < count; i++)                                                                     \
            for (size_t j = 0; j < inner; j++) {                                                               \
                CONVERT_LOAD(S, v, source + i * stride + j * sizeof(S));                                       \
                D w = (D)v;                                                                                    \
                bad |= ((S)w != v) | ((w < (D)1) != (v < (S)1));                                               \
                to[i * inner + j] = w;                                                                         \
            }                                                                                                  \
        if (!bad) return -1;                                                                                   \
        for (size_t i = 0; i < count; i++)                                                                     \
            for (size_t j = 0; j < inner; j++) {                                                               \
                CONVERT_LOAD(S, v, source + i * stride + j * sizeof(S));                                       \
                D w = (D)v;                                                                                    \
                if ((S)w != v || (w < (D)1) != (v < (S)1)) return (int64_t)(i * inner + j);                    \
            }                                                                                                  \
        return -1;                                                                                             \
    }

#define CONVERT_FROM_INTEGER(S)                                                                                \
    switch (to_type) {                                                                                         \
        case CONVERT_U1: CONVERT_CHECKED(S, uint8_t)                                                           \
        case CONVERT_I1: CONVERT_CHECKED(S, int8_t)                                                            \
        case CONVERT_U2: CONVERT_CHECKED(S, uint16_t)                                                          \
        case CONVERT_I2: CONVERT_CHECKED(S, int16_t)                                                           \
        case CONVERT_U4: CONVERT_CHECKED(S, uint32_t)                                                          \
        case CONVERT_I4: CONVERT_CHECKED(S, int32_t)                                                           \
        case CONVERT_U8: CONVERT_CHECKED(S, uint64_t)                                                          \
        case CONVERT_I8: CONVERT_CHECKED(S, int64_t)                                                           \
        case CONVERT_F4: CONVERT_PLAIN(S, float)                                                               \
        case CONVERT_F8: CONVERT_PLAIN(S, double)                                                              \
    }                                                                                                          \
    break;

#define CONVERT_FROM_FLOAT(S)                                                                                  \
    switch (to_type) {                                                                                         \
        case CONVERT_F4: CONVERT_PLAIN(S, float)                                                               \
        case CONVERT_F8: CONVERT_PLAIN(S, double)                                                              \
    }                                                                                                          \
    break;

#define CONVERT_COPY(SIZE)                                                                                     \
    for (size_t i = 0; i < count; i++) memcpy(target + i * (SIZE), source + i * stride, (SIZE));               \
    return -1;

/* Bytes of one element of a type code. */
static inline size_t gl_type_bytes(int type, size_t otherwise) {
    switch (type) {
        case CONVERT_U1: case CONVERT_I1: return 1;
        case CONVERT_U2: case CONVERT_I2: return 2;
        case CONVERT_U4: case CONVERT_I4: case CONVERT_F4: return 4;
        case CONVERT_U8: case CONVERT_I8: case CONVERT_F8: return 8;
    }
    return otherwise;
}

/* Return -1, or the position of the first element that does not fit, or -2 for a pair of types that is not offered.
 * `cell` is the size in bytes of a whole field (all inner elements) when the types are equal. */
static int64_t gl_convert(int from_type, int to_type, const char *source, size_t stride, char *target, size_t inner,
                          size_t cell, size_t count) {
    if (from_type == to_type) {
        if (stride == cell) { memcpy(target, source, cell * count); return -1; }
        switch (cell) {
            case 1: CONVERT_COPY(1)
            case 2: CONVERT_COPY(2)
            case 4: CONVERT_COPY(4)
            case 8: CONVERT_COPY(8)
            case 16: CONVERT_COPY(16)
            default: CONVERT_COPY(cell)
        }
    }
    switch (from_type) {
        case CONVERT_U1: CONVERT_FROM_INTEGER(uint8_t)
        case CONVERT_I1: CONVERT_FROM_INTEGER(int8_t)
        case CONVERT_U2: CONVERT_FROM_INTEGER(uint16_t)
        case CONVERT_I2: CONVERT_FROM_INTEGER(int16_t)
        case CONVERT_U4: CONVERT_FROM_INTEGER(uint32_t)
        case CONVERT_I4: CONVERT_FROM_INTEGER(int32_t)
        case CONVERT_U8: CONVERT_FROM_INTEGER(uint64_t)
        case CONVERT_I8: CONVERT_FROM_INTEGER(int64_t)
        case CONVERT_F4: CONVERT_FROM_FLOAT(float)
        case CONVERT_F8: CONVERT_FROM_FLOAT(double)
    }
    return -2;
}

#endif
