"""The seal at the end of a built model: a flipped bit is told, and readers of archives do not mind it. No TVM."""

import random
import tarfile
import zipfile

import pytest

from roller_tvm.errors import BadInput
from roller_tvm.package_members import FORMAT, SEAL, add_members, check_seal, read_members, seal


def sealed(path, members=(("report.json", b"{}"),)):
    """Write a made-up model with members, and seal it."""
    if path.suffix == ".tar":
        with tarfile.open(path, "w") as tar:
            made = path.with_name("mod.so")
            made.write_bytes(bytes(range(256)) * 20)
            tar.add(made, "mod.so")
    else:
        path.write_bytes(b"\x7fELF" + bytes(range(256)) * 20)
    if members:
        add_members(path, dict(members))
    seal(path)
    return path


@pytest.mark.parametrize("name", ["m.tar", "m.so"])
def test_whole_it_passes_and_its_members_are_read(tmp_path, name):
    path = sealed(tmp_path / name)
    check_seal(path)
    assert read_members(path, ["report.json"]) == {"report.json": b"{}"}
    if name == "m.so":
        assert zipfile.ZipFile(path).testzip() is None
        check_seal(sealed(tmp_path / "bare.so", ()))


@pytest.mark.parametrize("name", ["m.tar", "m.so"])
def test_any_flipped_bit_before_the_seal_is_told(tmp_path, name):
    path = sealed(tmp_path / name)
    whole, rng = path.read_bytes(), random.Random(0)
    end = whole.rindex(SEAL.encode())
    for _ in range(200):
        data = bytearray(whole)
        at = rng.randrange(end)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(BadInput, match="damaged: its checksum is another"):
            check_seal(path)
    path.write_bytes(whole[:-1] + b"!")
    with pytest.raises(BadInput, match="damaged"):
        check_seal(path)


def test_a_later_format_is_told(tmp_path):
    path = sealed(tmp_path / "m.tar")
    path.write_bytes(path.read_bytes().replace(f"{SEAL}{FORMAT} ".encode(), f"{SEAL}{FORMAT + 1} ".encode()))
    with pytest.raises(BadInput, match=f"has format {FORMAT + 1}; this version reads up to {FORMAT}"):
        check_seal(path)


def test_what_others_wrote_has_none(tmp_path):
    (tmp_path / "m.so").write_bytes(b"\x7fELF")
    check_seal(tmp_path / "m.so")
