#error "types of cuda_fp4.h are not emulated"
