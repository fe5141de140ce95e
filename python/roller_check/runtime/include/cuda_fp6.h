#error "types of cuda_fp6.h are not emulated"
