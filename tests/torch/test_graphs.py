"""What Dynamo wants of a backend beside values: changes of inputs, shared memory, strides, types, numbers."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from roller_tvm.torch_backend import RunsInTorch, roller  # noqa: E402
from tests.sampling import sampled  # noqa: E402

pytestmark = [pytest.mark.relax, pytest.mark.filterwarnings("error::roller_tvm.torch_backend.RunsInTorch")]

#: Values of one type each.
FLOATS = [1.0, -2.0, 0.5, 3.0]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)


def tensors(value):
    return [one for one in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(one, torch.Tensor)]


def shared(found):
    """Return which pairs of tensors share memory."""
    places = [one.untyped_storage().data_ptr() for one in found]
    pairs = itertools.combinations(range(len(found)), 2)
    return [(a, b) for a, b in pairs if places[a] == places[b] and places[a]]  # an empty tensor has no memory


def check(function, *inputs, compiled=None):
    """Call a function and its compiled form with copies of inputs; compare all that a caller can see."""
    compiled = compiled or torch.compile(function, backend=roller)
    both = []
    for one in (function, compiled):
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        with torch.no_grad():
            made = one(*given)
        both.append((given, made))
    (given, wanted), (changed, got) = both
    for a, b in zip([*tensors(changed), *tensors(got)], [*tensors(given), *tensors(wanted)], strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b)
    assert shared([*tensors(changed), *tensors(got)]) == shared([*tensors(given), *tensors(wanted)])
    if isinstance(wanted, tuple):
        for a, b in zip(got, wanted, strict=True):
            assert isinstance(a, torch.Tensor) or a == b
    return compiled


def adds(x):
    x.add_(1)
    return x * 2


def writes_row(x, position, row):
    x.index_copy_(0, position, row)
    return x.sum(0)


def changes_a_part(x):
    x[1:].mul_(3)
    return x.view(-1), x.sum()


#: What changes or shares memory -> function, inputs.
EFFECTS = {
    "shape changed in place": (lambda x: (x.t_(), x * 2)[1], [torch.ones(2, 3)]),
    "input changed": (adds, [torch.zeros(3)]),
    "row written": (writes_row, [torch.zeros(4, 3), torch.tensor([2]), torch.ones(1, 3)]),
    "part changed": (changes_a_part, [torch.ones(3, 4)]),
    "inner part changed": (lambda x: (x[1:2].mul_(3), x.sum())[1], [torch.ones(4, 4)]),
    "view of an input": (lambda x: (x.view(-1), x[1:], x.t(), x + 1), [torch.ones(3, 4)]),
    "changed input returned": (lambda x: (x.add_(1), x.mul_(2)[0]), [torch.ones(3, 4)]),
    "two views of a result": (lambda x: (lambda y: (y.t(), y[0], y.sum()))(x + 1), [torch.ones(3, 4)]),
    "parts of a result": (lambda x: (x * 2).chunk(2, 1), [torch.ones(3, 4)]),
    "result changed in place": (lambda x: (lambda y: (y.add_(1), y.mul_(2)))(x + 1), [torch.ones(3, 4)]),
    "one result twice": (lambda x: (lambda y: (y, y))(x + 1), [torch.ones(3)]),
    "copies": (lambda x: (x.clone(), x.clone().view(-1), x + 0), [torch.ones(3, 4)]),
    "broadcast": (lambda x: x.sum(0, keepdim=True).expand(3, 4), [torch.ones(3, 4)]),
    "channels last": (lambda x: torch.relu(x), [torch.randn(1, 4, 3, 3).to(memory_format=torch.channels_last)]),
    "constants": (lambda x: (torch.arange(4), torch.full((2,), 3.0), x + 1), [torch.ones(3)]),
    "numbers": (lambda x: (x.shape[0], 3, None, x + 1), [torch.ones(3)]),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_effects(name):
    function, inputs = EFFECTS[name]
    compiled = check(function, *inputs)
    check(function, *inputs, compiled=compiled)


@pytest.mark.parametrize("name", sampled([n for n, (_, xs) in EFFECTS.items() if xs[0].shape in ((3, 4), (4, 4))], 2))
def test_effects_over_open_extents(name):
    function = EFFECTS[name][0]
    compiled = torch.compile(function, backend=roller, dynamic=True)
    for rows in (3, 5, 2):
        check(function, torch.randn(rows, 4), compiled=compiled)


def test_a_constant_result_is_a_copy():
    compiled = torch.compile(lambda x: (torch.arange(4), x + 1), backend=roller)
    compiled(torch.ones(3))[0].zero_()
    assert compiled(torch.ones(3))[0].tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("default::roller_tvm.torch_backend.RunsInTorch")
def test_inputs_that_overlap():
    def function(x, y):
        x.add_(1)
        return y * 2

    base, other = torch.ones(4), torch.ones(4)
    compiled = torch.compile(function, backend=roller)
    check(function, base[:3], base[1:], compiled=compiled)  # copies, which do not overlap
    with pytest.warns(RunsInTorch, match="torch runs this graph"):
        got = compiled(base[:3], base[1:])
    torch.testing.assert_close(got, function(other[:3], other[1:]))
    torch.testing.assert_close(base, other)


TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", sampled(TYPES, 2), ids=str)
def test_types(dtype):
    x = torch.tensor(FLOATS).to(dtype)
    check(lambda x: (torch.where(x > 0, x, x.logical_not().to(x.dtype)), x.to(torch.float32) + 1, x == x), x)


@pytest.mark.parametrize("shape", sampled([((0, 4),), ((3, 0),), ((0,),), ((),)], 3), ids=str)
def test_empty_and_scalar_tensors(shape):
    check(lambda x: (x * 2 + 1, x.sum(), torch.cat([x.reshape(-1), x.new_ones(2)])), torch.randn(shape))


def test_layouts():
    base = torch.randn(6, 8)
    for x in (base.t(), base[::2], base[:, 1:5], base[2:, 3], base[:1].expand(6, 8)):
        check(lambda x: (x @ x.transpose(-1, -2) if x.dim() == 2 else x * 2, x.relu()), x)


def test_numbers_that_change():
    compiled = torch.compile(lambda x, n: x * n + n, backend=roller)
    for n in (2, 3, 4, 3, 0.5, 0.75, 0.25):
        check(lambda x, n: x * n + n, torch.randn(3), n, compiled=compiled)


def test_a_marked_dimension_is_open_from_the_first_call():
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0)
    counted = []

    def counting(graph, inputs):
        counted.append(1)
        return roller(graph, inputs)

    compiled = torch.compile(lambda x: torch.softmax(x, -1), backend=counting)
    with torch.no_grad():
        for one in (x, torch.randn(7, 8), torch.randn(2, 8)):
            torch.testing.assert_close(compiled(one), torch.softmax(one, -1))
    assert len(counted) == 1


class Counts(torch.nn.Module):
    """A module that changes its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x)
        return self.seen * 2


