# rustc 1.95.0 (59807616e 2026-04-14), Armv8.0-A baseline; BLESS=1 cargo xtask asm writes this file
# 79 instructions
held_write_8:
        ldp     x8, x10, [x0, #48]
        mov     x9, #0x3
        movk    x9, #0x8, lsl #32
        movi    v0.2d, #0x0
        ldr     q1, [x0, #32]
        bfi     x9, x8, #40, #16
        cmp     x10, x8
        rev     x9, x9
        mov     v0.d[0], x9
        orr     v0.16b, v0.16b, v1.16b
        b.eq    .2
        add     x9, x8, #0x1
.1:
        mov     w10, #0x80
        rev     x12, x2
        lsr     x11, x1, #32
        movk    w10, #0x800, lsl #16
        fmov    d1, x12
        ldr     w13, [x0, #8]
        orr     x10, x10, x1, lsl #32
        rev     w14, w3
        ldr     x12, [x0]
        and     w8, w13, w8
        movi    v3.2d, #0x0
        fmov    d2, x10
        mov     v1.d[1], x14
        add     x8, x12, x8, lsl #6
        str     q0, [x8]
        mov     v2.d[1], x11
        str     q1, [x8, #16]
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
        mov     w0, #0x1
        ldr     x9, [x8, #512]
        str     q0, [x9]
        str     q1, [x9, #16]
        str     q2, [x9, #32]
        str     q3, [x9, #48]
        eor     x9, x9, #0x100
        hint    #0x6
        str     x9, [x8, #512]
        ret
.2:
        ldr     w9, [x0, #64]
        ldr     w10, [x0, #92]
        sub     w9, w8, w9
        cmp     w10, w9
        b.ne    .3
        mov     w0, wzr
        ret
.3:
        ldr     x10, [x0, #80]
        add     x9, x8, #0x1
        tst     x10, x9
        b.ne    .4
        ldrb    w10, [x0, #88]
        orr     w10, w10, #0x8
        strb    w10, [x0, #88]
.4:
        ldrb    w10, [x0, #88]
        movi    v1.2d, #0x0
        strb    wzr, [x0, #88]
        ldr     x11, [x0, #80]
        lsl     x10, x10, #24
        mov     v1.d[1], x10
        orr     x10, x11, x9
        str     x10, [x0, #72]
        ldr     x11, [x0, #64]
        ldr     w12, [x0, #92]
        add     x11, x11, x12
        orr     v0.16b, v1.16b, v0.16b
        cmp     x11, x10
        csel    x10, x11, x10, cc
        str     x10, [x0, #56]
        b       .1
