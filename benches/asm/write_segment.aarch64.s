# rustc 1.95.0 (59807616e 2026-04-14), Armv8.0-A baseline; BLESS=1 cargo xtask asm writes this file
# 129 instructions
held_write_segment:
        rev     x8, x4
        rev     w9, w5
        fmov    d0, x8
        mov     v0.d[1], x9
        cbz     w2, .3
        ldr     w9, [x0, #56]
        ldr     x8, [x0, #48]
        cmp     w9, w8
        b.ne    .1
        mov     w0, wzr
        ret
.1:
        mov     w9, w3
        mov     w10, #0x8
        movi    v3.2d, #0x0
        orr     x9, x9, x2, lsl #32
        bfi     w10, w8, #8, #16
        ldr     q4, [x0, #32]
        movi    v2.2d, #0x0
        fmov    d1, x9
        rev     w9, w10
        ldr     w10, [x0, #60]
        orr     x9, x9, #0x300000000000000
        mov     v3.d[0], x9
        add     w9, w8, #0x1
        mov     v1.d[1], x1
        cmp     w9, w10
        orr     v3.16b, v4.16b, v3.16b
        rev64   v1.16b, v1.16b
        b.eq    .6
.2:
        ldr     w9, [x0, #8]
        ldr     x10, [x0]
        and     w9, w9, w8
        add     x8, x8, #0x1
        add     x9, x10, x9, lsl #6
        str     q3, [x9]
        str     q0, [x9, #16]
        str     q1, [x9, #32]
        str     x8, [x0, #48]
        and     w8, w8, #0xffff
        dmb     ish
        rev     w8, w8
        dmb     oshst
        ldr     x9, [x0, #16]
        stlr    w8, [x9]
        dsb     st
        ldr     x8, [x0, #24]
        ldr     x9, [x8, #512]
        str     q3, [x9]
        str     q0, [x9, #16]
        str     q1, [x9, #32]
        str     q2, [x9, #48]
        hint    #0x6
        eor     x9, x9, #0x100
        mov     w0, #0x1
        str     x9, [x8, #512]
        ret
.3:
        ldr     w9, [x0, #56]
        ldr     x8, [x0, #48]
        cmp     w9, w8
        b.ne    .4
        mov     w0, wzr
        ret
.4:
        mov     w9, #0x8
        movi    v2.2d, #0x0
        ldr     q3, [x0, #32]
        bfi     w9, w8, #8, #16
        movi    v1.2d, #0x0
        ldr     w10, [x0, #60]
        rev     w9, w9
        orr     x9, x9, #0x200000000000000
        mov     v2.d[0], x9
        add     w9, w8, #0x1
        cmp     w9, w10
        orr     v2.16b, v3.16b, v2.16b
        b.eq    .7
.5:
        ldr     w9, [x0, #8]
        ldr     x10, [x0]
        and     w9, w9, w8
        add     x8, x8, #0x1
        add     x9, x10, x9, lsl #6
        str     q2, [x9]
        str     q0, [x9, #16]
        str     x8, [x0, #48]
        and     w8, w8, #0xffff
        dmb     ish
        rev     w8, w8
        dmb     oshst
        ldr     x9, [x0, #16]
        stlr    w8, [x9]
        dsb     st
        ldr     x8, [x0, #24]
        ldr     x9, [x8, #512]
        str     q2, [x9]
        str     q0, [x9, #16]
        str     q1, [x9, #32]
        str     q1, [x9, #48]
        hint    #0x6
        eor     x9, x9, #0x100
        mov     w0, #0x1
        str     x9, [x8, #512]
        ret
.6:
        ldrb    w10, [x0, #64]
        ldr     w11, [x0, #68]
        movi    v4.2d, #0x0
        strb    wzr, [x0, #64]
        orr     w12, w10, #0x8
        tst     w11, w9
        orr     w9, w11, w9
        csel    w10, w12, w10, eq
        add     w9, w9, #0x1
        lsl     w10, w10, #24
        str     w9, [x0, #60]
        mov     v4.d[1], x10
        orr     v3.16b, v4.16b, v3.16b
        b       .2
.7:
        ldrb    w10, [x0, #64]
        ldr     w11, [x0, #68]
        movi    v3.2d, #0x0
        strb    wzr, [x0, #64]
        orr     w12, w10, #0x8
        tst     w11, w9
        orr     w9, w11, w9
        csel    w10, w12, w10, eq
        add     w9, w9, #0x1
        lsl     w10, w10, #24
        str     w9, [x0, #60]
        mov     v3.d[1], x10
        orr     v2.16b, v3.16b, v2.16b
        b       .5
