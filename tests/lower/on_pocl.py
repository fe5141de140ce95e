"""Runs a GPU schedule on the CPU: TVM's OpenCL source of it, through pyopencl on PoCL."""

import re
from math import prod

import numpy as np


def queue():
    """A command queue of PoCL; None where there is no platform."""
    import pyopencl as cl

    try:
        devices = [d for p in cl.get_platforms() if "Portable" in p.name for d in p.get_devices()]
    except cl.LogicError:
        return None
    return cl.CommandQueue(cl.Context(devices[:1])) if devices else None


def _launches(lowered):
    """(blocks, threads) of each kernel in order, and the intermediate tensors between kernels."""
    import tvm

    launches, between = [], {}

    def walk(stmt):
        if isinstance(stmt, tvm.tir.SeqStmt):
            for part in stmt.seq:
                walk(part)
        elif isinstance(stmt, tvm.tir.Allocate):
            between[stmt.buffer_var.name] = (prod(int(e) for e in stmt.extents), stmt.dtype)
            walk(stmt.body)
        elif isinstance(stmt, tvm.tir.AttrStmt) and stmt.attr_key == "thread_extent":
            extents = {}

            def visit(node):
                if isinstance(node, tvm.tir.AttrStmt) and node.attr_key == "thread_extent":
                    extents[node.node.thread_tag] = int(node.value)

            tvm.tir.stmt_functor.post_order_visit(stmt, visit)
            launches.append([[extents.get(f"{what}.{c}", 1) for c in "xyz"] for what in ("blockIdx", "threadIdx")])
        else:
            walk(stmt.body)

    (function,) = lowered.functions.values()
    walk(function.body)
    return launches, between


def run(queue, schedule, args, feeds):
    """The output of a schedule for the given inputs (one array a placeholder, in order)."""
    import pyopencl as cl
    import tvm
    from tvm import te

    lowered = tvm.lower(schedule, args, name="k")
    launches, between = _launches(lowered)
    source = tvm.build(lowered, target=tvm.target.Target("opencl", host="llvm")).imported_modules[0].get_source()
    # Optimised, PoCL 3.1 (LLVM 14) miscompiles guarded sums: values are lost that the same source gives without.
    program = cl.Program(queue.context, source).build(options=["-w", "-cl-opt-disable"])
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    hosts, buffers = {}, {}
    remaining = iter(feeds)
    for tensor in args:
        shape = [int(e) for e in tensor.shape]
        given = isinstance(tensor.op, te.PlaceholderOp)
        host = np.ascontiguousarray(next(remaining)) if given else np.full(shape, np.nan, tensor.dtype)
        name = re.sub(r"\W", "_", tensor.op.name)
        assert name not in hosts, f"two tensors are called {name}: {args}"
        hosts[name], buffers[name] = host, cl.Buffer(queue.context, flags, hostbuf=host)
    for name, (elements, dtype) in between.items():
        buffers[re.sub(r"\W", "_", name)] = cl.Buffer(queue.context, flags, hostbuf=np.full(elements, np.nan, dtype))
    kernels = re.findall(r"kernel void (?:__attribute__\(\(.*?\)\))? *(\w+)\(([^)]*)\) *\{", source, re.S)
    kernels = sorted(set(kernels), key=lambda k: (len(k[0]), k[0]))
    assert len(kernels) == len(launches), (kernels, launches)
    for (name, parameters), (blocks, threads) in zip(kernels, launches, strict=True):
        kernel = cl.Kernel(program, name)
        kernel.set_args(*(buffers[re.split(r"[\s*]+", p.strip())[-1]] for p in parameters.split(",")))
        cl.enqueue_nd_range_kernel(queue, kernel, [b * t for b, t in zip(blocks, threads, strict=True)], threads)
    queue.finish()
    result = hosts[re.sub(r"\W", "_", args[-1].op.name)]
    cl.enqueue_copy(queue, result, buffers[re.sub(r"\W", "_", args[-1].op.name)])
    queue.finish()
    return result