def test_a_buffer_that_the_graph_changes():
    module, other = Counts(), Counts()
    compiled = torch.compile(module, backend=roller)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), other(x))
        torch.testing.assert_close(module.seen, other.seen)


def test_a_weight_that_changes_again_is_an_input(monkeypatch):
    from roller_tvm import api

    builds, compile_ = [], api.compile
    monkeypatch.setattr(api, "compile", lambda *a, **o: builds.append(1) or compile_(*a, **o))
    module = torch.nn.Linear(4, 3).requires_grad_(False)
    compiled, x = torch.compile(module, backend=roller), torch.randn(2, 4)
    for n in range(5):
        module.weight.mul_(2)
        if 0 < n < 3:
            with pytest.warns(UserWarning, match="weights have changed"):
                torch.testing.assert_close(compiled(x), module(x))
        else:
            torch.testing.assert_close(compiled(x), module(x))
    assert len(builds) == 3


RANDOM = {
    "rand": lambda x: x + torch.rand(3),
    "randn": lambda x: x + torch.randn(3),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "bernoulli": lambda x: torch.bernoulli(x * 0.5),
}


@pytest.mark.filterwarnings("default::roller_tvm.torch_backend.RunsInTorch")
class TestLeftToTorch:
    @pytest.mark.parametrize("name", RANDOM)
    def test_random_numbers(self, name):
        function = RANDOM[name]
        torch.manual_seed(1)
        wanted = function(torch.ones(3))
        torch.manual_seed(1)
        with pytest.warns(RunsInTorch, match=r"aten\.\w+, which draws random numbers"):
            assert torch.equal(torch.compile(function, backend=roller)(torch.ones(3)), wanted)

    def test_memory_exchanged(self):
        def function(x):
            x.data = torch.arange(3.0)
            return x * 2

        with pytest.warns(RunsInTorch, match="set_ on a graph input"):
            check(function, torch.ones(3))

    def test_what_fails_in_tvm_is_told_once(self, monkeypatch):
        from roller_tvm import api

        def broken(*args, **options):
            raise ValueError("LLVM is tired")

        monkeypatch.setattr(api, "compile", broken)
        compiled = torch.compile(torch.relu, backend=roller)
        with pytest.warns(RunsInTorch, match="ValueError: LLVM is tired") as told:
            for _ in range(2):
                assert torch.equal(compiled(torch.ones(3)), torch.ones(3))
        assert len(told) == 1
