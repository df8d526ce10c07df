# rustc 1.95.0 (59807616e 2026-04-14), Armv8.0-A baseline; BLESS=1 cargo xtask asm writes this file
# 34 instructions
held_reap:
        ldr     x8, [x0]
        ldr     x8, [x8, #56]
        ldr     x9, [x0, #48]
        eor     x8, x9, x8
        tbnz    x8, #56, .2
        dmb     ishld
        dmb     oshld
        ldr     x9, [x0]
        ldr     x10, [x0, #16]
        add     x11, x9, #0x40
        cmp     x11, x10
        str     x11, [x0]
        b.eq    .3
.1:
        ldr     x9, [x9, #56]
        ldr     x10, [x1, #48]
        rev     x9, x9
        sub     w9, w10, w9, lsr #16
        sub     x9, x10, w9, uxth
        ldp     x10, x11, [x1, #104]
        cmp     x9, x10
        csinc   x9, x11, x9, eq
        str     x9, [x1, #64]
.2:
        tst     x8, #0x100000000000000
        cset    w0, eq
        ret
.3:
        ldr     x10, [x0, #8]
        ldr     w11, [x0, #56]
        ldr     x12, [x0, #48]
        str     x10, [x0]
        add     w10, w11, #0x1
        eor     x11, x12, #0x100000000000000
        str     w10, [x0, #56]
        str     x11, [x0, #48]
        b       .1
