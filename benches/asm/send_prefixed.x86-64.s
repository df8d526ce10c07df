# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 53 instructions
held_send_prefixed:
        mov     eax,DWORD PTR [rdi+0x20]
        dec     eax
        js      .1
        movq    xmm0,rcx
        movzx   ecx,sil
        shl     rcx,0x20
        or      rcx,0x14000080
        movq    xmm2,rdx
        movq    xmm1,rcx
        punpcklqdq xmm1,xmm2
        mov     DWORD PTR [rdi+0x20],eax
        mov     edx,DWORD PTR [rdi+0x24]
        lea     ecx,[rdx+0x1]
        xor     esi,esi
        test    DWORD PTR [rdi+0x30],ecx
        sete    sil
        movzx   r8d,dx
        shl     r8d,0x8
        or      r8d,0xa
        bswap   r8d
        mov     r9d,0x3000000
        or      r9d,DWORD PTR [rdi+0x2c]
        shl     r9,0x20
        or      r9,r8
        movd    xmm2,esi
        pslld   xmm2,0x1b
        movq    xmm3,r9
        punpcklqdq xmm3,xmm2
        mov     rsi,QWORD PTR [rdi]
        mov     r8d,DWORD PTR [rdi+0x8]
        and     r8d,edx
        shl     r8,0x6
        movdqa  XMMWORD PTR [rsi+r8*1],xmm3
        movdqa  XMMWORD PTR [rsi+r8*1+0x10],xmm1
        movdqa  XMMWORD PTR [rsi+r8*1+0x20],xmm0
        mov     DWORD PTR [rdi+0x28],edx
        mov     DWORD PTR [rdi+0x24],ecx
        mov     rdx,QWORD PTR [rdi+0x10]
        movzx   ecx,cx
        bswap   ecx
        mov     DWORD PTR [rdx],ecx
        sfence
        mov     rcx,QWORD PTR [rdi+0x18]
        movdqa  XMMWORD PTR [rcx],xmm3
        movdqa  XMMWORD PTR [rcx+0x10],xmm1
        movdqa  XMMWORD PTR [rcx+0x20],xmm0
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rcx+0x30],xmm0
        xor     rcx,0x100
        mov     QWORD PTR [rdi+0x18],rcx
.1:
        test    eax,eax
        setns   al
        ret
