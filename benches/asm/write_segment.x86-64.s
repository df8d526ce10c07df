# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 154 instructions
held_write_segment:
        bswap   r8
        bswap   r9d
        test    edx,edx
        je      .1
        mov     eax,DWORD PTR [rdi+0x20]
        dec     eax
        js      .3
        shl     rdx,0x20
        mov     ecx,ecx
        or      rcx,rdx
        bswap   rcx
        bswap   rsi
        movq    xmm0,rcx
        movq    xmm1,rsi
        punpcklqdq xmm0,xmm1
        movd    xmm2,r9d
        movq    xmm1,r8
        punpcklqdq xmm1,xmm2
        mov     DWORD PTR [rdi+0x20],eax
        mov     ecx,DWORD PTR [rdi+0x24]
        lea     eax,[rcx+0x1]
        xor     edx,edx
        test    DWORD PTR [rdi+0x30],eax
        sete    dl
        movzx   esi,cx
        shl     esi,0x8
        or      esi,0x8
        bswap   esi
        mov     r8d,0x3000000
        or      r8d,DWORD PTR [rdi+0x2c]
        shl     r8,0x20
        or      r8,rsi
        movd    xmm2,edx
        pslld   xmm2,0x1b
        movq    xmm3,r8
        punpcklqdq xmm3,xmm2
        mov     rdx,QWORD PTR [rdi]
        mov     esi,DWORD PTR [rdi+0x8]
        and     esi,ecx
        shl     rsi,0x6
        movdqa  XMMWORD PTR [rdx+rsi*1],xmm3
        movdqa  XMMWORD PTR [rdx+rsi*1+0x10],xmm1
        movdqa  XMMWORD PTR [rdx+rsi*1+0x20],xmm0
        mov     DWORD PTR [rdi+0x28],ecx
        mov     DWORD PTR [rdi+0x24],eax
        mov     rcx,QWORD PTR [rdi+0x10]
        movzx   eax,ax
        bswap   eax
        mov     DWORD PTR [rcx],eax
        sfence
        mov     rax,QWORD PTR [rdi+0x18]
        movdqa  XMMWORD PTR [rax],xmm3
        movdqa  XMMWORD PTR [rax+0x10],xmm1
        movdqa  XMMWORD PTR [rax+0x20],xmm0
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rax+0x30],xmm0
        xor     rax,0x100
        mov     QWORD PTR [rdi+0x18],rax
        mov     al,0x1
        ret
.1:
        mov     eax,DWORD PTR [rdi+0x20]
        dec     eax
        js      .3
        push    r14
        push    rbx
        sub     rsp,0x98
        movd    xmm0,r9d
        movq    xmm1,r8
        punpcklqdq xmm1,xmm0
        mov     DWORD PTR [rdi+0x20],eax
        mov     eax,DWORD PTR [rdi+0x8]
        mov     ebx,DWORD PTR [rdi+0x24]
        mov     ecx,DWORD PTR [rdi+0x30]
        mov     edx,ecx
        and     edx,ebx
        inc     edx
        xor     esi,esi
        cmp     edx,ecx
        seta    sil
        movzx   ecx,bx
        shl     ecx,0x8
        or      ecx,0x8
        mov     edx,0x2000000
        or      edx,DWORD PTR [rdi+0x2c]
        bswap   ecx
        shl     rdx,0x20
        or      rdx,rcx
        movd    xmm0,esi
        pslld   xmm0,0x1b
        movq    xmm2,rdx
        punpcklqdq xmm2,xmm0
        mov     ecx,eax
        and     ecx,ebx
        lea     edx,[rcx+0x1]
        lea     esi,[rax+0x1]
        cmp     edx,esi
        ja      .4
        mov     rax,QWORD PTR [rdi]
        mov     ecx,ecx
        shl     rcx,0x6
        movdqa  XMMWORD PTR [rax+rcx*1],xmm2
        movdqa  XMMWORD PTR [rax+rcx*1+0x10],xmm1
.2:
        mov     DWORD PTR [rdi+0x28],ebx
        inc     ebx
        mov     DWORD PTR [rdi+0x24],ebx
        mov     rax,QWORD PTR [rdi+0x10]
        movzx   ecx,bx
        bswap   ecx
        mov     DWORD PTR [rax],ecx
        sfence
        mov     rax,QWORD PTR [rdi+0x18]
        movdqa  XMMWORD PTR [rax],xmm2
        movdqa  XMMWORD PTR [rax+0x10],xmm1
        pxor    xmm0,xmm0
        movdqa  XMMWORD PTR [rax+0x20],xmm0
        movdqa  XMMWORD PTR [rax+0x30],xmm0
        xor     rax,0x100
        mov     QWORD PTR [rdi+0x18],rax
        mov     al,0x1
        add     rsp,0x98
        pop     rbx
        pop     r14
        ret
.3:
        xor     eax,eax
        ret
.4:
        mov     QWORD PTR [rsp+0x58],0x0
        mov     QWORD PTR [rsp+0x50],0x1
        movdqa  XMMWORD PTR [rsp+0x60],xmm1
        mov     QWORD PTR [rsp+0x70],0x1
        mov     QWORD PTR [rsp+0x78],0x0
        mov     DWORD PTR [rsp+0x80],0x0
        mov     rdx,QWORD PTR [rdi]
        shl     rax,0x6
        add     rax,rdx
        add     rax,0x40
        mov     ecx,ecx
        shl     rcx,0x6
        add     rcx,rdx
        mov     QWORD PTR [rsp+0x8],rcx
        mov     QWORD PTR [rsp+0x10],rdx
        mov     QWORD PTR [rsp+0x18],rax
        movdqa  XMMWORD PTR [rsp+0x40],xmm2
        lea     rax,[rsp+0x40]
        lea     rsi,[rsp+0x50]
        lea     rdx,[rsp+0x8]
        mov     r14,rdi
        mov     rdi,rax
        movdqa  XMMWORD PTR [rsp+0x30],xmm1
        movdqa  XMMWORD PTR [rsp+0x20],xmm2
        call    barewire_mlx5::queue::send::emit_wrapped
        movdqa  xmm2,XMMWORD PTR [rsp+0x20]
        movdqa  xmm1,XMMWORD PTR [rsp+0x30]
        mov     rdi,r14
        jmp     .2
