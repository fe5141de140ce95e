"""The plugin that runs TVM's own tests with our builds, and the comparison of two runs."""

import pytest

from roller_check.tvm_tests import COUNT, main, outcomes, pytest_configure

PLAIN = """<testsuites><testsuite>
<testcase classname="a.test_vm" name="test_one"/><testcase classname="a.test_vm" name="test_two"/>
<testcase classname="a.test_vm" name="test_three"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_what_passes_under_plain_tvm_alone_is_named(tmp_path, capsys):
    plain, ours = tmp_path / "plain.xml", tmp_path / "ours.xml"
    plain.write_text(PLAIN)
    ours.write_text(PLAIN.replace('"test_two"/>', '"test_two"><failure message="not equal&#10;more"/></testcase>'))
    assert outcomes(ours) == {
        "test_vm::test_one": "passed", "test_vm::test_two": "not equal", "test_vm::test_three": "skipped"}  # fmt: skip
    assert main([str(plain), str(ours)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "test_vm::test_two: not equal", "2 pass under plain TVM, 1 of them under ours"]  # fmt: skip
    assert main([str(plain), str(plain)]) == 0


@pytest.mark.relax
def test_default_builds_take_our_pipeline(monkeypatch):
    pytest.importorskip("tvm")
    import numpy as np
    import tvm
    from tvm import relax

    for place in (relax, relax.vm_build):
        monkeypatch.setattr(place, "build", place.build)  # which the plugin replaces for good
    pytest_configure(None)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(y)
    before = COUNT["kernels"]
    machine = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    assert COUNT["kernels"] == before + 1
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(np.ones((4, 8), "float32"))).numpy(), 2)
