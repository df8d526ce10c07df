# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 33 instructions
held_reap:
        movabs  rax,0x100000000000000
        mov     rcx,QWORD PTR [rdi]
        mov     rcx,QWORD PTR [rcx+0x38]
        xor     rcx,QWORD PTR [rdi+0x30]
        bt      rcx,0x38
        jb      .4
        mov     rdx,QWORD PTR [rdi]
        lea     r8,[rdx+0x40]
        mov     QWORD PTR [rdi],r8
        cmp     r8,QWORD PTR [rdi+0x10]
        je      .5
.1:
        mov     rdi,QWORD PTR [rdx+0x38]
        bswap   rdi
        shr     edi,0x10
        mov     rdx,QWORD PTR [rsi+0x30]
        mov     r8d,edx
        sub     r8d,edi
        movzx   edi,r8w
        sub     rdx,rdi
        cmp     rdx,QWORD PTR [rsi+0x68]
        jne     .2
        mov     rdx,QWORD PTR [rsi+0x70]
        jmp     .3
.2:
        inc     rdx
.3:
        mov     QWORD PTR [rsi+0x40],rdx
.4:
        test    rcx,rax
        sete    al
        ret
.5:
        mov     r8,QWORD PTR [rdi+0x8]
        mov     QWORD PTR [rdi],r8
        inc     DWORD PTR [rdi+0x38]
        xor     QWORD PTR [rdi+0x30],rax
        jmp     .1
