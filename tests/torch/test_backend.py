"""``torch.compile(backend="roller")``: values, open extents, weights that change, graphs left to torch."""

import importlib.metadata

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from roller_tvm.torch_backend import RunsInTorch, roller  # noqa: E402

pytestmark = [pytest.mark.relax, pytest.mark.filterwarnings("error::roller_tvm.torch_backend.RunsInTorch")]


class Net(torch.nn.Module):
    """A network with a buffer, whose results are a tensor, an input and a number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)
        self.register_buffer("scale", torch.full((16,), 2.0))

    def forward(self, x):
        return {"y": torch.relu(self.norm(self.linear(x))) * self.scale, "x": x, "n": x.shape[0]}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@pytest.fixture
def builds(monkeypatch):
    """The inputs of each build."""
    from roller_tvm import api

    made, compile_ = [], api.compile

    def watched(*args, **options):
        model = compile_(*args, **options)
        made.append(dict(model.inputs))
        return model

    monkeypatch.setattr(api, "compile", watched)
    return made


def check(module, compiled, *inputs):
    with torch.no_grad():
        wanted, got = module(*inputs), compiled(*inputs)
    for one, other in zip(*([v[k] for k in v] if isinstance(v, dict) else [v] for v in (got, wanted)), strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
        else:
            assert one == other


def test_torch_finds_it_by_name():
    found = importlib.metadata.entry_points(group="torch_dynamo_backends")
    assert found["roller"].load() is roller
    assert "roller" in torch._dynamo.list_backends(exclude_tags=())


def test_an_open_extent_is_built_once(builds):
    module = Net().eval()
    compiled = torch.compile(module, backend=roller)
    for rows in (4, 6, 7, 5):  # torch fixes the first, then leaves it open
        check(module, compiled, torch.randn(rows, 8))
    assert [shape for one in builds for shape, _ in one.values()] == [(4, 8), (next(iter(builds[1].values()))[0][0], 8)]
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert compiled(x)["x"] is x, "an input that is returned is the input"


def test_changed_weights_are_seen(builds):
    module = Net().eval()
    compiled, x = torch.compile(module, backend=roller), torch.randn(4, 8)
    check(module, compiled, x)
    with torch.no_grad():
        module.linear.weight.mul_(2)
    with pytest.warns(UserWarning, match="weights have changed"):
        check(module, compiled, x)
    assert len(builds) == 2


def test_inference_mode_and_layouts():
    module = Net().eval()
    compiled = torch.compile(module, backend=roller)
    with torch.inference_mode():
        x = torch.randn(8, 4).t()
        np.testing.assert_allclose(compiled(x)["y"].numpy(), module(x)["y"].numpy(), rtol=1e-4, atol=1e-5)


def test_a_graph_break_runs_in_torch():
    def broken(x):
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return y * 2

    check(broken, torch.compile(broken, backend=roller), torch.randn(3, 5))


@pytest.mark.filterwarnings("default::roller_tvm.torch_backend.RunsInTorch")
class TestLeftToTorch:
    def test_gradients(self):
        module, x = Net().eval(), torch.randn(4, 8)
        with pytest.warns(RunsInTorch, match=r"gradients are computed; call it under torch.no_grad"):
            torch.compile(module, backend=roller)(x)["y"].sum().backward()
        assert module.linear.weight.grad is not None

    def test_an_operator_that_tvm_lacks_is_named(self):
        def lacks(x):
            return torch.linalg.eigvalsh(x @ x.T)

        x = torch.randn(3, 3)
        with pytest.warns(RunsInTorch, match="eigh"):
            got = torch.compile(lacks, backend=roller)(x)
        torch.testing.assert_close(got, lacks(x))


def test_options():
    function = torch.compile(torch.relu, backend=roller, options={"threads": 1, "schedules": "tvm"})
    check(torch.relu, function, torch.randn(5))
    with pytest.raises(Exception, match="UsageError: options: torch.compile has no option 'thread'"):
        torch.compile(torch.relu, backend=roller, options={"thread": 1})(torch.randn(5))
