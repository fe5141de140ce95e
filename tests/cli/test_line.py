"""``--line``: the line of the TVM present, or the one that is insisted on, or what to install for it."""

import argparse

import numpy as np
import pytest

from roller_tvm import cli
from roller_tvm.cli import line as L
from roller_tvm.cli import model
from roller_tvm.cli.inputs import inputs_of
from roller_tvm.errors import BadInput, NoTvm, TvmLineError
from roller_tvm.tvm_env import locate
from roller_tvm.tvm_env.locate import Line, TvmFound, line_of


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Pretend that a TVM of some version, or none, is what would be imported."""

    def pretend(version):
        found = version and TvmFound(tmp_path, version, line_of(version), False)
        for module in (L, locate):
            monkeypatch.setattr(module, "find_tvm", lambda: found)

    return pretend


def asked(line):
    return L.line_of(argparse.Namespace(line=line), "tuning a model")


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [("0.17.0", None, Line.RELAY), ("0.27.0", None, Line.RELAX), ("0.17.0", "relay", Line.RELAY),
     ("0.27.0", "relax", Line.RELAX)],
)  # fmt: skip
def test_the_line_of_the_tvm_that_is_here(here, version, wanted, expected):
    here(version)
    assert asked(wanted) is expected


@pytest.mark.parametrize(
    ("version", "wanted", "error", "said"),
    [
        ("0.17.0", "relax", TvmLineError, "pip install 'roller-tvm[relax]'"),
        ("0.27.0", "relay", TvmLineError, "in an environment of its own: roller-tvm install-tvm"),
        ("0.22.0", None, TvmLineError, "0.13 to 0.19 or 0.25 or later (got 0.22.0)"),
        (None, "relax", NoTvm, "pip install 'roller-tvm[relax]'"),
        (None, None, NoTvm, "roller-tvm install-tvm"),
    ],
)
def test_a_line_that_is_not_here_is_refused_with_the_command(here, version, wanted, error, said):
    here(version)
    with pytest.raises(error) as refused:
        asked(wanted)
    assert said in str(refused.value) and refused.value.exit_code == 1


@pytest.mark.parametrize("verb", [["compile", "m.onnx"], ["run", "m.so"]])
def test_every_verb_that_works_with_models_asks(here, capsys, verb):
    here("0.17.0")
    assert cli.main([*verb, "--line", "relax"]) == 1
    err = capsys.readouterr().err
    assert "needs TVM 0.25 or later (got 0.17.0)" in err and "remedy:" in err
    assert cli.main([*verb, "--line", "relaxed"]) == 2


def test_layouts_are_those_of_both_importers():
    from roller_tvm.relax import importers as relax
    from roller_tvm.relay import importers as relay

    assert set(model.LAYOUTS) == set(relax.LAYOUTS) == set(relay.LAYOUTS)


OPEN = {"x": (("n", 3), "float32"), "y": (("n",), "int64")}


def filled(tmp_path, wanted=OPEN, **arrays):
    words = argparse.Namespace(inputs="random", fill_mode="random")
    if arrays:
        np.savez(tmp_path / "in.npz", **arrays)
        words.inputs = str(tmp_path / "in.npz")
    return {name: a.shape for name, a in inputs_of(words, wanted).items()}


def test_open_extents_follow_from_what_is_given(tmp_path):
    assert filled(tmp_path) == {"x": (1, 3), "y": (1,)}
    assert filled(tmp_path, y=np.zeros(7)) == {"x": (7, 3), "y": (7,)}
    assert filled(tmp_path, x=np.zeros((4, 3))) == {"x": (4, 3), "y": (4,)}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((4, 3)), "y": np.zeros(5)}, r"'y' is \[5\], the model takes \[n\] with n = 4"),
        ({"x": np.zeros((4, 2))}, r"'x' is \[4, 2\], the model takes \[n, 3\]"),
        ({"x": np.zeros(3)}, r"'x' is \[3\]"),
        ({"z": np.zeros(3)}, "no input 'z'"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, said):
    with pytest.raises(BadInput, match=said):
        filled(tmp_path, **arrays)
