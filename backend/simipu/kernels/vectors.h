/* A register of floats in the instruction sets that the kernels are compiled for, and what the chip does to
   the values in it. The includer is compiled once for each, with flags that say which.

       AVX-512   16 floats, 32 registers       halves by vcvtps2ph, vcvtph2ps
       AVX2       8 floats, 16 registers       the same (F16C)
       NEON       4 floats, 32 registers       halves by fcvtn, fcvtl
       portable   4 floats                     halves by whole numbers */

#ifndef SIMIPU_VECTORS_H
#define SIMIPU_VECTORS_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

static const float HALF_MAX = 65504.0f;
enum { NAN_BITS = 0x7FC00000 };

#if defined(__AVX512F__)

#include <immintrin.h>
#define SET avx512
enum { LANES = 16 };
typedef __m512 V;
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

INLINE V v_load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void v_store(float *to, V x) { _mm512_storeu_ps(to, x); }
/* The first `count` < LANES of a register; zeros in the others. */
INLINE V v_load_part(const float *from, int64_t count) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
}
INLINE void v_store_part(float *to, V x, int64_t count) {
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), x);
}
INLINE V v_all(float x) { return _mm512_set1_ps(x); }
INLINE V v_add(V x, V y) { return _mm512_add_ps(x, y); }
INLINE V v_sub(V x, V y) { return _mm512_sub_ps(x, y); }
INLINE V v_mul(V x, V y) { return _mm512_mul_ps(x, y); }
INLINE V v_div(V x, V y) { return _mm512_div_ps(x, y); }
INLINE V v_sum(V x, V y, V sum) { return _mm512_fmadd_ps(x, y, sum); }
/* Where one is NaN, the second. */
INLINE V v_max(V x, V y) { return _mm512_max_ps(x, y); }
INLINE V v_min(V x, V y) { return _mm512_min_ps(x, y); }
INLINE V v_abs(V x) { return _mm512_abs_ps(x); }
/* if x < y (x == y, either is NaN): yes, otherwise no. */
INLINE V v_if_less(V x, V y, V yes, V no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), no, yes);
}
INLINE V v_if_equal(V x, V y, V yes, V no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ), no, yes);
}
INLINE V v_if_nan(V x, V y, V yes, V no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q), no, yes);
}
/* Whether all are zeros. */
INLINE int v_are_zero(V x) { return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0; }
INLINE V v_of_halves(Halves halves) { return _mm512_cvtph_ps((__m256i)halves); }
/* Codes, each in the upper byte of a half. */
INLINE Halves v_codes(const uint8_t *from) {
    return (Halves)_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)from)), 8);
}
INLINE void v_narrow(uint16_t *to, V x) {
    _mm256_storeu_si256((void *)to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE V v_half(V x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)

#include <immintrin.h>
#define SET avx2
enum { LANES = 8 };
typedef __m256 V;
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

INLINE V v_load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void v_store(float *to, V x) { _mm256_storeu_ps(to, x); }
INLINE __m256i v_first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE V v_load_part(const float *from, int64_t count) { return _mm256_maskload_ps(from, v_first(count)); }
/* In pieces of 4, 2 and 1: AMD's masked stores take tens of operations. */
INLINE void v_store_part(float *to, V x, int64_t count) {
    __m128 part = _mm256_castps256_ps128(x);
    if (count & 4) {
        _mm_storeu_ps(to, part);
        part = _mm256_extractf128_ps(x, 1);
        to += 4;
    }
    if (count & 2) {
        _mm_storel_pi((__m64 *)to, part);
        part = _mm_movehl_ps(part, part);
        to += 2;
    }
    if (count & 1) _mm_store_ss(to, part);
}
INLINE V v_all(float x) { return _mm256_set1_ps(x); }
INLINE V v_add(V x, V y) { return _mm256_add_ps(x, y); }
INLINE V v_sub(V x, V y) { return _mm256_sub_ps(x, y); }
INLINE V v_mul(V x, V y) { return _mm256_mul_ps(x, y); }
INLINE V v_div(V x, V y) { return _mm256_div_ps(x, y); }
INLINE V v_sum(V x, V y, V sum) { return _mm256_fmadd_ps(x, y, sum); }
/* The same, and loads, in the order of the source, each sum in its register: compilers that choose run out of
   the sixteen, and keep sums in memory. */
INLINE V v_sum_in_order(V x, V y, V sum) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
    return sum;
}
INLINE V v_in_order(V x) {
    __asm__ volatile("" : "+x"(x)::"memory");
    return x;
}
INLINE V v_max(V x, V y) { return _mm256_max_ps(x, y); }
INLINE V v_min(V x, V y) { return _mm256_min_ps(x, y); }
INLINE V v_abs(V x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
INLINE V v_if_less(V x, V y, V yes, V no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
INLINE V v_if_equal(V x, V y, V yes, V no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, y, _CMP_EQ_OQ));
}
INLINE V v_if_nan(V x, V y, V yes, V no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, y, _CMP_UNORD_Q));
}
INLINE int v_are_zero(V x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ)) == 0;
}
INLINE V v_of_halves(Halves halves) { return _mm256_cvtph_ps((__m128i)halves); }
INLINE Halves v_codes(const uint8_t *from) {
    return (Halves)_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const void *)from));
}
INLINE void v_narrow(uint16_t *to, V x) {
    _mm_storeu_si128((void *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
INLINE V v_half(V x) { return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }

#else

/* What is written with operators here becomes NEON's instructions on aarch64. */
#if defined(SIMIPU_NEON)
#include <arm_neon.h>
#define SET neon
#else
#define SET portable
#endif
enum { LANES = 4 };
typedef float V __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

INLINE V v_load(const float *from) {
    V x;
    memcpy(&x, from, sizeof x);
    return x;
}
INLINE void v_store(float *to, V x) { memcpy(to, &x, sizeof x); }
INLINE V v_all(float x) { return (V){x, x, x, x}; }
INLINE I i_all(int32_t x) { return (I){x, x, x, x}; }
#if defined(SIMIPU_NEON)
INLINE V v_choose(I mask, V yes, V no) {
    return (V)vbslq_f32((uint32x4_t)mask, (float32x4_t)yes, (float32x4_t)no);
}
INLINE V v_sum(V x, V y, V sum) { return (V)vfmaq_f32((float32x4_t)sum, (float32x4_t)x, (float32x4_t)y); }
#else
INLINE V v_choose(I mask, V yes, V no) { return (V)(((I)yes & mask) | ((I)no & ~mask)); }
INLINE V v_sum(V x, V y, V sum) { return x * y + sum; } /* the product is exact, see kernels.h */
#endif
INLINE V v_add(V x, V y) { return x + y; }
INLINE V v_sub(V x, V y) { return x - y; }
INLINE V v_mul(V x, V y) { return x * y; }
INLINE V v_div(V x, V y) { return x / y; }
INLINE V v_max(V x, V y) { return v_choose(x > y, x, y); }
INLINE V v_min(V x, V y) { return v_choose(x < y, x, y); }
INLINE V v_abs(V x) { return (V)((I)x & i_all(0x7FFFFFFF)); }
INLINE V v_if_less(V x, V y, V yes, V no) { return v_choose(x < y, yes, no); }
INLINE V v_if_equal(V x, V y, V yes, V no) { return v_choose(x == y, yes, no); }
INLINE V v_if_nan(V x, V y, V yes, V no) { return v_choose((x != x) | (y != y), yes, no); }
INLINE int v_are_zero(V x) {
    I other = x != v_all(0);
    return (other[0] | other[1] | other[2] | other[3]) == 0;
}
#if defined(SIMIPU_NEON)
/* The processor rounds to nearest, and flushes nothing, unless a process asks it to. */
INLINE float16x4_t v_halves(V x) { return vcvt_f16_f32((float32x4_t)x); }
INLINE V v_half(V x) { return (V)vcvt_f32_f16(v_halves(x)); }
INLINE void v_narrow(uint16_t *to, V x) { vst1_u16(to, vreinterpret_u16_f16(v_halves(x))); }
INLINE V v_of_halves(Halves halves) { return (V)vcvt_f32_f16((float16x4_t)halves); }
#else
/* As whole numbers: normal halves have 13 bits less; below 2^-14 the last bit is that of 0.5 as a float.

        float   s eeeeeeee mmmmmmmmmm|mmmmmmmmmmmmm    0xFFF and the last kept bit are added to the 13 bits
                                      dropped          that are dropped: to nearest, ties to even */
INLINE V v_half(V x) {
    I bits = (I)x, sign = bits & i_all((int32_t)0x80000000u), rest = bits ^ sign;
    I normal = (I)((U)rest + 0xFFF + ((U)rest >> 13 & 1)) & ~i_all(0x1FFF); /* a NaN's wraps around */
    I small = (I)(((V)rest + v_all(0.5f)) - v_all(0.5f));
    I rounded = (I)v_choose(rest < i_all(0x38800000), (V)small, (V)normal);
    I infinite = (I)v_choose(rounded > i_all(0x477FE000), (V)i_all(0x7F800000), (V)rounded);
    I nan = rest | i_all(0x00400000);
    return (V)((I)v_choose(rest > i_all(0x7F800000), (V)(nan & ~i_all(0x1FFF)), (V)infinite) | sign);
}
INLINE V v_of_halves(Halves halves) {
    I bits = __builtin_convertvector(halves, I);
    I sign = (bits & i_all(0x8000)) << 16, rest = (bits & i_all(0x7FFF)) << 13;
    V value = (V)rest * v_all(0x1p112f); /* the exponent counted from 127 instead of 15; exact */
    I special = rest >= i_all(0x0F800000);
    return (V)((I)v_choose(special, (V)(rest | i_all(0x7F800000)), value) | sign);
}
/* Of values that are halves or NaN: their bits. */
INLINE void v_narrow(uint16_t *to, V x) {
    V half = v_half(x);
    I bits = (I)half, sign = (bits >> 16) & i_all(0x8000), rest = bits & i_all(0x7FFFFFFF);
    I small = __builtin_convertvector((V)rest * v_all(0x1p24f), I);
    I normal = (rest - i_all(112 << 23)) >> 13;
    I most = (rest >> 13) & i_all(0x3FF);
    I made = (I)v_choose(rest < i_all(0x38800000), (V)small, (V)normal);
    made = (I)v_choose(rest >= i_all(0x7F800000), (V)(i_all(0x7C00) | most), (V)made) | sign;
    Halves halves = __builtin_convertvector(made & i_all(0xFFFF), Halves);
    memcpy(to, &halves, sizeof halves);
}
#endif
INLINE Halves v_codes(const uint8_t *from) {
    uint8_t codes __attribute__((vector_size(LANES)));
    memcpy(&codes, from, sizeof codes);
    return __builtin_convertvector(codes, Halves) << 8;
}
INLINE V v_load_part(const float *from, int64_t count) {
    float held[LANES] = {0};
    memcpy(held, from, (size_t)count * sizeof *held);
    return v_load(held);
}
INLINE void v_store_part(float *to, V x, int64_t count) { memcpy(to, &x, (size_t)count * sizeof *to); }

#endif

#if !defined(__AVX2__) || defined(__AVX512F__)
INLINE V v_sum_in_order(V x, V y, V sum) { return v_sum(x, y, sum); }
INLINE V v_in_order(V x) { return x; }
#endif

INLINE V v_widen(const uint16_t *from) {
    Halves halves;
    memcpy(&halves, from, sizeof halves);
    return v_of_halves(halves);
}
INLINE V v_widen_part(const uint16_t *from, int64_t count) {
    Halves halves = {0};
#if defined(__AVX512F__)
    halves = (Halves)_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), from);
#else
    memcpy(&halves, from, (size_t)count * sizeof *from);
#endif
    return v_of_halves(halves);
}

#if defined(__AVX2__) && defined(__x86_64__)

/* Halves replaced by a table's elements; each is inserted where it belongs, so that none is put together with
   others in whole registers. */
INLINE __m128i v_look_up_8(const uint16_t *table, __m128i halves) {
    uint64_t low = (uint64_t)_mm_cvtsi128_si64(halves), high = (uint64_t)_mm_extract_epi64(halves, 1);
    __m128i first = _mm_cvtsi32_si128(table[low & 0xFFFF]), second = _mm_cvtsi32_si128(table[high & 0xFFFF]);
    first = _mm_insert_epi16(first, table[low >> 16 & 0xFFFF], 1);
    second = _mm_insert_epi16(second, table[high >> 16 & 0xFFFF], 1);
    first = _mm_insert_epi16(first, table[low >> 32 & 0xFFFF], 2);
    second = _mm_insert_epi16(second, table[high >> 32 & 0xFFFF], 2);
    first = _mm_insert_epi16(first, table[low >> 48], 3);
    second = _mm_insert_epi16(second, table[high >> 48], 3);
    return _mm_unpacklo_epi64(first, second);
}

/* Of values that are halves or NaN: the table's elements at their bits. All stays in registers: to read what
   was just written in other pieces takes long. */
INLINE V v_look_up(const uint16_t *table, V x) {
#if defined(__AVX512F__)
    __m256i halves = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m128i low = v_look_up_8(table, _mm256_castsi256_si128(halves));
    __m128i high = v_look_up_8(table, _mm256_extracti128_si256(halves, 1));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
#else
    return _mm256_cvtph_ps(v_look_up_8(table, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)));
#endif
}

