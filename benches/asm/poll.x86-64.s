# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 72 instructions
held_poll:
        mov     rax,rdi
        mov     rcx,QWORD PTR [rsi]
        movzx   ecx,BYTE PTR [rcx+0x3f]
        movzx   edx,BYTE PTR [rsi+0x34]
        xor     dl,cl
        test    dl,0x1
        jne     .2
        mov     rdi,QWORD PTR [rsi]
        lea     r8,[rdi+0x40]
        mov     QWORD PTR [rsi],r8
        inc     DWORD PTR [rsi+0x30]
        movzx   edx,cl
        cmp     r8,QWORD PTR [rsi+0x10]
        jne     .1
        mov     r8,QWORD PTR [rsi+0x8]
        mov     QWORD PTR [rsi],r8
        xor     BYTE PTR [rsi+0x34],0x1
.1:
        push    rbx
        sub     rsp,0x40
        movups  xmm0,XMMWORD PTR [rdi]
        movups  xmm1,XMMWORD PTR [rdi+0x10]
        movups  xmm2,XMMWORD PTR [rdi+0x20]
        movups  xmm3,XMMWORD PTR [rdi+0x2f]
        movups  XMMWORD PTR [rsp+0x2f],xmm3
        movaps  XMMWORD PTR [rsp+0x20],xmm2
        movaps  XMMWORD PTR [rsp+0x10],xmm1
        movaps  XMMWORD PTR [rsp],xmm0
        mov     BYTE PTR [rsp+0x3f],cl
        shr     edx,0x4
        cmp     edx,0x2
        jne     .3
        mov     cl,0x1
        jmp     .4
.2:
        mov     BYTE PTR [rax],0x8
        ret
.3:
        test    edx,edx
        jne     .5
        xor     ecx,ecx
.4:
        mov     esi,0xffffff00
        mov     edi,DWORD PTR [rsp+0x38]
        and     edi,esi
        bswap   edi
        movzx   r8d,WORD PTR [rsp+0x3c]
        rol     r8w,0x8
        mov     r9d,DWORD PTR [rsp+0x2c]
        bswap   r9d
        and     esi,DWORD PTR [rsp+0x20]
        bswap   esi
        mov     BYTE PTR [rax],cl
        mov     rcx,rdx
        shr     rcx,0x30
        mov     BYTE PTR [rax+0x7],cl
        mov     rcx,rdx
        shr     rcx,0x20
        mov     WORD PTR [rax+0x5],cx
        mov     DWORD PTR [rax+0x1],edx
        mov     DWORD PTR [rax+0x8],edi
        mov     DWORD PTR [rax+0xc],r9d
        mov     DWORD PTR [rax+0x10],esi
        mov     WORD PTR [rax+0x14],r8w
        add     rsp,0x40
        pop     rbx
        ret
.5:
        movzx   esi,dl
        mov     rdi,rsp
        mov     rbx,rax
        call    barewire_mlx5::queue::completion::outcome::other
        mov     rcx,rax
        mov     rax,rbx
        mov     rdx,rcx
        shr     rdx,0x8
        jmp     .4
