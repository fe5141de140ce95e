// Changing from one fibre to another: a few instructions where the machine is known, ucontext elsewhere.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__aarch64__)
struct Fibre {
  void* stack_pointer;
};
extern "C" void emu_switch(void** save, void* load);

#ifdef EMU_DEFINE_SWITCH  // in one of the parts
#if defined(__x86_64__)
// The registers a call preserves (System V), then the stack.
__asm__(R"(
.text
.p2align 4
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");
#elif defined(__aarch64__)
__asm__(R"(
.text
.p2align 4
.globl emu_switch
.hidden emu_switch
.type emu_switch,%function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch, .-emu_switch
)");
#endif
#endif

#if defined(__x86_64__)
inline void fibre_start(Fibre& f, char* stack, size_t bytes, void (*entry)()) {
  auto** top = (void**)(((uintptr_t)stack + bytes) & ~(uintptr_t)15);
  *--top = nullptr;  // where `entry` would return to: it never does
  *--top = (void*)entry;
  top -= 6;
  memset(top, 0, 6 * sizeof(void*));
  f.stack_pointer = top;
}
#else
inline void fibre_start(Fibre& f, char* stack, size_t bytes, void (*entry)()) {
  auto top = ((uintptr_t)stack + bytes) & ~(uintptr_t)15;
  top -= 160;
  memset((void*)top, 0, 160);
  ((void**)top)[11] = (void*)entry;  // x30
  f.stack_pointer = (void*)top;
}
#endif
inline void fibre_switch(Fibre& from, Fibre& to) { emu_switch(&from.stack_pointer, to.stack_pointer); }

#else
#include <ucontext.h>
struct Fibre {
  ucontext_t context;
};
inline void fibre_start(Fibre& f, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = stack;
  f.context.uc_stack.ss_size = bytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, entry, 0);
}
inline void fibre_switch(Fibre& from, Fibre& to) { swapcontext(&from.context, &to.context); }
#endif
