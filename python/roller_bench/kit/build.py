"""Make the kit's files: plan, lower through TensorIR, compile. Needs the Relax line and a CUDA compiler."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from roller_bench.kit.archive import (
    KernelLaunch,
    KitOperator,
    KitPlan,
    Tensor,
    archive_path,
    triple,
    write_archive,
)  # fmt: skip
from roller_bench.kit.cases import RTASKS, Case
from roller_bench.kit.graphs import build_graph
from roller_bench.kit.options import DEVICES, PRODUCT, TOOLS, Options, name_of, sources_of, standing, state
from roller_bench.kit.reference import reference_of
from roller_bench.kit.support import ARCHIVE, own_sources
from roller_tvm.children import environment, python
from roller_tvm.codegen import compile_cuda
from roller_tvm.codegen.check import CompiledPlan, ResourcesDiffer, check_plan
from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.folders import beside
from roller_tvm.ir.operators import normalize, parse_params
from roller_tvm.ir.parameters import Window
from roller_tvm.planner import construct
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.roller.alignment import Rejection
from roller_tvm.roller.features import Features
from roller_tvm.roller.rprogram import Plan

#: Extra plans constructed to replace those that are left out.
SPARE = 4
#: More plans than any operator has, and the longest predicted time of a drawn one, as a multiple of the best's.
EVERY, DRAWN_WITHIN = 5000, 4.0
#: Modules of the kit's processes.
_RUN = ("run", "worker", "torch_side", "results_text", "plot")


def build_case(kit: Path, case: Case, arch: str, options: Options) -> KitOperator:
    """Make the file of one operator for one architecture, unless an up-to-date one exists; return the operator.

    Raises
    ------
    RollerError
        The operator cannot be planned, or none of its plans could be compiled.
    """
    if case.operator == RTASKS:
        return build_graph(kit, case, arch, options)
    path, made_by = archive_path(kit, arch, case), state(options)
    if found := standing(path, case, made_by, options):
        return found
    device = load_device(DEVICES[arch])
    func, reading = _read(case)
    plans: list[KitPlan] = []
    files: dict[str, bytes] = {}
    dropped: list[str] = []
    known: set[str] = set()
    for ranked in (_drawn if options.spread else _ranked)(reading, device, options.top):
        if len(plans) == options.top:
            break
        made = _compiled(case, func, reading, ranked, arch, device, options)
        if isinstance(made, str):
            dropped.append(f"{', '.join(p.recipe for p in ranked.plan.programs)}: {made}")
            continue
        compiled, host = made
        digest = hashlib.sha256(compiled.source.encode()).hexdigest()
        if digest in known:  # another plan that comes to the same kernels
            continue
        known.add(digest)
        rank = len(plans)
        plan, image = kit_plan(rank, ranked, compiled, host, arch)
        files[plan.image] = image
        if options.sources == "all" or (options.sources == "best" and rank == 0):
            plan = replace(plan, source=f"{rank}.cu")
            files[plan.source] = compiled.source.encode()
        plans.append(plan)
    if not plans:
        raise MeasureError(f"none of its plans could be compiled: {'; '.join(dropped)[:600]}", f"{case} for {arch}")
    reference = reference_of(case.operator, parse_params(case.params))
    made_operator = KitOperator(case, arch, device.name, reference, tuple(plans), tuple(dropped), made_by)
    _agree(made_operator)
    write_archive(path, made_operator, files)
    return made_operator


def attempt(kit: Path, case: Case, arch: str, options: Options) -> tuple[Case, str, int, list[str], str, float]:
    """Make one file; return the case, its architecture, its plans, those dropped, the error, and the seconds."""
    start = time.perf_counter()
    try:
        made = build_case(kit, case, arch, options)
        return case, arch, len(made.plans), list(made.dropped), "", time.perf_counter() - start
    except RollerError as error:
        return case, arch, 0, [], str(error), time.perf_counter() - start
    except Exception as error:  # a defect of one operator must not stop the others
        return case, arch, 0, [], f"{type(error).__name__}: {error}", time.perf_counter() - start


def kit_plan(rank: int, ranked: RankedPlan, compiled: CompiledPlan, host: Any, arch: str) -> tuple[KitPlan, bytes]:
    """Return a compiled plan as the kit describes it, and its cubin.

    Parameters
    ----------
    host : HostCode
        Host code returned by ``codegen.host_code_tensorir.generated``.
    """
    launches = tuple(
        KernelLaunch(x.kernel, tuple(map(str, x.arguments)), triple(x.grid), triple(x.block),
                     int(x.dynamic_shared)) for x in host.launches
    )  # fmt: skip
    parameters, between = (tuple(Tensor(b.name, tuple(map(int, b.shape)), str(b.dtype)) for b in buffers)
                           for buffers in (host.parameters, host.between))  # fmt: skip
    recipes = tuple(p.recipe for p in compiled.plan.programs)
    resources = tuple(k.to_json() for k in compiled.kernels(arch))
    plan = KitPlan(
        rank, recipes, compiled.variant, ranked.seconds * 1e6, ranked.estimate.bound, compiled.plan.to_json(),
        f"{rank}.cubin", "", parameters, between, launches, resources,
    )  # fmt: skip
    return plan, dict(compiled.images)[arch]


def _ranked(reading: Any, device: DeviceSpec, top: int) -> Iterator[RankedPlan]:
    """Yield plans, best first; after the first `top`, construct SPARE more."""
    features = Features.of_tensor_ir(device)
    first = construct(reading.expression, device, top, features).plans
    yield from first
    known = {ranked.plan for ranked in first}
    yield from (r for r in construct(reading.expression, device, top + SPARE, features).plans if r.plan not in known)


def _drawn(reading: Any, device: DeviceSpec, top: int) -> Iterator[RankedPlan]:
    """Yield plans drawn from all candidates: a random one of each of `top` parts of the ranking, the first ones short.

    The draw is the same each time. Further plans follow, to replace those that are left out.
    """
    every = construct(reading.expression, device, EVERY, Features.of_tensor_ir(device)).plans
    every = tuple(r for r in every if r.seconds <= DRAWN_WITHIN * every[0].seconds)
    draw = random.Random(str(reading.expression.digest()))
    count = min(top, len(every))
    edges = [max(n, n * n * len(every) // (count * count)) for n in range(count + 1)]
    chosen = [draw.randrange(low, high) for low, high in pairwise(edges)]
    rest = sorted(set(range(len(every))) - set(chosen))
    draw.shuffle(rest)
    yield from (every[n] for n in [*chosen, *rest[:top]])


def _read(case: Case) -> tuple[Any, Any]:
    """Return the operator's PrimFunc and its reading (``tir.read_prim_func``)."""
    from tvm import te

    from roller_tvm.tir import read_prim_func

    func = te.create_prim_func(tensors(case))
    return func, read_prim_func(func, name=str(case))


