"""Convolutions rewritten to Winograd's algorithm where the model predicts a gain."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from tvm import relay  # noqa: E402
from tvm.contrib import graph_executor  # noqa: E402

from roller_tvm.device import load_device  # noqa: E402
from roller_tvm.relay.winograd import use_winograd  # noqa: E402

TARGET = "llvm -num-cores 2"


def network(sizes, window=3, stride=1, layout="NHWC", dtype="float32"):
    """Convolutions of (channels, filters) with weights as parameters."""
    rng = np.random.default_rng(0)
    channels = sizes[0][0]
    shape = (1, 16, 16, channels) if layout == "NHWC" else (1, channels, 16, 16)
    out = data = relay.var("data", shape=shape, dtype=dtype)
    params, names = {}, [data]
    for n, (c, f) in enumerate(sizes):
        form = (window, window, c, f) if layout == "NHWC" else (f, c, window, window)
        weight = relay.var(f"w{n}", shape=form, dtype=dtype)
        params[f"w{n}"] = tvm.nd.array((rng.standard_normal(form) / np.sqrt(9 * c)).astype(dtype))
        out = relay.nn.conv2d(
            out, weight, (stride, stride), (window // 2,) * 2, channels=f, kernel_size=(window, window),
            data_layout=layout, kernel_layout="HWIO" if layout == "NHWC" else "OIHW",
        )  # fmt: skip
        out = relay.nn.relu(out)
        names.append(weight)
    return tvm.IRModule.from_expr(relay.Function(names, out)), params


def output(mod, params):
    with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}):
        lib = relay.build(mod, TARGET, params=params)
    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    shape = [int(e) for e in mod["main"].params[0].type_annotation.shape]
    module.set_input("data", np.random.default_rng(1).standard_normal(shape).astype("float32"))
    module.run()
    return module.get_output(0).numpy()


def test_only_where_a_gain_is_predicted_and_the_answer_stays():
    mod, params = network([(3, 64), (64, 64)])
    rewritten, choices = use_winograd(mod, params, load_device("cpu"), TARGET, gain=1.2)
    by_channels = {choice.convolution.channels: choice for choice in choices}
    assert by_channels[64].chosen and not by_channels[3].chosen
    for choice in choices:
        assert choice.chosen == (choice.winograd_s * 1.2 <= choice.direct_s)
    assert str(rewritten).count("winograd_without_weight_transform") == 1
    np.testing.assert_allclose(output(rewritten, params), output(mod, params), rtol=1e-3, atol=1e-3)


NO_CANDIDATES = [dict(window=1), dict(window=5), dict(stride=2), dict(layout="NCHW"), dict(dtype="float16")]


@pytest.mark.parametrize("kind", NO_CANDIDATES, ids=str)
def test_what_the_algorithm_cannot_compute_is_no_candidate(kind):
    mod, params = network([(16, 16)], **kind)
    rewritten, choices = use_winograd(mod, params, load_device("cpu"), TARGET, gain=0.0)
    assert not choices and "winograd" not in str(rewritten)


def test_weights_that_are_inputs_stay():
    mod, _ = network([(64, 64)])
    assert not use_winograd(mod, None, load_device("cpu"), TARGET, gain=0.0)[1]


def test_other_functions_of_the_module_stay():
    mod, params = network([(16, 16)])
    x = relay.var("x", shape=(2,))
    mod["other"] = relay.Function([x], relay.exp(x))
    rewritten, choices = use_winograd(mod, params, load_device("cpu"), TARGET, gain=0.0)
    assert choices[0].chosen and "winograd" in str(rewritten["main"])
    assert {v.name_hint for v in rewritten.get_global_vars()} == {"main", "other"}
