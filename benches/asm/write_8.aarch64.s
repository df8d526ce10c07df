# rustc 1.95.0 (59807616e 2026-04-14), Armv8.0-A baseline; BLESS=1 cargo xtask asm writes this file
# 69 instructions
held_write_8:
        ldr     w8, [x0, #56]
        ldr     x9, [x0, #48]
        cmp     w8, w9
        b.eq    .2
        mov     w10, #0x8
        movi    v3.2d, #0x0
        mov     w11, #0x80
        bfi     w10, w9, #8, #16
        movk    w11, #0x800, lsl #16
        rev     x12, x2
        orr     x11, x11, x1, lsl #32
        fmov    d1, x12
        rev     w13, w3
        rev     w10, w10
        ldr     q4, [x0, #32]
        movi    v2.2d, #0x0
        orr     x10, x10, #0x300000000000000
        fmov    d0, x11
        ldr     w11, [x0, #60]
        mov     v3.d[0], x10
        lsr     x10, x1, #32
        mov     v1.d[1], x13
        mov     v0.d[1], x10
        add     w10, w9, #0x1
        cmp     w10, w11
        orr     v3.16b, v4.16b, v3.16b
        b.eq    .3
.1:
        ldr     w10, [x0, #8]
        ldr     x11, [x0]
        and     w10, w10, w9
        add     x10, x11, x10, lsl #6
        add     x11, x9, #0x1
        str     q3, [x10]
        str     q1, [x10, #16]
        str     q0, [x10, #32]
        and     w10, w11, #0xffff
        str     x11, [x0, #48]
        rev     w10, w10
        dmb     ish
        dmb     oshst
        ldr     x11, [x0, #16]
        stlr    w10, [x11]
        dsb     st
        ldr     x10, [x0, #24]
        ldr     x11, [x10, #512]
        str     q3, [x11]
        str     q1, [x11, #16]
        str     q0, [x11, #32]
        str     q2, [x11, #48]
        eor     x11, x11, #0x100
        hint    #0x6
        str     x11, [x10, #512]
.2:
        cmp     w8, w9
        cset    w0, ne
        ret
.3:
        ldrb    w11, [x0, #64]
        ldr     w12, [x0, #68]
        movi    v4.2d, #0x0
        strb    wzr, [x0, #64]
        orr     w13, w11, #0x8
        tst     w12, w10
        orr     w10, w12, w10
        csel    w11, w13, w11, eq
        add     w10, w10, #0x1
        lsl     w11, w11, #24
        str     w10, [x0, #60]
        mov     v4.d[1], x11
        orr     v3.16b, v4.16b, v3.16b
        b       .1