def tensors(case: Case) -> list[Any]:
    """Return a case's inputs and output as te.Tensors; half types are summed in float32, as libraries do."""
    from tvm import te, topi

    from roller_tvm.te import te_operator

    params = parse_params(case.params)
    if case.dtype == "float32":
        return te_operator(case.operator, **params)
    p, sums = normalize(case.operator, params), "float32"
    shapes = reference_of(case.operator, params).inputs
    inputs = [te.placeholder(s, case.dtype, name=n) for s, n in zip(shapes, ("data", "weight"), strict=False)]
    if case.operator == "matmul":
        turned = [side == "T" for side in p["layout"]]
        out = topi.nn.matmul(*inputs, None, sums, *turned)
    elif case.operator == "conv2d_nchw":
        high, wide = (Window.fit("", a, p[a], p[f"k{a}"], p["stride"][n], p["dilation"][n], p["padding"], n)
                      for n, a in enumerate("hw"))  # fmt: skip
        pads = [high.before, wide.before, high.after, wide.after]
        out = topi.nn.conv(*inputs, p["stride"], pads, p["dilation"], p["groups"], "NCHW", out_dtype=sums)
    else:
        return te_operator(case.operator, **{**params, "dtype": case.dtype})
    return [*inputs, topi.cast(out, case.dtype)]


