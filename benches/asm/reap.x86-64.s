# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 34 instructions
held_reap:
        mov     rax,QWORD PTR [rdi]
        movzx   eax,BYTE PTR [rax+0x3f]
        xor     al,BYTE PTR [rdi+0x34]
        test    al,0x1
        jne     .4
        mov     rcx,QWORD PTR [rdi]
        lea     rdx,[rcx+0x40]
        mov     QWORD PTR [rdi],rdx
        cmp     rdx,QWORD PTR [rdi+0x10]
        je      .5
.1:
        movzx   edx,WORD PTR [rcx+0x3c]
        rol     dx,0x8
        mov     rcx,QWORD PTR [rsi+0x30]
        mov     edi,ecx
        sub     edi,edx
        movzx   edx,di
        sub     rcx,rdx
        cmp     rcx,QWORD PTR [rsi+0x48]
        jne     .2
        mov     ecx,DWORD PTR [rsi+0x50]
        jmp     .3
.2:
        inc     ecx
.3:
        mov     edx,DWORD PTR [rsi+0x8]
        add     ecx,edx
        inc     ecx
        mov     DWORD PTR [rsi+0x38],ecx
.4:
        test    al,0x1
        sete    al
        ret
.5:
        mov     rdx,QWORD PTR [rdi+0x8]
        mov     QWORD PTR [rdi],rdx
        inc     DWORD PTR [rdi+0x30]
        xor     BYTE PTR [rdi+0x34],0x1
        jmp     .1
