# rustc 1.95.0 (59807616e 2026-04-14), Armv8.0-A baseline; BLESS=1 cargo xtask asm writes this file
# 27 instructions
held_poll:
        ldr     x8, [x0]
        ldr     x8, [x8, #56]
        ldr     x9, [x0, #48]
        eor     x1, x9, x8
        tbnz    x1, #56, .1
        dmb     ishld
        dmb     oshld
        ldr     x8, [x0]
        ldr     x9, [x0, #16]
        add     x10, x8, #0x40
        cmp     x10, x9
        str     x10, [x0]
        b.eq    .2
        mov     x0, x8
        ret
.1:
        mov     x0, xzr
        ret
.2:
        ldr     x9, [x0, #8]
        ldr     w10, [x0, #56]
        ldr     x11, [x0, #48]
        str     x9, [x0]
        add     w9, w10, #0x1
        eor     x10, x11, #0x100000000000000
        str     w9, [x0, #56]
        str     x10, [x0, #48]
        mov     x0, x8
        ret
