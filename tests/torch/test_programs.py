"""Programs of torch.export: open dimensions, and the forms that TVM's importer misreads."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

import roller_tvm  # noqa: E402
from roller_tvm.errors import UnsupportedOperator, UsageError  # noqa: E402
from roller_tvm.relax.importers import IMPORTER  # noqa: E402

pytestmark = pytest.mark.relax


def module_of(function):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module()


def mask(x):
    """Return x where a mask that is made of positions alone is set."""
    positions = torch.arange(x.shape[1])
    return torch.where(positions[:, None] >= positions[None, :], x, 0.0) + torch.outer(positions, positions).sin()


def put(*index, rows=False):
    """Return a function that writes at an index of a tensor: a number, or (`rows`) what stands there, doubled."""

    def function(x):
        y, at = x.clone(), tuple(slice(None) if one is None else torch.tensor(one) for one in index)
        y[at] = x[at] * 2 if rows else x.sum()
        return y

    return function


SCATTER = {"index_put as scatter"}
PUT = {"index_put with an index for each dimension"}
#: Name -> function, inputs, rewrites that it needs.
FORMS = {
    "rows written": (put([2, 0], rows=True), [(3, 4)], SCATTER),
    "columns written": (put(None, [1, -1], rows=True), [(3, 4)], SCATTER),
    "middle written": (put(None, [1, 0], None, rows=True), [(3, 3, 3)], SCATTER),
    "last written": (put(None, None, [1, 0], rows=True), [(3, 3, 3)], SCATTER),
    "one row written": (put(None, 1), [(3, 3, 3)], set()),
    "read from the end": (lambda x: x[:, torch.tensor([1, -1])], [(3, 4)], {"indices counted from the end"}),
    "indices computed": (lambda x: x[x.long()[:, 0] - 1], [(3, 4)], {"indices counted from the end"}),
    "a number in rows": (put([2, 0]), [(3, 4)], PUT),
    "a number in columns": (put(None, [1, 3]), [(3, 4)], PUT),
    "two, apart": (put([1, 0], None, [2, 1]), [(3, 3, 3)], PUT),
    "two, together": (put(None, [[1, 0]], [2, 1], None), [(2, 3, 3, 2)], PUT),
    "bools compared": (lambda x: (x > 0) == (x > 0.2), [(3, 5)], {"bools compared as uint8"}),
    "scan of bool": (lambda x: torch.cumsum(x > 0, -1), [(3, 5)], {"cumsum in int64"}),
    "sum of bool": (lambda x: (x > 0).sum(-1), [(3, 5)], {"sum in int64"}),
    "sum of int32": (lambda x: x.to(torch.int32).sum(), [(3, 5)], {"sum in int64"}),
    "empty part": (lambda x: torch.cat([torch.empty(0), x], 1), [(1, 2, 3, 4)], {"cat without empty parts"}),
    "two types": (lambda x: (x * 3).to(torch.int32) + x, [(3, 5)], {"operands in one type"}),
    "quotient of ints": (
        lambda x: (x * 9).to(torch.int32) / (x * 5 + 7).to(torch.int64),
        [(3, 5)],
        {"operands in one type"},
    ),
    "quotient rounded down": (
        lambda x: torch.div((x * 9).to(torch.int64), 2, rounding_mode="floor"),
        [(3, 5)],
        {"divisor in its dividend's type"},
    ),
    "comparison of two types": (lambda x: (x * 3).to(torch.int64) < x, [(3, 5)], {"operands in one type"}),
    "pool of single elements": (
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x.exp(), (3, 2)) + 1,
        [(1, 4, 3, 2)],
        {"pools of windows of one element dropped"},
    ),
    "positions": (mask, [(4, 4)], {"constants folded"}),
    "histogram": (lambda x: torch.histc(x, 5, -0.3, 0.4), [(3, 50)], {"histogram by comparisons"}),
    "histogram of whole numbers": (
        lambda x: torch.histc((x * 8).round().clamp(-4, 3), 8, -4, 3), [(90,)], {"histogram by comparisons"},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    function, shapes, needed = FORMS[name]
    torch.manual_seed(0)
    inputs = [torch.rand(*shape) - 0.5 for shape in shapes]
    program = torch.export.export(module_of(function), tuple(inputs))
    told = IMPORTER.import_model(program)[1].notes
    assert {note.partition(": ")[2].rpartition(" (")[0] for note in told} >= needed
    got, wanted = roller_tvm.compile(program)(*inputs), function(*inputs)
    assert str(got.dtype) == str(wanted.dtype).removeprefix("torch.")
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_what_needs_nothing_is_told_nothing():
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),))
    assert IMPORTER.import_model(program)[1].notes == ()


def test_random_numbers_are_not_folded():
    program = torch.export.export(module_of(lambda x: x + torch.rand(3)), (torch.zeros(3),))
    with pytest.raises(UnsupportedOperator, match="rand"):
        roller_tvm.compile(program)


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x)
        return self.seen * 2


def test_changes_in_place():
    def changes(x):
        x.add_(1)
        return x * 2

    program = torch.export.export(module_of(changes), (torch.zeros(3),))
    with pytest.raises(UnsupportedOperator, match="changes its input x in place|changes its input args_0 in place"):
        roller_tvm.compile(program)
    with pytest.raises(UnsupportedOperator, match="changes its buffer seen in place, on which its next answer depends"):
        roller_tvm.compile(Counts(), example_inputs=(torch.zeros(3),))
    norm = torch.nn.BatchNorm1d(3).train()
    program = torch.export.export(norm, (torch.rand(4, 3),))
    told = IMPORTER.import_model(program)[1].notes
    assert any("its buffer running_mean stays as it is" in note for note in told)


def test_open_dimensions():
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Softmax(-1)).eval()
    rows = torch.export.Dim("rows")
    model = roller_tvm.compile(module, example_inputs=(torch.randn(4, 8),), dynamic_shapes=({0: rows},))
    assert [shape[0] for shape, _ in model.inputs.values()] != [4]
    for n in (2, 4, 9):
        x = torch.randn(n, 8)
        np.testing.assert_allclose(model(x), module(x).detach().numpy(), rtol=1e-4, atol=1e-6)
    with pytest.raises(UsageError, match="only a torch module takes dynamic_shapes"):
        roller_tvm.compile(torch.export.export(module, (torch.randn(4, 8),)), dynamic_shapes=({0: rows},))
