# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 65 instructions
held_send_prefixed:
        mov     eax,DWORD PTR [rdi+0x38]
        mov     r8,QWORD PTR [rdi+0x30]
        cmp     eax,r8d
        je      .2
        movzx   esi,sil
        shl     rsi,0x20
        or      rsi,0x14000080
        movq    xmm0,rsi
        movq    xmm1,rdx
        punpcklqdq xmm0,xmm1
        movzx   edx,r8w
        shl     edx,0x8
        or      edx,0xa
        bswap   edx
        movd    xmm2,edx
        movsd   xmm1,QWORD PTR [0000000000000003]
        movss   xmm1,xmm2
        orps    xmm1,XMMWORD PTR [rdi+0x20]
        movq    xmm2,rcx
        lea     ecx,[r8+0x1]
        cmp     ecx,DWORD PTR [rdi+0x3c]
        je      .3
.1:
        mov     rcx,QWORD PTR [rdi]
        mov     edx,DWORD PTR [rdi+0x8]
        and     edx,r8d
        shl     rdx,0x6
        movaps  XMMWORD PTR [rcx+rdx*1],xmm1
        movdqa  XMMWORD PTR [rcx+rdx*1+0x10],xmm0
        movdqa  XMMWORD PTR [rcx+rdx*1+0x20],xmm2
        mov     rcx,r8
        inc     rcx
        mov     QWORD PTR [rdi+0x30],rcx
        mov     rdx,QWORD PTR [rdi+0x10]
        movzx   ecx,cx
        bswap   ecx
        mov     DWORD PTR [rdx],ecx
        sfence
        mov     rcx,QWORD PTR [rdi+0x18]
        mov     rdx,QWORD PTR [rcx+0x200]
        movaps  XMMWORD PTR [rdx],xmm1
        movdqa  XMMWORD PTR [rdx+0x10],xmm0
        movdqa  XMMWORD PTR [rdx+0x20],xmm2
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rdx+0x30],xmm0
        xor     rdx,0x100
        mov     QWORD PTR [rcx+0x200],rdx
.2:
        cmp     eax,r8d
        setne   al
        ret
.3:
        mov     edx,DWORD PTR [rdi+0x40]
        mov     esi,DWORD PTR [rdi+0x44]
        mov     r9d,edx
        or      r9b,0x8
        test    esi,ecx
        movzx   r9d,r9b
        cmovne  r9d,edx
        mov     BYTE PTR [rdi+0x40],0x0
        or      esi,ecx
        inc     esi
        mov     DWORD PTR [rdi+0x3c],esi
        movd    xmm3,r9d
        pslld   xmm3,0x18
        pslldq  xmm3,0x8
        orps    xmm1,xmm3
        jmp     .1