def _compiled(
    case: Case, func: Any, reading: Any, ranked: RankedPlan, arch: str, device: DeviceSpec, options: Options
) -> tuple[CompiledPlan, Any] | str:
    """Return a plan's kernels and its host code, or the reason for leaving it out."""
    import tvm

    from roller_tvm.codegen.apply_tensorir import apply_steps_tir
    from roller_tvm.codegen.host_code_tensorir import generated
    from roller_tvm.planner.lower import lower
    from roller_tvm.relax.cuda import cuda_target

    hosts: dict[Plan, Any] = {}

    def source_of(plan: Plan) -> tuple[str, tuple[int, ...]]:
        # As the pipeline builds: copies that a plan has run ahead do so.
        with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
            source, host = generated(apply_steps_tir(func, reading, lower(plan)), cuda_target(arch, device))
        hosts[plan] = host
        return source, tuple(launch.dynamic_shared for launch in host.launches)

    try:
        checked = check_plan(ranked.plan, ranked.estimate, source_of, [arch], options.compiler)
    except (MeasureError, ResourcesDiffer) as error:
        return error.what
    if isinstance(checked, Rejection):
        return str(checked).splitlines()[0]
    return checked, hosts[checked.plan]


def _agree(operator: KitOperator) -> None:
    """Raise RollerError if the reference's tensor shapes differ from a plan's."""
    due = [*operator.reference.inputs, operator.reference.output]
    for plan in operator.plans:
        if [t.shape for t in plan.parameters] != due:
            got = ", ".join(str(t.shape) for t in plan.parameters)
            raise RollerError(f"plan {plan.rank} takes {got}, the reference {due}", str(operator), "report this")


def build_support(kit: Path, arch: str, options: Options) -> Path:
    """Build the archive of references, comparisons and micro-benchmarks for one architecture; return its path."""
    path = kit / arch / ARCHIVE
    sources = own_sources()
    key = hashlib.sha256(repr((sorted(sources.items()), state(options))).encode()).hexdigest()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as old:
            if old.comment.decode() == key:
                return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = key.encode()
        for name, source in sources.items():
            archive.writestr(f"{name}.cubin", compile_cuda(source, arch, options.compiler, f"the kit's {name}").data)
            archive.writestr(f"{name}.cu", source)
    return path


def copy_runner(kit: Path, script: Path) -> None:
    """Copy the script and all modules and data that run the kit into its folder; nothing else is needed."""
    for package in (PRODUCT, TOOLS):
        shutil.rmtree(kit / package.name, ignore_errors=True)
    for path in _needed():
        target = kit / name_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(script, kit / script.name)


def _needed() -> list[Path]:
    """Return the files of both packages that the kit's processes import, and the data beside them."""
    code = f"import sys, {', '.join(f'roller_bench.kit.{name}' for name in _RUN)}\n"
    code += "print(*(getattr(m, '__file__', None) or '' for m in sys.modules.values()), sep='\\n')"
    said = subprocess.run(python("-c", code), env=environment(), capture_output=True, text=True, check=True)
    files = {Path(line).resolve() for line in said.stdout.splitlines() if line}
    own = {f for f in files if PRODUCT in f.parents or TOOLS in f.parents}
    data = {p for f in own if f.name == "__init__.py" for p in sources_of([f.parent]) if p.suffix != ".py"}
    packages = {p / "__init__.py" for f in own for p in f.parents if p in (PRODUCT, TOOLS) or PRODUCT in p.parents}
    return sorted(own | packages | {p for p in data if p.suffix in (".toml", ".c", ".cu")})
