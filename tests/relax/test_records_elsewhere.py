"""Records in another process, for another target, for other functions, and made by way of the command line's device."""

import subprocess
import sys
import warnings

import pytest

pytestmark = pytest.mark.relax
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from roller_tvm.device import device_for_target  # noqa: E402
from roller_tvm.errors import RecordError  # noqa: E402
from roller_tvm.relax import prepare, tune  # noqa: E402
from roller_tvm.relax.devices import device_of  # noqa: E402
from roller_tvm.relax.pipeline import schedule  # noqa: E402
from roller_tvm.relax.targets import make_target  # noqa: E402
from roller_tvm.tuning.session import Limits  # noqa: E402

from .networks import LLVM, module  # noqa: E402

SM80, SM90 = ({"kind": "cuda", "arch": arch} for arch in ("sm_80", "sm_90"))
READ_BACK = """
import sys, warnings
warnings.simplefilter("error")
import tvm
from roller_tvm.relax import pipeline
from roller_tvm.relax.targets import make_target
target = make_target({"kind": "cuda", "arch": "sm_80"})
mod = pipeline.prepare(tvm.ir.load_json(open(sys.argv[1]).read()), target)
scheduled, report = pipeline.schedule(mod, target, sys.argv[2])
print(len(report.scheduled), "planned, tensor cores:", "mma" in scheduled.script())
"""


def product(builder, x, w):
    return builder.emit(relax.op.matmul(x, w))


def tuned(mod, target, folder):
    made = make_target(target)
    return tune(prepare(mod, made), None, made, folder, 0, workers=1, limits=Limits(margin=1.0))[0]


@pytest.mark.nightly
def test_plans_on_tensor_cores_are_read_where_nothing_of_theirs_is_known(tmp_path):
    mod = module(product, (256, 256), (256, 256), dtype="float16")
    tuned(mod, SM80, tmp_path / "records")
    (tmp_path / "mod.json").write_text(str(tvm.ir.save_json(mod)))
    words = [sys.executable, "-c", READ_BACK, str(tmp_path / "mod.json"), str(tmp_path / "records")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.strip() == "0 planned, tensor cores: True", done.stderr
    tuned(mod, SM80, tmp_path / "records")  # and an interrupted tuning goes on


def test_a_database_of_another_target_is_refused_however_it_is_given():
    mod, other = module(product, (64, 64), (64, 64)), make_target(SM80)
    database = tuned(mod, SM90, None)
    for given, where in ((database, "database"), (None, "the database in scope")):
        with pytest.raises(RecordError, match="its records are for the target .*sm_90.*") as error:
            if given is None:
                with database:
                    schedule(prepare(mod, other), other)
            else:
                schedule(prepare(mod, other), other, given)
        assert error.value.where == where


def test_records_that_fit_nothing_are_told(tmp_path):
    database = tuned(module(product, (32, 48), (48, 16)), LLVM, tmp_path)
    with pytest.warns(RuntimeWarning, match="none of 1 functions has a record"):
        schedule(prepare(module(product, (33, 48), (48, 16)), LLVM), LLVM, database)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule(prepare(module(product, (32, 48), (48, 16)), LLVM), LLVM, database)


def test_a_device_that_is_given_is_the_one_that_follows_from_the_target():
    target = make_target(LLVM)
    given = device_for_target({"kind": "llvm", "num-cores": 2})
    found = [device_of(device, target).limits.broadcast_registers for device in (given, None)]
    assert found == [1, 1]
