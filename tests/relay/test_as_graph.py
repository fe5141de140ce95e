"""Models written with bindings and functions inside of functions."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402
from tvm.contrib.graph_executor import GraphModule  # noqa: E402
from tvm.relay import testing  # noqa: E402

from roller_tvm.relay import build, tune  # noqa: E402
from roller_tvm.relay.dataflow import as_graph  # noqa: E402

TARGET = "llvm -mcpu=core-avx2 -num-cores=2"


@pytest.mark.nightly
def test_an_lstm_of_bindings_and_functions_is_tuned_and_built_with_its_records(tmp_path):
    mod, params = testing.lstm.get_workload(2, 8)
    rng = np.random.default_rng(1)
    main = mod["main"]
    fresh = [relay.Var(f"given{n}", p.type_annotation) for n, p in enumerate(main.params)]  # two of them have one name
    values = [params.get(p.name_hint) for p in main.params]
    main = relay.Function(fresh, relay.Call(main, fresh))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(main))
    inputs = {v.name_hint: rng.standard_normal([int(e) for e in v.type_annotation.shape]).astype("float32")
              for v, given in zip(fresh, values, strict=True) if given is None}  # fmt: skip
    params = {v.name_hint: given for v, given in zip(fresh, values, strict=True) if given is not None}
    records = tmp_path / "records.json"
    result = tune(mod, params, TARGET, records, trials=0)
    assert len(inputs) == 2 and all(task.status == "planned" for task in result.tasks)
    module = GraphModule(build(mod, params, TARGET, records)["default"](tvm.cpu()))
    module.run(**inputs)
    # The virtual machine takes the module as it is written.
    everything = {**params, **inputs}
    with tvm.transform.PassContext(opt_level=3):
        machine = relay.create_executor("vm", mod, tvm.cpu(), "llvm").evaluate()
    own = machine(*(everything[v.name_hint] for v in fresh))
    np.testing.assert_allclose(module.get_output(0).numpy(), own.numpy(), rtol=1e-5, atol=1e-6)


def test_a_graph_and_what_branches_stay_as_they_are():
    x = relay.var("x", shape=(4,))
    plain = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], relay.exp(x))))
    assert as_graph(plain) is plain
    flag = relay.var("flag", shape=(), dtype="bool")
    y = relay.var("y")
    chosen = relay.Let(y, relay.exp(x), relay.If(flag, y, x))
    branches = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, flag], chosen)))
    assert as_graph(branches) is branches