#else

INLINE V v_look_up(const uint16_t *table, V x) {
    uint16_t halves[LANES];
    v_narrow(halves, x);
    for (int i = 0; i < LANES; i++) halves[i] = table[halves[i]];
    return v_widen(halves);
}

#endif

/* LANES registers of LANES floats, turned: lane j of register i becomes lane i of register j. Pairs of
   registers exchange halves, quarters, ... single lanes. */
typedef int32_t Lanes __attribute__((vector_size(LANES * 4)));
typedef float Floats __attribute__((vector_size(LANES * 4)));

/* Every other one of 2 * LANES floats. */
INLINE V v_evens(V low, V high) {
    Lanes evens;
    for (int lane = 0; lane < LANES; lane++) evens[lane] = 2 * lane;
    return (V)__builtin_shuffle((Floats)low, (Floats)high, evens);
}

INLINE void v_exchange(V rows[LANES], int step) {
    Lanes low = {0}, high = {0}; /* of each lane where it comes from: of the first register, or from LANES on
                                    of the second */
    for (int lane = 0; lane < LANES; lane++) {
        low[lane] = lane & step ? lane - step + LANES : lane;
        high[lane] = lane & step ? lane + LANES : lane + step;
    }
    for (int i = 0; i < LANES; i++) {
        if (i & step) continue;
        Floats first = (Floats)rows[i], second = (Floats)rows[i + step];
        rows[i] = (V)__builtin_shuffle(first, second, low);
        rows[i + step] = (V)__builtin_shuffle(first, second, high);
    }
}

