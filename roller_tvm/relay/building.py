"""Building a model with the records of a tuning."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

from roller_tvm.relay.cpu_code import cpu_code
from roller_tvm.relay.dataflow import as_graph
from roller_tvm.relay.dense_weights import NamedAxes, constant_dense, history_of, packs_dense
from roller_tvm.relay.emulated import TakeHost
from roller_tvm.relay.folding import shared_constant_kernels
from roller_tvm.relay.package import KERNELS
from roller_tvm.relay.records import load_settled
from roller_tvm.relay.silence import silent_autotvm
from roller_tvm.relay.tasks import make_target
from roller_tvm.relay.tuning import find_device
from roller_tvm.tvm_env import import_relay_tvm, set_threads

#: An attribute of what `build` returns: the `GraphFusion`, or None.
FUSION = "roller_tvm_fusion"


def build(
    mod: Any, params: Any = None, target: Any = "llvm", log_file: str | os.PathLike[str] | None = None,
    fuse_rtasks: Any = False, vector_math: bool = True, wide_indices: bool = True,
    stack_tiles: bool = True, prefetch: bool = True, edge_vectors: bool = True,
) -> Any:  # fmt: skip
    """``relay.build`` with the records of a file; without a file, TVM's own schedules.

    A convenience: plain ``ApplyHistoryBest`` + ``relay.build`` with ``relay.backend.use_auto_scheduler``
    gives the same schedules but of dense layers on CPUs, whose weights TVM alone cannot pack (``dense_weights``); those
    whose vectors stand over an edge it builds slowly (tune with ``device=cpu_device().built_by_tvm()`` for it).
    This one has CPU kernels compute exp, erf and tanh with arithmetic (see ``VectorMath``; `vector_math` False has
    them call the mathematics library, as TVM's do), addresses in 64 bits (see ``WideIndices``; `wide_indices`
    False: in 32, as TVM's), register tiles on the stack (see ``StackTiles``; `stack_tiles` False: from 1 KiB on in
    workspaces, as TVM's), ask for weights ahead of time (see ``PrefetchPanels``, `prefetch`) and check tiles instead of
    lanes where vectors stand over an edge (see ``EdgeVectors``, `edge_vectors`). It leaves out half-written records,
    compiles CUDA without nvcc, sets the number of threads, and takes less time over constant folding. With
    `fuse_rtasks` (True, or what ``FuseRTasks`` gave) it runs that pass first; the result has a `FUSION`: what it did.

    Examples
    --------
    >>> lib = build(mod, params, "llvm -mcpu=skylake-avx512", "records.json")  # doctest: +SKIP
    """
    tvm = import_relay_tvm("building a Relay model")
    from tvm import relay
    from tvm.auto_scheduler.dispatcher import FallbackContext
    from tvm.relay.backend import te_compiler

    made = make_target(target)
    if made.kind.name == "cuda":
        from roller_tvm.relay.cuda import use_toolchain

        use_toolchain()
    elif made.kind.name == "llvm":
        set_threads(find_device(made, True).units)
    te_compiler.get().clear()
    take = TakeHost()
    config = {"relay.backend.use_auto_scheduler": log_file is not None}
    untuned = FallbackContext()
    untuned.verbose = 0  # it would print the whole computation of each operator without a record
    with contextlib.ExitStack() as stack:
        stack.enter_context(silent_autotvm())
        stack.enter_context(untuned)
        if log_file is not None:
            history = stack.enter_context(history_of(*load_settled(log_file, str(made))))
            cpu = made.kind.name == "llvm"
            stack.enter_context(cpu_code(
                vector_math=vector_math and cpu, wide_indices=wide_indices and cpu,
                stack_tiles=stack_tiles and cpu, prefetch=prefetch and cpu, edge_vectors=edge_vectors and cpu,
            ))  # fmt: skip
        stack.enter_context(shared_constant_kernels())
        instruments = [take.instrument] if made.kind.name == "cuda" else []
        stack.enter_context(tvm.transform.PassContext(opt_level=3, config=config, instruments=instruments))
        fusion = None
        mod = as_graph(mod)  # as its tasks were extracted
        if log_file is not None and packs_dense(mod, made):
            mod = constant_dense(mod, params)
            stack.enter_context(NamedAxes())
        if fuse_rtasks:
            from roller_tvm.relay.fuse_rtasks import FuseRTasks, fusion_of

            mod = (FuseRTasks(made, params=params) if fuse_rtasks is True else fuse_rtasks)(mod)
            params = None if fuse_rtasks is True else params
            fusion = fusion_of(mod)
            take.modules.clear()  # those of the operators one by one
        built = relay.build(mod, target=made, params=params)
        if log_file is not None:
            _tell(list(history.asked.values()), log_file, made)
        setattr(built, KERNELS, take.kernels(built.get_lib()))
        setattr(built, FUSION, fusion)
        return built


def _tell(found: list[str], log_file: str | os.PathLike[str], target: Any) -> None:
    """Warn where records do not fit what was built: none of them, or those of another target."""
    others = found.count("another target's")
    if found and found.count("none") == len(found):
        told = f"none of {len(found)} operators has a record in {log_file}: tuned for another model or other shapes"
        warnings.warn(f"{told}; TVM's own schedules are taken", RuntimeWarning, stacklevel=3)
    elif others:
        told = f"{others} of {len(found)} operators have a record of another target alone in {log_file}"
        warnings.warn(f"{told}; tune for {target}", RuntimeWarning, stacklevel=3)
