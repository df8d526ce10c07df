# rustc 1.95.0 (59807616e 2026-04-14), Armv8.0-A baseline; BLESS=1 cargo xtask asm writes this file
# 146 instructions
held_write_segment:
        rev     x8, x4
        rev     w9, w5
        fmov    d0, x8
        mov     v0.d[1], x9
        mov     x9, #0x2
        movk    x9, #0x8, lsl #32
        cbz     w2, .2
        ldp     x8, x10, [x0, #48]
        movi    v1.2d, #0x0
        ldr     q2, [x0, #32]
        bfi     x9, x8, #40, #16
        cmp     x10, x8
        add     x9, x9, #0x1
        rev     x9, x9
        mov     v1.d[0], x9
        orr     v1.16b, v1.16b, v2.16b
        b.eq    .4
        add     x9, x8, #0x1
.1:
        mov     w10, w3
        ldr     x11, [x0]
        movi    v3.2d, #0x0
        orr     x10, x10, x2, lsl #32
        fmov    d2, x10
        ldr     w10, [x0, #8]
        and     w8, w10, w8
        mov     v2.d[1], x1
        add     x8, x11, x8, lsl #6
        str     q1, [x8]
        str     q0, [x8, #16]
        rev64   v2.16b, v2.16b
        str     q2, [x8, #32]
        and     w8, w9, #0xffff
        str     x9, [x0, #48]
        rev     w8, w8
        dmb     ish
        dmb     oshst
        ldr     x9, [x0, #16]
        stlr    w8, [x9]
        dsb     st
        ldr     x8, [x0, #24]
        ldr     x9, [x8, #512]
        str     q1, [x9]
        str     q0, [x9, #16]
        str     q2, [x9, #32]
        str     q3, [x9, #48]
        hint    #0x6
        eor     x9, x9, #0x100
        mov     w0, #0x1
        str     x9, [x8, #512]
        ret
.2:
        ldp     x8, x10, [x0, #48]
        movi    v1.2d, #0x0
        ldr     q2, [x0, #32]
        bfi     x9, x8, #40, #16
        cmp     x10, x8
        rev     x9, x9
        mov     v1.d[0], x9
        orr     v1.16b, v1.16b, v2.16b
        b.eq    .7
        add     x9, x8, #0x1
.3:
        ldr     w10, [x0, #8]
        ldr     x11, [x0]
        movi    v2.2d, #0x0
        and     w8, w10, w8
        add     x8, x11, x8, lsl #6
        str     q1, [x8]
        str     q0, [x8, #16]
        and     w8, w9, #0xffff
        str     x9, [x0, #48]
        rev     w8, w8
        dmb     ish
        dmb     oshst
        ldr     x9, [x0, #16]
        stlr    w8, [x9]
        dsb     st
        ldr     x8, [x0, #24]
        ldr     x9, [x8, #512]
        str     q1, [x9]
        str     q0, [x9, #16]
        str     q2, [x9, #32]
        str     q2, [x9, #48]
        hint    #0x6
        eor     x9, x9, #0x100
        mov     w0, #0x1
        str     x9, [x8, #512]
        ret
.4:
        ldr     w9, [x0, #64]
        ldr     w10, [x0, #92]
        sub     w9, w8, w9
        cmp     w10, w9
        b.ne    .5
        mov     w0, wzr
        ret
.5:
        ldr     x10, [x0, #80]
        add     x9, x8, #0x1
        tst     x10, x9
        b.ne    .6
        ldrb    w10, [x0, #88]
        orr     w10, w10, #0x8
        strb    w10, [x0, #88]
.6:
        ldrb    w10, [x0, #88]
        movi    v2.2d, #0x0
        strb    wzr, [x0, #88]
        ldr     x11, [x0, #80]
        lsl     x10, x10, #24
        mov     v2.d[1], x10
        orr     x10, x11, x9
        str     x10, [x0, #72]
        ldr     x11, [x0, #64]
        ldr     w12, [x0, #92]
        add     x11, x11, x12
        orr     v1.16b, v2.16b, v1.16b
        cmp     x11, x10
        csel    x10, x11, x10, cc
        str     x10, [x0, #56]
        b       .1
.7:
        ldr     w9, [x0, #64]
        ldr     w10, [x0, #92]
        sub     w9, w8, w9
        cmp     w10, w9
        b.ne    .8
        mov     w0, wzr
        ret
.8:
        ldr     x10, [x0, #80]
        add     x9, x8, #0x1
        tst     x10, x9
        b.ne    .9
        ldrb    w10, [x0, #88]
        orr     w10, w10, #0x8
        strb    w10, [x0, #88]
.9:
        ldrb    w10, [x0, #88]
        movi    v2.2d, #0x0
        strb    wzr, [x0, #88]
        ldr     x11, [x0, #80]
        lsl     x10, x10, #24
        mov     v2.d[1], x10
        orr     x10, x11, x9
        str     x10, [x0, #72]
        ldr     x11, [x0, #64]
        ldr     w12, [x0, #92]
        add     x11, x11, x12
        orr     v1.16b, v2.16b, v1.16b
        cmp     x11, x10
        csel    x10, x11, x10, cc
        str     x10, [x0, #56]
        b       .3
