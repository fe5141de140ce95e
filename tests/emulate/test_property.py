"""The random small programs of tests/tir, planned for a GPU, their kernels executed and compared with numpy."""

import pytest

pytest.importorskip("tvm.tirx", reason="needs the Relax line")
pytestmark = [pytest.mark.relax, pytest.mark.nightly]
pytest.importorskip("hypothesis")
import tvm  # noqa: E402
from hypothesis import note  # noqa: E402
from tvm import te  # noqa: E402

from roller_check import check  # noqa: E402
from roller_check.relax_plans import emulated_function  # noqa: E402
from roller_tvm.relax.candidates import make_candidates  # noqa: E402
from roller_tvm.relax.devices import device_of  # noqa: E402
from roller_tvm.relax.targets import make_target  # noqa: E402
from roller_tvm.relax.tasks import normalized  # noqa: E402

from ..tir import test_property as on_cpu  # noqa: E402

TARGET = make_target({"kind": "cuda", "arch": "sm_80"})


def check_on_gpu(self, tensor, expected, terms, constants=()):
    mod = normalized(te.create_prim_func([*self.inputs, tensor], index_dtype_override="int64"))
    note(mod.script(show_meta=False))
    found = make_candidates(mod["main"], device_of(None, TARGET), on_cpu.PLANS, constants)
    assert not found.reason, found.reason
    done = list(found.schedules())
    assert done and not found.failures, found.failures
    for candidate, schedule in done:
        note(str(candidate.ranked.plan))
        ahead = any(p.choice("stages", 1) > 1 for p in candidate.ranked.plan.programs)
        with tvm.transform.PassContext(config={"tirx.use_async_copy": ahead}):
            function = emulated_function(schedule, TARGET)
        check(function, [*self.values, None], [expected.astype("float32")], terms)


@pytest.mark.parametrize("name", [n for n in vars(on_cpu) if n.startswith("test_")])
def test_programs(name, monkeypatch):
    monkeypatch.setattr(on_cpu.Program, "check", check_on_gpu)
    getattr(on_cpu, name)()