INLINE void v_turn(V rows[LANES]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    /* Lanes, pairs and halves, by instructions that AMD is fast at: one that compilers choose for halves
       takes eight times as long there. */
    V pairs[LANES], fours[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < LANES; i++) {
        __m256d first = _mm256_castps_pd(pairs[i / 4 * 4 + i % 4 / 2]);
        __m256d second = _mm256_castps_pd(pairs[i / 4 * 4 + i % 4 / 2 + 2]);
        fours[i] =
            _mm256_castpd_ps(i % 2 ? _mm256_unpackhi_pd(first, second) : _mm256_unpacklo_pd(first, second));
    }
    for (int i = 0; i < 4; i++) {
        __m256 high = _mm256_castps128_ps256(_mm256_extractf128_ps(fours[i], 1));
        rows[i] = _mm256_insertf128_ps(fours[i], _mm256_castps256_ps128(fours[i + 4]), 1);
        rows[i + 4] = _mm256_blend_ps(fours[i + 4], high, 0x0F);
    }
#else
    if (LANES > 8) v_exchange(rows, 8);
    if (LANES > 4) v_exchange(rows, 4);
    v_exchange(rows, 2);
    v_exchange(rows, 1);
#endif
}

/* x min(max(x + 3, 0), 6) / 6 of finite halves: the nearest half to it. */
INLINE V v_hard_swish(V x) {
    V gate = v_min(v_all(6), v_max(v_all(0), v_add(x, v_all(3)))), least = v_all(0x1p-24f);
    V swish = v_add(v_half(v_mul(v_mul(x, gate), v_all(1.0f / 6))), v_all(0)); /* no -0 */
    return v_if_equal(x, least, least, swish); /* as floats, half of it is in the middle of two halves */
}

