"""A remote worker whose first candidate hangs on the server (Relax line: its symbols)."""

import subprocess

from roller_tvm.tuning import remote_worker, worker

FAULTS = {0: "for (volatile int n = 0;; ++n) {}"}


def build(key, number, line, mode):
    seconds = remote_worker.build(key, number, line, mode)
    if number in FAULTS:
        path = remote_worker.library(key, number, mode)
        code = path.with_suffix(".c")
        code.write_text(f"int __tvm_ffi_main(void* a, void* b, int c, void* d) {{ {FAULTS[number]} }}")
        subprocess.run(["gcc", "-shared", "-fPIC", str(code), "-o", str(path)], check=True)
    return seconds


if __name__ == "__main__":
    worker.main({**remote_worker.FUNCTIONS, "build": build})
