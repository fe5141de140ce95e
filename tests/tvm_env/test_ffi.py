"""Pairs of apache-tvm and apache-tvm-ffi that are known to fail."""

import pytest

from roller_tvm.errors import RecordError, TvmLineError
from roller_tvm.tvm_env import ffi, locate
from roller_tvm.tvm_env.ffi import bad_pair
from roller_tvm.tvm_env.locate import Line, TvmFound, import_relax_tvm


@pytest.mark.parametrize(
    ("tvm", "version", "works"),
    [
        ("0.27.0.post1", "0.1.14.post1", None),
        ("0.27.0.post1", "0.1.15", "0.1.14.post1"),
        ("0.27.0", "0.1.15.post2", "0.1.14.post1"),
        ("0.26.0", "0.2.0", "0.1.14.post1"),
        ("0.26.0", "0.1.14.post1", None),
        ("0.25.0.post1", "0.1.14.post1", "0.1.12"),
        ("0.25.0.post1", "0.1.12", None),
        ("0.28.0", "0.1.15", None),  # nobody tried: no verdict
        ("0.27.0", None, None),  # a TVM built from source brings its own
    ],
)
def test_pairs(tvm, version, works):
    pair = bad_pair(tvm, version)
    assert (pair and pair.works) == works
    assert pair is None or pair.remedy == f"pip install apache-tvm-ffi=={works}"


def test_a_crashing_pair_is_not_imported(monkeypatch, tmp_path):
    monkeypatch.setattr(locate, "find_tvm", lambda: TvmFound(tmp_path, "0.27.0", Line.RELAX, False))
    monkeypatch.setattr(locate, "installed_ffi", lambda: "0.1.15.post2")
    monkeypatch.setattr(locate.importlib, "import_module", lambda name: pytest.fail("imported"))
    with pytest.raises(TvmLineError, match=r"segmentation fault(.|\n)*pip install apache-tvm-ffi==0\.1\.14\.post1"):
        import_relax_tvm("tuning")


@pytest.mark.relax
def test_this_environment_has_a_pair_that_works():
    found = locate.find_tvm()
    assert bad_pair(found.version, ffi.installed_ffi()) is None
    assert import_relax_tvm().__version__ == found.version


@pytest.mark.relax
def test_our_errors_pass_through_tvm():
    tvm = import_relax_tvm()

    @tvm.transform.module_pass(opt_level=0, name="Refuses")
    def refuses(mod, _context):
        raise RecordError("holds no records", "db", "tune again")

    with pytest.raises(RecordError, match="db: holds no records\n  remedy: tune again"):
        refuses(tvm.IRModule({}))
