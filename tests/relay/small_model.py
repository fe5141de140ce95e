"""A small model of four operators; also imported by scripts that know nothing of roller_tvm."""

import numpy as np
import tvm
from tvm import relay


def model():
    x = relay.var("x", shape=(1, 8, 12, 12))
    w, b, d = (relay.var(n, shape=s) for n, s in (("w", (16, 8, 3, 3)), ("b", (16,)), ("d", (10, 16))))
    y = relay.nn.conv2d(x, w, padding=(1, 1), kernel_size=(3, 3), channels=16)
    y = relay.nn.relu(relay.nn.bias_add(y, b))
    y = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y))
    y = relay.nn.softmax(relay.nn.dense(y, d))
    rng = np.random.default_rng(0)
    params = {
        v.name_hint: tvm.nd.array(
            rng.standard_normal([int(e) for e in v.type_annotation.shape]).astype("float32")
        )
        for v in (w, b, d)
    }
    return tvm.IRModule.from_expr(relay.Function([x, w, b, d], y)), params


def run(lib):
    from tvm.contrib import graph_executor

    m = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    m.set_input("x", np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype("float32"))
    m.run()
    return m.get_output(0).numpy()
