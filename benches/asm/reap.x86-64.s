# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 61 instructions
held_reap:
        push    rbx
        sub     rsp,0x40
        mov     rax,QWORD PTR [rdi]
        movzx   eax,BYTE PTR [rax+0x3f]
        movzx   ecx,BYTE PTR [rdi+0x34]
        xor     cl,al
        test    cl,0x1
        jne     .4
        mov     rdx,QWORD PTR [rdi]
        lea     r8,[rdx+0x40]
        mov     QWORD PTR [rdi],r8
        inc     DWORD PTR [rdi+0x30]
        movzx   ecx,al
        cmp     r8,QWORD PTR [rdi+0x10]
        jne     .1
        mov     r8,QWORD PTR [rdi+0x8]
        mov     QWORD PTR [rdi],r8
        xor     BYTE PTR [rdi+0x34],0x1
.1:
        movups  xmm0,XMMWORD PTR [rdx]
        movups  xmm1,XMMWORD PTR [rdx+0x10]
        movups  xmm2,XMMWORD PTR [rdx+0x20]
        movups  xmm3,XMMWORD PTR [rdx+0x2f]
        movups  XMMWORD PTR [rsp+0x2f],xmm3
        movaps  XMMWORD PTR [rsp+0x20],xmm2
        movaps  XMMWORD PTR [rsp+0x10],xmm1
        movaps  XMMWORD PTR [rsp],xmm0
        mov     BYTE PTR [rsp+0x3f],al
        shr     ecx,0x4
        test    cl,0xd
        jne     .3
        movzx   eax,WORD PTR [rsp+0x3c]
        rol     ax,0x8
        cmp     ax,WORD PTR [rsi+0x28]
        jne     .6
.2:
        movzx   eax,WORD PTR [rsi+0x24]
        jmp     .7
.3:
        mov     rbx,rsi
        movzx   esi,cl
        mov     rdi,rsp
        call    barewire_mlx5::queue::completion::outcome::other
        cmp     al,0x8
        jne     .5
.4:
        xor     eax,eax
        add     rsp,0x40
        pop     rbx
        ret
.5:
        movzx   eax,WORD PTR [rsp+0x3c]
        mov     rsi,rbx
        rol     ax,0x8
        cmp     ax,WORD PTR [rsi+0x28]
        je      .2
.6:
        inc     eax
.7:
        mov     ecx,eax
        sub     cx,WORD PTR [rsi+0x34]
        movzx   ecx,cx
        add     DWORD PTR [rsi+0x20],ecx
        mov     WORD PTR [rsi+0x34],ax
        mov     al,0x1
        add     rsp,0x40
        pop     rbx
        ret
