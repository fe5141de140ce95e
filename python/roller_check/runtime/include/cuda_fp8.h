#error "types of cuda_fp8.h are not emulated"
