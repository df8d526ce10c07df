# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 117 instructions
held_write_segment:
        bswap   r8
        bswap   r9d
        test    edx,edx
        je      .4
        mov     rax,QWORD PTR [rdi+0x30]
        cmp     DWORD PTR [rdi+0x38],eax
        jne     .1
        xor     eax,eax
        ret
.1:
        bswap   rsi
        movd    xmm1,r9d
        movq    xmm0,r8
        mov     ecx,ecx
        shl     rdx,0x20
        or      rdx,rcx
        bswap   rdx
        punpcklqdq xmm0,xmm1
        movq    xmm2,rdx
        movzx   ecx,ax
        shl     ecx,0x8
        or      ecx,0x8
        bswap   ecx
        movd    xmm3,ecx
        movsd   xmm1,QWORD PTR [0000000000000003]
        movss   xmm1,xmm3
        movq    xmm3,rsi
        orps    xmm1,XMMWORD PTR [rdi+0x20]
        punpcklqdq xmm2,xmm3
        lea     ecx,[rax+0x1]
        cmp     ecx,DWORD PTR [rdi+0x3c]
        je      .7
.2:
        mov     rcx,QWORD PTR [rdi]
        mov     edx,DWORD PTR [rdi+0x8]
        and     edx,eax
        shl     rdx,0x6
        movaps  XMMWORD PTR [rcx+rdx*1],xmm1
        movdqa  XMMWORD PTR [rcx+rdx*1+0x10],xmm0
        movdqa  XMMWORD PTR [rcx+rdx*1+0x20],xmm2
        inc     rax
        mov     QWORD PTR [rdi+0x30],rax
.3:
        mov     rcx,QWORD PTR [rdi+0x10]
        movzx   eax,ax
        bswap   eax
        mov     DWORD PTR [rcx],eax
        sfence
        mov     rax,QWORD PTR [rdi+0x18]
        mov     rcx,QWORD PTR [rax+0x200]
        movaps  XMMWORD PTR [rcx],xmm1
        movdqa  XMMWORD PTR [rcx+0x10],xmm0
        movdqa  XMMWORD PTR [rcx+0x20],xmm2
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rcx+0x30],xmm0
        xor     rcx,0x100
        mov     QWORD PTR [rax+0x200],rcx
        mov     al,0x1
        ret
.4:
        mov     rax,QWORD PTR [rdi+0x30]
        cmp     DWORD PTR [rdi+0x38],eax
        jne     .5
        xor     eax,eax
        ret
.5:
        movd    xmm2,r9d
        movzx   ecx,ax
        shl     ecx,0x8
        or      ecx,0x8
        bswap   ecx
        movd    xmm0,ecx
        movsd   xmm1,QWORD PTR [0000000000000002]
        movss   xmm1,xmm0
        movq    xmm0,r8
        orps    xmm1,XMMWORD PTR [rdi+0x20]
        punpcklqdq xmm0,xmm2
        lea     ecx,[rax+0x1]
        cmp     ecx,DWORD PTR [rdi+0x3c]
        je      .8
.6:
        mov     rcx,QWORD PTR [rdi]
        mov     edx,DWORD PTR [rdi+0x8]
        and     edx,eax
        shl     rdx,0x6
        movaps  XMMWORD PTR [rcx+rdx*1],xmm1
        movdqa  XMMWORD PTR [rcx+rdx*1+0x10],xmm0
        inc     rax
        mov     QWORD PTR [rdi+0x30],rax
        pxor    xmm2,xmm2
        jmp     .3
.7:
        mov     edx,DWORD PTR [rdi+0x40]
        mov     esi,DWORD PTR [rdi+0x44]
        mov     r8d,edx
        or      r8b,0x8
        test    esi,ecx
        movzx   r8d,r8b
        cmovne  r8d,edx
        mov     BYTE PTR [rdi+0x40],0x0
        or      esi,ecx
        inc     esi
        mov     DWORD PTR [rdi+0x3c],esi
        movd    xmm3,r8d
        pslld   xmm3,0x18
        pslldq  xmm3,0x8
        orps    xmm1,xmm3
        jmp     .2
.8:
        mov     edx,DWORD PTR [rdi+0x40]
        mov     esi,DWORD PTR [rdi+0x44]
        mov     r8d,edx
        or      r8b,0x8
        test    esi,ecx
        movzx   r8d,r8b
        cmovne  r8d,edx
        mov     BYTE PTR [rdi+0x40],0x0
        or      esi,ecx
        inc     esi
        mov     DWORD PTR [rdi+0x3c],esi
        movd    xmm2,r8d
        pslld   xmm2,0x18
        pslldq  xmm2,0x8
        orps    xmm1,xmm2
        jmp     .6
