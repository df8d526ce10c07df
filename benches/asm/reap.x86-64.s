# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 32 instructions
held_reap:
        mov     rax,QWORD PTR [rdi]
        movzx   eax,BYTE PTR [rax+0x3f]
        xor     al,BYTE PTR [rdi+0x34]
        test    al,0x1
        jne     .5
        mov     rdx,QWORD PTR [rdi]
        movzx   ecx,WORD PTR [rdx+0x3c]
        add     rdx,0x40
        mov     QWORD PTR [rdi],rdx
        inc     DWORD PTR [rdi+0x30]
        cmp     rdx,QWORD PTR [rdi+0x10]
        je      .2
        rol     cx,0x8
        cmp     cx,WORD PTR [rsi+0x28]
        jne     .3
.1:
        movzx   ecx,WORD PTR [rsi+0x24]
        jmp     .4
.2:
        mov     rdx,QWORD PTR [rdi+0x8]
        mov     QWORD PTR [rdi],rdx
        xor     BYTE PTR [rdi+0x34],0x1
        rol     cx,0x8
        cmp     cx,WORD PTR [rsi+0x28]
        je      .1
.3:
        inc     ecx
.4:
        mov     edx,ecx
        sub     dx,WORD PTR [rsi+0x34]
        movzx   edx,dx
        add     DWORD PTR [rsi+0x20],edx
        mov     WORD PTR [rsi+0x34],cx
.5:
        test    al,0x1
        sete    al
        ret
