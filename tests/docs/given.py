"""What the examples of the docstrings take for given, on either of TVM's lines."""

from functools import cache
from pathlib import Path

from roller_tvm.tvm_env import line

from .test_code_blocks import surroundings


@cache
def given():
    """Return what the examples of a line take for given."""
    import numpy as np
    import tvm
    from tvm import te

    import roller_tvm
    from roller_tvm.device import load_device

    names = surroundings() | {"np": np, "roller_tvm": roller_tvm, "device": load_device("cpu")}
    names["model"] = roller_tvm.compile("model.onnx")
    names["weights"] = np.zeros((16, 32), "float32")
    if line() == "relay":
        return names | of_relay(tvm, te, names)
    return names | of_relax(tvm, te, names)


def of_relay(tvm, te, names):
    from roller_tvm import auto_scheduler
    from roller_tvm.relay.building import build
    from roller_tvm.relay.importers import load_model

    tasks, weights = auto_scheduler.extract_tasks(names["mod"]["main"], names["params"], "llvm")
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1, name="b")
    given = {n: getattr(auto_scheduler, n) for n in ("TaskScheduler", "TuningOptions", "RecordToFile")}
    return given | {
        "build": build, "load_model": load_model, "to_device": tvm.nd.array, "task": tasks[0],
        "schedule": te.create_schedule(b.op), "args": [a, b], "workload_key": tasks[0].workload_key,
        "options": auto_scheduler.TuningOptions(3),
    }  # fmt: skip


def of_relax(tvm, te, names):
    from tvm import relax

    from roller_tvm.relax import ScheduleWithRoller, load_model
    from roller_tvm.relax.pipeline import build, roller_pipeline

    with names["target"]:
        scheduled = ScheduleWithRoller()(names["mod"])
    return {
        "func": product(te, 16), "scheduled": scheduled, "roller_pipeline": roller_pipeline, "build": build,
        "to_device": tvm.runtime.tensor, "load_model": load_model, "some_pass": relax.transform.DeadCodeElimination(),
    }  # fmt: skip


