# rustc 1.95.0 (59807616e 2026-04-14), SSE2 baseline; BLESS=1 cargo xtask asm writes this file
# 77 instructions
held_poll:
        mov     rax,rdi
        mov     rcx,QWORD PTR [rsi]
        movzx   r8d,BYTE PTR [rcx+0x3f]
        movzx   ecx,BYTE PTR [rsi+0x34]
        xor     cl,r8b
        test    cl,0x1
        jne     .1
        mov     r11,QWORD PTR [rsi]
        mov     r9d,DWORD PTR [r11+0x24]
        mov     rcx,QWORD PTR [r11+0x28]
        mov     r10,QWORD PTR [r11+0x30]
        mov     edi,DWORD PTR [r11+0x38]
        movzx   edx,WORD PTR [r11+0x3c]
        add     r11,0x40
        mov     QWORD PTR [rsi],r11
        inc     DWORD PTR [rsi+0x30]
        cmp     r11,QWORD PTR [rsi+0x10]
        je      .2
        shr     r8d,0x4
        cmp     r8d,0xe
        jbe     .3
        jmp     .4
.1:
        mov     BYTE PTR [rax],0x7
        ret
.2:
        mov     r11,QWORD PTR [rsi+0x8]
        mov     QWORD PTR [rsi],r11
        xor     BYTE PTR [rsi+0x34],0x1
        shr     r8d,0x4
        cmp     r8d,0xe
        ja      .4
.3:
        bswap   r9d
        lea     rsi,[.8 .7 .6 .9 .4 .4 .4 .4 .4 .4 .4 .4 .4 .10 .11]
        movsxd  r11,DWORD PTR [rsi+r8*4]
        add     r11,rsi
        jmp     r11
.4:
        mov     r10b,0x6
.5:
        and     edi,0xffffff00
        bswap   edi
        rol     dx,0x8
        shr     rcx,0x20
        bswap   ecx
        mov     BYTE PTR [rax],r10b
        mov     BYTE PTR [rax+0x1],r8b
        mov     WORD PTR [rax+0x2],si
        mov     DWORD PTR [rax+0x4],r9d
        mov     DWORD PTR [rax+0x8],edi
        mov     DWORD PTR [rax+0xc],ecx
        mov     WORD PTR [rax+0x10],dx
        ret
.6:
        mov     r10b,0x1
        jmp     .5
.7:
        mov     r10b,0x3
        jmp     .5
.8:
        mov     r10d,r8d
        jmp     .5
.9:
        mov     r10b,0x2
        jmp     .5
.10:
        mov     r8,r10
        shr     r8,0x38
        mov     r9d,edi
        shl     r9d,0x10
        shr     r10,0x28
        movzx   esi,r10w
        or      esi,r9d
        shr     esi,0x8
        mov     r10b,0x4
        jmp     .5
.11:
        mov     r8,r10
        shr     r8,0x38
        mov     r9d,edi
        shl     r9d,0x10
        shr     r10,0x28
        movzx   esi,r10w
        or      esi,r9d
        shr     esi,0x8
        mov     r10b,0x5
        jmp     .5
