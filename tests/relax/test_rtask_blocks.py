"""What a plan must keep in order, and what is not all of another tensor: memory that several bindings share."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.relax

from tvm import relax  # noqa: E402

from tests.relax.networks import default, module, values  # noqa: E402
from tests.relax.test_fuse_rtasks import F32, emulate, weight  # noqa: E402

SHAPE = (4, 16)


@tvm.register_global_func("roller_tvm.test.thrice", override=True)
def thrice(x, y):
    y.copyfrom(x.numpy() * 3)


@tvm.register_global_func("roller_tvm.test.bump", override=True)
def bump(x):
    x.copyfrom(x.numpy() + 100)
    return x


def overwritten(builder, x):
    """A tensor is read after a call into a library, then overwritten; what follows needs both."""
    out = relax.TensorType(SHAPE, F32)
    y = builder.emit(relax.op.nn.relu(x))
    away = builder.emit(relax.call_dps_packed("roller_tvm.test.thrice", relax.Tuple([y]), out))
    before = builder.emit(relax.op.matmul(builder.emit(relax.op.add(y, away)), weight(16, 16)))
    after = builder.emit(relax.op.call_inplace_packed("roller_tvm.test.bump", y, inplace_indices=[0], ty_args=[out]))
    return relax.op.add(builder.emit(relax.op.nn.softmax(before)), after)


def test_what_is_written_in_place_comes_after_all_who_read_it_before(tmp_path):
    """A plan stands where its last call was: a reader in it must not be taken behind the one who writes."""
    mod, x = module(overwritten, SHAPE), values(*SHAPE)
    (made,), _, fuse = emulate(mod, [SHAPE], tmp_path, [[x]])
    np.testing.assert_allclose(made[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)
    assert [reason.split(",")[0] for _, reason in fuse.report.outside] == ["it is call_dps_packed",
                                                                          "it is call_inplace_packed"]
    assert fuse.report.functions


def part(builder, x):
    """Two products of the last rows of what another function wrote."""
    y = builder.emit(relax.op.nn.relu(x))
    rows = builder.emit(relax.op.memory.ensure_zero_offset(builder.emit(relax.op.memory.view(y, SHAPE, F32, 64))))
    return relax.op.add(*(builder.emit(relax.op.matmul(rows, weight(16, 16))) for _ in range(2)))


def test_a_view_of_a_part_is_not_the_whole(tmp_path):
    mod, x = module(part, (5, 16)), values(5, 16)
    (made,), _, fuse = emulate(mod, [(5, 16)], tmp_path, [[x]])
    np.testing.assert_allclose(made[0], default(mod, x)[0], rtol=1e-4, atol=1e-4)
    reasons = [reason for _, reason in fuse.report.outside]  # the second may copy what lies behind an offset
    assert len(reasons) == 2 and "memory.view" in reasons[0] and "ensure_zero_offset" in reasons[1]
