# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 131 instructions
held_write_segment:
        push    rbx
        bswap   r8
        bswap   r9d
        test    edx,edx
        je      .3
        mov     r10,QWORD PTR [rdi+0x30]
        movzx   eax,r10w
        shl     eax,0x8
        or      eax,0x8
        bswap   eax
        movd    xmm0,eax
        por     xmm0,XMMWORD PTR [rdi+0x20]
        por     xmm0,XMMWORD PTR [00000000000000030000000000000000]
        cmp     QWORD PTR [rdi+0x38],r10
        je      .5
        mov     rax,r10
        inc     rax
.1:
        bswap   rsi
        movd    xmm2,r9d
        movq    xmm1,r8
        mov     ecx,ecx
        shl     rdx,0x20
        or      rdx,rcx
        bswap   rdx
        punpcklqdq xmm1,xmm2
        movq    xmm2,rdx
        movq    xmm3,rsi
        punpcklqdq xmm2,xmm3
        mov     rcx,QWORD PTR [rdi]
        mov     edx,DWORD PTR [rdi+0x8]
        and     edx,r10d
        shl     rdx,0x6
        movdqa  XMMWORD PTR [rcx+rdx*1],xmm0
        movdqa  XMMWORD PTR [rcx+rdx*1+0x10],xmm1
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
        movdqa  XMMWORD PTR [rcx],xmm0
        movdqa  XMMWORD PTR [rcx+0x10],xmm1
        movdqa  XMMWORD PTR [rcx+0x20],xmm2
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rcx+0x30],xmm0
        xor     rcx,0x100
        mov     QWORD PTR [rax+0x200],rcx
        mov     al,0x1
        pop     rbx
        ret
.3:
        mov     rcx,QWORD PTR [rdi+0x30]
        movzx   eax,cx
        shl     eax,0x8
        or      eax,0x8
        bswap   eax
        movd    xmm0,eax
        por     xmm0,XMMWORD PTR [rdi+0x20]
        por     xmm0,XMMWORD PTR [00000000000000020000000000000000]
        cmp     QWORD PTR [rdi+0x38],rcx
        je      .8
        mov     rax,rcx
        inc     rax
.4:
        movd    xmm2,r9d
        movq    xmm1,r8
        punpcklqdq xmm1,xmm2
        mov     rdx,QWORD PTR [rdi]
        mov     esi,DWORD PTR [rdi+0x8]
        and     esi,ecx
        shl     rsi,0x6
        movdqa  XMMWORD PTR [rdx+rsi*1],xmm0
        movdqa  XMMWORD PTR [rdx+rsi*1+0x10],xmm1
        mov     QWORD PTR [rdi+0x30],rax
        pxor    xmm2,xmm2
        jmp     .2
.5:
        mov     eax,DWORD PTR [rdi+0x40]
        mov     r11d,r10d
        sub     r11d,eax
        cmp     DWORD PTR [rdi+0x5c],r11d
        jne     .6
        xor     eax,eax
        pop     rbx
        ret
.6:
        mov     rax,r10
        inc     rax
        test    QWORD PTR [rdi+0x50],rax
        jne     .7
        or      BYTE PTR [rdi+0x58],0x8
.7:
        movd    xmm1,DWORD PTR [rdi+0x58]
        pslld   xmm1,0x18
        pslldq  xmm1,0x8
        mov     BYTE PTR [rdi+0x58],0x0
        mov     r11,QWORD PTR [rdi+0x50]
        or      r11,rax
        mov     QWORD PTR [rdi+0x48],r11
        mov     ebx,DWORD PTR [rdi+0x5c]
        add     rbx,QWORD PTR [rdi+0x40]
        cmp     rbx,r11
        cmovae  rbx,r11
        mov     QWORD PTR [rdi+0x38],rbx
        por     xmm0,xmm1
        jmp     .1
.8:
        mov     eax,DWORD PTR [rdi+0x40]
        mov     edx,ecx
        sub     edx,eax
        cmp     DWORD PTR [rdi+0x5c],edx
        jne     .9
        xor     eax,eax
        pop     rbx
        ret
.9:
        mov     rax,rcx
        inc     rax
        test    QWORD PTR [rdi+0x50],rax
        jne     .10
        or      BYTE PTR [rdi+0x58],0x8
.10:
        movd    xmm1,DWORD PTR [rdi+0x58]
        pslld   xmm1,0x18
        pslldq  xmm1,0x8
        mov     BYTE PTR [rdi+0x58],0x0
        mov     rdx,QWORD PTR [rdi+0x50]
        or      rdx,rax
        mov     QWORD PTR [rdi+0x48],rdx
        mov     esi,DWORD PTR [rdi+0x5c]
        add     rsi,QWORD PTR [rdi+0x40]
        cmp     rsi,rdx
        cmovae  rsi,rdx
        mov     QWORD PTR [rdi+0x38],rsi
        por     xmm0,xmm1
        jmp     .4
