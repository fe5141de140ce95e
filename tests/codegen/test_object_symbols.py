"""Object files whose kernel gets another name: linked beside the first, and called."""

import ctypes
import subprocess

import pytest

from roller_tvm.codegen.object_symbols import renamed
from roller_tvm.tvm_env.compiler import find_compiler

CODE = "int helper(int); int kernel(int n) { return helper(n) + 1; } int helper(int n) { return 2 * n; }"


@pytest.fixture
def compiler():
    return find_compiler() or pytest.skip("needs a C++ compiler")


def test_a_renamed_symbol_is_called_by_its_new_name(tmp_path, compiler):
    source, made = tmp_path / "kernel.c", tmp_path / "kernel.o"
    source.write_text(CODE)
    subprocess.run([compiler, "-xc", "-fPIC", "-O1", "-c", source, "-o", made], check=True)
    content = renamed(made.read_bytes(), "kernel", "a_longer_name_than_that")
    content = renamed(content, "helper", "h")
    made.write_bytes(content)
    library = tmp_path / "kernel.so"
    subprocess.run([compiler, "-shared", made, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    assert loaded.a_longer_name_than_that(20) == 41 and loaded.h(3) == 6
    assert not hasattr(loaded, "kernel") and not hasattr(loaded, "helper")
    assert renamed(content, "kernel", "other") is None
    for end in (3, 40, 200, len(content) // 2):  # cut off: no crash, and no file that pretends
        assert renamed(content[:end], "kernel", "other") is None