def product(te, rows):
    """Return a PrimFunc that multiplies `rows` rows by a matrix."""
    a, b = te.placeholder((rows, 32), name="a"), te.placeholder((32, 24), name="b")
    r = te.reduce_axis((0, 32), name="r")
    return te.create_prim_func([a, b, te.compute((rows, 24), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")])


def of_module(name):
    """Return what the examples of one module take for given, beside `given`."""
    made = MODULES.get(name)
    return made() if made else {}


def _matmul():
    """Return a workload of auto_scheduler, registered."""
    from tvm import auto_scheduler, te

    def matmul(m, n, k):
        a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
        r = te.reduce_axis((0, k), name="r")
        return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")]

    matmul.__qualname__ = "matmul"  # by which TVM knows it
    return auto_scheduler.register_workload("matmul", f=matmul, override=True)


def _tuned():
    from roller_tvm import auto_scheduler

    names = given()
    tasks, weights = auto_scheduler.extract_tasks(names["mod"]["main"], names["params"], "llvm")
    return {"matmul": _matmul(), "tasks": tasks, "weights": weights, "task": tasks[0]}


def _states():
    return {"states": [given()["task"].compute_dag.get_init_state()]}


def _record():
    from roller_tvm.relay.records import Note

    return {"state": given()["task"].compute_dag.get_init_state(), "note": Note(measured_s=1e-3)}


def _large_convolution():
    import numpy as np
    from tvm import IRModule, relay

    from roller_tvm.device import device_for_target

    x, w = relay.var("x", shape=(1, 56, 56, 64)), relay.var("w", shape=(3, 3, 64, 64))
    y = relay.nn.conv2d(x, w, padding=1, channels=64, kernel_size=3, data_layout="NHWC", kernel_layout="HWIO")
    return {
        "mod": IRModule.from_expr(relay.Function([x, w], y)), "params": {"w": np.ones((3, 3, 64, 64), "float32")},
        "device": device_for_target("llvm -mcpu=skylake-avx512 -num-cores=2"),
    }  # fmt: skip


def _for_cuda():
    from tvm import relay

    return {"relay": relay, "target": "cuda -arch=sm_80"}


def _plain_schedule():
    from tvm.s_tir import Schedule

    return {"schedule": Schedule(given()["func"]), "original": given()["func"]}


def _packing():
    import numpy as np

    return _plain_schedule() | {"x": np.ones((16, 32), "float32"), "weights": np.ones((32, 24), "float32")}


def _joined():
    from tvm import te, topi

    parts = [te.placeholder((1, 2, 14, 14, 16), name=name) for name in "de"]
    joined = te.create_prim_func([*parts, topi.concatenate(parts, 1)])
    return {"mod": {"concatenate": joined}, "func": joined}


def _added():
    from tvm import te, topi

    a, b, r = (te.placeholder((16, 16), name=name) for name in "abr")
    return {"mod": {"fused_matmul_add": te.create_prim_func([a, b, r, topi.add(topi.nn.matmul(a, b), r)])}}


def _open_rows():
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.relu(x)))
        builder.emit_func_output(y)
    return {"mod": builder.get()}


def _open_product():
    import tvm
    from tvm import te

    return {"func": product(te, tvm.tirx.Var("n", "int64"))}


def _scores():
    from tvm import te, topi

    q, k = te.placeholder((12, 197, 8), name="q"), te.placeholder((12, 197, 8), name="k")
    s = te.placeholder((12, 197, 197), name="s")
    scores = te.create_prim_func([q, k, topi.nn.batch_matmul(q, k)])
    return {"scores": scores, "softmax": te.create_prim_func([s, topi.nn.softmax(s, -1)])}


def _watched():
    import tvm
    from tvm import relax

    names = given()
    machine = relax.VirtualMachine(names["build"](names["mod"], names["target"]), tvm.cpu())
    return {"machine": machine, "x": tvm.runtime.tensor(names["x"])}


def _open_graph():
    import onnx

    graph = onnx.load("model.onnx").graph
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return {"graph": graph}


def _branches():
    from roller_tvm.relax import FuseRTasks
    from tests.relax.networks import module
    from tests.relax.test_fuse_rtasks import inception

    target = {"kind": "cuda", "arch": "sm_80"}
    return {"mod": module(inception, (1, 8, 14, 14)), "target": target, "FuseRTasks": FuseRTasks}


def _on_pocl():
    from roller_check.relax_fused import own_loops
    from roller_tvm.device import load_device
    from roller_tvm.rammer import plan_graph
    from roller_tvm.rammer.functions import Call, call_graph
    from roller_tvm.relax.rtask_functions import RFunctions

    calls = [Call(f"d{n}", product(_te(), 16), ("x", f"w{n}", f"y{n}")) for n in range(3)]
    functions = RFunctions(load_device("a100"), 2)
    (part,) = plan_graph(call_graph(calls, functions), functions.device, "horizontal").parts
    return {"functions": functions, "own_loops": own_loops, "part": part, "calls": calls}


def _te():
    from tvm import te

    return te


def _waiting():
    from roller_tvm.device import load_device
    from tests.rammer.test_bounds import waiting

    return {"kernel": waiting(), "device": load_device("a100")}


def _measured():
    from roller_tvm.tuning.line import Model, this_line

    names, chosen = given(), this_line()
    device = chosen.device(None, names["target"])
    task = chosen.tasks(Model(names["mod"], names["params"]), names["target"], device)[0]
    schedules = chosen.candidates(task, device, 1).applied()
    lines = [chosen.record(task, schedule, names["target"]) for _, schedule in schedules]
    return {"line": chosen, "device": device, "task": task, "lines": lines, "work": chosen.work(task, names["target"])}


def _compared():
    from roller_bench.cases import load_suite
    from roller_bench.run import Request
    from roller_bench.tuners import parse_tuners
    from roller_tvm.device import load_device

    request = Request(f"roller_bench.{line()}", line(), "llvm", load_device("cpu"), parse_tuners("roller:1"),
                      Path("comparison"), 1)  # fmt: skip
    return {"request": request, "load_suite": lambda name: load_suite(name)[:1]}


MODULES = {
    **dict.fromkeys(
        ("roller_tvm.auto_scheduler", "roller_tvm.auto_scheduler.search_policy",
         "roller_tvm.auto_scheduler.search_task", "roller_tvm.auto_scheduler.task_scheduler"), _tuned,
    ),
    **dict.fromkeys(("roller_tvm.relax.dynamic", "roller_tvm.relax.size_checks"), _open_rows),
    **dict.fromkeys(("roller_tvm.tir.open_axes", "roller_tvm.relax.open_schedule"), _open_product),
    **dict.fromkeys(("roller_tvm.tuning.checking", "roller_tvm.tuning.measurer"), _measured),
    "roller_tvm.auto_scheduler.measuring": _states,
    "roller_tvm.relay.records": _record,
    "roller_tvm.relay.winograd": _large_convolution,
    "roller_tvm.codegen.host_reading": _for_cuda,
    "roller_tvm.relax.proving": _plain_schedule,
    "roller_tvm.relax.kernels": _packing,
    "roller_tvm.tir.joined": _joined,
    "roller_tvm.tir.overwritten": _added,
    "roller_tvm.tir.shared_axes": _scores,
    "roller_tvm.relax.watch": _watched,
    "roller_tvm.relax.open_shapes": _open_graph,
    "roller_tvm.relax.fused_function": _branches,
    "roller_check.fused": _on_pocl,
    "roller_tvm.rammer.without_spills": _waiting,
    "roller_bench.run": _compared,
}  # fmt: skip
