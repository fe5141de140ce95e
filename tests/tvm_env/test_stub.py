"""The generated ELF library, against the system's own loader."""

import ctypes
import platform
import subprocess
import sys

import pytest

from roller_tvm.tvm_env.stub import DRIVER_SYMBOLS, stub_library, write_driver_stub

linux_x86 = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="an x86-64 ELF library"
)


@linux_x86
def test_every_symbol_is_found_and_returns_the_code(tmp_path):
    names = [f"function_number_{i}" for i in range(40)]  # enough for hash chains longer than one
    (tmp_path / "libodd.so").write_bytes(stub_library("libodd.so.7", names, -12345))
    library = ctypes.CDLL(str(tmp_path / "libodd.so"))
    assert [getattr(library, name)() for name in names] == [-12345] * 40
    with pytest.raises(AttributeError):
        library.function_number_40  # noqa: B018


@linux_x86
def test_stands_in_for_the_library_of_its_soname(tmp_path):
    # What makes it useful: once loaded, whoever asks for libroller_none.so.1 gets it.
    (tmp_path / "any.so").write_bytes(stub_library("libroller_none.so.1", ["f"], 7))
    code = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL);"
        "print(ctypes.CDLL('libroller_none.so.1').f())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "any.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "7\n", done.stderr


@linux_x86
def test_driver_stub_reports_no_device(tmp_path):
    write_driver_stub(tmp_path / "stub.so")
    library = ctypes.CDLL(str(tmp_path / "stub.so"))
    assert {getattr(library, name)() for name in DRIVER_SYMBOLS} == {100}


def test_too_many_symbols_are_refused():
    with pytest.raises(ValueError, match="1000 symbols"):
        stub_library("x.so", [f"symbol{i}" for i in range(1000)], 0)