/* The names of what is compiled for each set. */
#define JOIN_(name, set) name##_##set
#define JOIN(name, set) JOIN_(name, set)
#define OF_SET(name) JOIN(name, SET)

/* 8-bit codes as halves, by whole numbers of 16 bits. F143 counts exponents from 8 and a half from 15: these
   halves are the values times 2^-7, subnormals too.

       code, F143    s eeee mmm 00000000     shifted by 1, the sign not
       half          s 0eeee mmm0000000

   F152 counts exponents from 16: one less is a half's, and with exponents 0 and 1 a half is subnormal.

       code, F152    s eeeee mm 00000000     the rest less 1 << 10, or shifted by 1 where that is more
       half          s eeeee mm00000000

   Code 0x80 is NaN; its bits as a half, negative zero's, are exchanged for NaN's. */
INLINE V v_decode_halves(const uint8_t *from, int is_f152) {
    typedef int16_t Words __attribute__((vector_size(2 * LANES)));
    Words bits = (Words)v_codes(from), made;
    Words nan = (bits == INT16_MIN) & (Words)((Halves){0} + (0x8000 ^ 0x7E00));
    if (is_f152) {
        Words rest = bits & 0x7F00, less = rest - 0x0400, subnormal = rest >> 1, is_less = subnormal > less;
        made = (bits & INT16_MIN) | (subnormal & is_less) | (less & ~is_less);
    } else {
        made = bits >> 1 & (Words)((Halves){0} + 0xBFFF);
    }
    return v_of_halves((Halves)(made ^ nan));
}

/* What these are multiplied by to be the values of codes of `unit`. */
INLINE float unit_of_halves(float unit, int is_f152) { return is_f152 ? unit : unit * 0x1p7f; }

/* To half, too large values to the largest; NaN stays, and infinities unless `growing`. */
INLINE V v_half_bounded(V x, int growing) {
    V half = v_half(v_max(v_all(-HALF_MAX), v_min(v_all(HALF_MAX), x)));
    return growing ? half : v_if_equal(v_abs(x), v_all(__builtin_inff()), x, half);
}

/* To half, too large values to NaN; infinities stay unless `growing`. */
INLINE V v_half_or_nan(V x, int growing) {
    V half = v_half(x), infinity = v_all(__builtin_inff()), nan = v_all(__builtin_nanf(""));
    V lost = growing ? nan : v_if_equal(v_abs(x), infinity, half, nan);
    return v_if_equal(v_abs(half), infinity, lost, half);
}

#endif
