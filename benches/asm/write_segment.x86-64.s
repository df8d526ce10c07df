# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 124 instructions
held_write_segment:
        bswap   r8
        bswap   r9d
        movd    xmm1,r9d
        movq    xmm0,r8
        punpcklqdq xmm0,xmm1
        test    edx,edx
        je      .3
        mov     r8,QWORD PTR [rdi+0x30]
        movzx   eax,r8w
        shl     eax,0x8
        or      eax,0x8
        bswap   eax
        movd    xmm1,eax
        por     xmm1,XMMWORD PTR [rdi+0x20]
        por     xmm1,XMMWORD PTR [00000000000000030000000000000000]
        cmp     QWORD PTR [rdi+0x38],r8
        je      .5
        mov     rax,r8
        inc     rax
.1:
        bswap   rsi
        mov     ecx,ecx
        shl     rdx,0x20
        or      rdx,rcx
        bswap   rdx
        movq    xmm2,rdx
        movq    xmm3,rsi
        punpcklqdq xmm2,xmm3
        mov     rcx,QWORD PTR [rdi]
        mov     edx,DWORD PTR [rdi+0x8]
        and     edx,r8d
        shl     rdx,0x6
        movdqa  XMMWORD PTR [rcx+rdx*1],xmm1
        movdqa  XMMWORD PTR [rcx+rdx*1+0x10],xmm0
        movdqa  XMMWORD PTR [rcx+rdx*1+0x20],xmm2
        mov     QWORD PTR [rdi+0x30],rax
.2:
        mov     rcx,QWORD PTR [rdi+0x10]
        movzx   eax,ax
        bswap   eax
        mov     DWORD PTR [rcx],eax
        sfence
        mov     rax,QWORD PTR [rdi+0x18]
        mov     rcx,QWORD PTR [rax+0x200]
        movdqa  XMMWORD PTR [rcx],xmm1
        movdqa  XMMWORD PTR [rcx+0x10],xmm0
        movdqa  XMMWORD PTR [rcx+0x20],xmm2
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rcx+0x30],xmm0
        xor     rcx,0x100
        mov     QWORD PTR [rax+0x200],rcx
        mov     al,0x1
        ret
.3:
        mov     rcx,QWORD PTR [rdi+0x30]
        movzx   eax,cx
        shl     eax,0x8
        or      eax,0x8
        bswap   eax
        movd    xmm1,eax
        por     xmm1,XMMWORD PTR [rdi+0x20]
        por     xmm1,XMMWORD PTR [00000000000000020000000000000000]
        cmp     QWORD PTR [rdi+0x38],rcx
        je      .8
        mov     rax,rcx
        inc     rax
.4:
        mov     rdx,QWORD PTR [rdi]
        mov     esi,DWORD PTR [rdi+0x8]
        and     esi,ecx
        shl     rsi,0x6
        movdqa  XMMWORD PTR [rdx+rsi*1],xmm1
        movdqa  XMMWORD PTR [rdx+rsi*1+0x10],xmm0
        mov     QWORD PTR [rdi+0x30],rax
        pxor    xmm2,xmm2
        jmp     .2
.5:
        mov     eax,DWORD PTR [rdi+0x40]
        mov     r9d,r8d
        sub     r9d,eax
        cmp     DWORD PTR [rdi+0x5c],r9d
        jne     .6
        xor     eax,eax
        ret
.6:
        mov     rax,r8
        inc     rax
        test    QWORD PTR [rdi+0x50],rax
        jne     .7
        or      BYTE PTR [rdi+0x58],0x8
.7:
        movd    xmm2,DWORD PTR [rdi+0x58]
        pslld   xmm2,0x18
        pslldq  xmm2,0x8
        mov     BYTE PTR [rdi+0x58],0x0
        mov     r9,QWORD PTR [rdi+0x50]
        or      r9,rax
        mov     QWORD PTR [rdi+0x48],r9
        mov     r10d,DWORD PTR [rdi+0x5c]
        add     r10,QWORD PTR [rdi+0x40]
        cmp     r10,r9
        cmovae  r10,r9
        mov     QWORD PTR [rdi+0x38],r10
        por     xmm1,xmm2
        jmp     .1
.8:
        mov     eax,DWORD PTR [rdi+0x40]
        mov     edx,ecx
        sub     edx,eax
        cmp     DWORD PTR [rdi+0x5c],edx
        jne     .9
        xor     eax,eax
        ret
.9:
        mov     rax,rcx
        inc     rax
        test    QWORD PTR [rdi+0x50],rax
        jne     .10
        or      BYTE PTR [rdi+0x58],0x8
.10:
        movd    xmm2,DWORD PTR [rdi+0x58]
        pslld   xmm2,0x18
        pslldq  xmm2,0x8
        mov     BYTE PTR [rdi+0x58],0x0
        mov     rdx,QWORD PTR [rdi+0x50]
        or      rdx,rax
        mov     QWORD PTR [rdi+0x48],rdx
        mov     esi,DWORD PTR [rdi+0x5c]
        add     rsi,QWORD PTR [rdi+0x40]
        cmp     rsi,rdx
        cmovae  rsi,rdx
        mov     QWORD PTR [rdi+0x38],rsi
        por     xmm1,xmm2
        jmp     .4
