# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 69 instructions
held_write_8:
        mov     rax,QWORD PTR [rdi+0x30]
        mov     r8d,eax
        movzx   r9d,ax
        shl     r9d,0x8
        or      r9d,0x8
        bswap   r9d
        movd    xmm0,r9d
        por     xmm0,XMMWORD PTR [rdi+0x20]
        por     xmm0,XMMWORD PTR [00000000000000030000000000000000]
        cmp     QWORD PTR [rdi+0x38],rax
        je      .2
        inc     rax
.1:
        movq    xmm1,rsi
        pslldq  xmm1,0x4
        por     xmm1,XMMWORD PTR [80000008000000000000000000000000]
        bswap   rdx
        bswap   ecx
        movd    xmm2,ecx
        movq    xmm3,rdx
        punpcklqdq xmm3,xmm2
        mov     rcx,QWORD PTR [rdi]
        mov     edx,DWORD PTR [rdi+0x8]
        and     edx,r8d
        shl     rdx,0x6
        movdqa  XMMWORD PTR [rcx+rdx*1],xmm0
        movdqa  XMMWORD PTR [rcx+rdx*1+0x10],xmm3
        movdqa  XMMWORD PTR [rcx+rdx*1+0x20],xmm1
        mov     QWORD PTR [rdi+0x30],rax
        mov     rcx,QWORD PTR [rdi+0x10]
        movzx   eax,ax
        bswap   eax
        mov     DWORD PTR [rcx],eax
        sfence
        mov     rax,QWORD PTR [rdi+0x18]
        mov     rcx,QWORD PTR [rax+0x200]
        movdqa  XMMWORD PTR [rcx],xmm0
        movdqa  XMMWORD PTR [rcx+0x10],xmm3
        movdqa  XMMWORD PTR [rcx+0x20],xmm1
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rcx+0x30],xmm0
        xor     rcx,0x100
        mov     QWORD PTR [rax+0x200],rcx
        mov     al,0x1
        ret
.2:
        mov     r9d,DWORD PTR [rdi+0x40]
        mov     r10d,eax
        sub     r10d,r9d
        cmp     DWORD PTR [rdi+0x5c],r10d
        jne     .3
        xor     eax,eax
        ret
.3:
        inc     rax
        test    QWORD PTR [rdi+0x50],rax
        jne     .4
        or      BYTE PTR [rdi+0x58],0x8
.4:
        movd    xmm1,DWORD PTR [rdi+0x58]
        pslld   xmm1,0x18
        pslldq  xmm1,0x8
        mov     BYTE PTR [rdi+0x58],0x0
        mov     r9,QWORD PTR [rdi+0x50]
        or      r9,rax
        mov     QWORD PTR [rdi+0x48],r9
        mov     r10d,DWORD PTR [rdi+0x5c]
        add     r10,QWORD PTR [rdi+0x40]
        cmp     r10,r9
        cmovae  r10,r9
        mov     QWORD PTR [rdi+0x38],r10
        por     xmm0,xmm1
        jmp     .1
