"""What a model's report says of the kernels that Roller did not plan."""

from roller_tvm.tuning.model_report import SHOWN, KernelPlan, ModelReport


def test_kernels_left_are_told_with_their_share_the_longest_first():
    plans = (
        KernelPlan("dense", "planned", "cpu.tiled", 6e-6, calls=1),
        KernelPlan("flip", "tvm", "", 1e-6, "its sizes", calls=1),
        KernelPlan("sort_1", "tvm", "", 1e-6, "its loops", calls=2),
        KernelPlan("sort_2", "tvm", "", 1e-6, "its loops", calls=1),
    )
    head, first, second = ModelReport("llvm", plans).left().splitlines()
    assert "3 of 4 kernels" in head and "40%" in head
    assert first.split() == ["30.0%", "sort", "(2x)", "its", "loops"]
    assert second.split() == ["10.0%", "flip", "its", "sizes"]
    assert ModelReport("llvm", plans).left() in str(ModelReport("llvm", plans))


def test_nothing_left_is_nothing_told():
    assert ModelReport("llvm", (KernelPlan("dense", "planned", "cpu.tiled", 6e-6),)).left() == ""


def test_a_long_table_is_cut():
    letters = [chr(ord("a") + n) for n in range(SHOWN + 3)]
    plans = tuple(KernelPlan(name, "tvm", "", 1e-6, "why") for name in letters)
    lines = ModelReport("llvm", plans).left().splitlines()
    assert len(lines) == SHOWN + 2 and "3 more" in lines[-1]


def test_it_is_kept_in_a_file():
    report = ModelReport("llvm", (KernelPlan("flip", "tvm", "", 1e-6, "why", 3),))
    assert ModelReport.from_json(report.to_json()) == report
