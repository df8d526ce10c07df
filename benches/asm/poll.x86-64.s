# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 19 instructions
held_poll:
        mov     rax,QWORD PTR [rdi]
        mov     rdx,QWORD PTR [rax+0x38]
        xor     rdx,QWORD PTR [rdi+0x30]
        bt      rdx,0x38
        jb      .1
        mov     rax,QWORD PTR [rdi]
        lea     rcx,[rax+0x40]
        mov     QWORD PTR [rdi],rcx
        cmp     rcx,QWORD PTR [rdi+0x10]
        je      .2
        ret
.1:
        xor     eax,eax
        ret
.2:
        mov     rcx,QWORD PTR [rdi+0x8]
        mov     QWORD PTR [rdi],rcx
        inc     DWORD PTR [rdi+0x38]
        movabs  rcx,0x100000000000000
        xor     QWORD PTR [rdi+0x30],rcx
        ret
