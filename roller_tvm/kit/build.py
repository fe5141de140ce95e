"""Make the kit's files: plan, lower through TensorIR, compile. Needs the Relax line and a CUDA compiler."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller_tvm.codegen import compile_cuda, find_compilers
from roller_tvm.codegen.check import CompiledPlan, ResourcesDiffer, check_plan
from roller_tvm.device import DeviceSpec, load_device
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.ir.operators import normalize, parse_params
from roller_tvm.ir.parameters import Window
from roller_tvm.kit.archive import (
    KernelLaunch,
    KitOperator,
    KitPlan,
    Tensor,
    archive_path,
    read_operator,
    triple,
    write_archive,
)
from roller_tvm.kit.cases import RTASKS, Case
from roller_tvm.kit.reference import reference_of
from roller_tvm.kit.support import ARCHIVE, own_sources
from roller_tvm.planner import construct
from roller_tvm.planner.construction import RankedPlan
from roller_tvm.roller.alignment import Rejection
from roller_tvm.roller.features import Features
from roller_tvm.roller.rprogram import Plan

#: Architecture -> device that its plans are made for.
DEVICES = {"sm_80": "a100", "sm_90": "h200"}
#: Extra plans constructed to replace those that are left out.
SPARE = 4
PACKAGE = Path(__file__).resolve().parent.parent
#: Folders and modules of this package: those a kernel depends on (`_MAKES`), and those the kit runs (`_RUNS`).
_MAKES = ("ir", "device", "roller", "micro_perf", "recipes", "planner", "codegen", "te", "tir",
          "rammer", "relax",
          *(f"kit/{name}.py" for name in ("build", "graphs", "archive", "cases", "reference", "inputs")))  # fmt: skip
_RUNS = (
    "__init__.py", "errors.py", "stats.py", "svg.py", "version.py", "device", "ir", "kit", "tuning/__init__.py",
    "tuning/lifeline.py", "roller", "micro_perf", "recipes", "planner",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Options for making a kit.

    Parameters
    ----------
    top : int
        Number of plans per operator.
    compiler : str
        'auto', 'nvrtc' or 'nvcc'.
    sources : str
        Plans whose CUDA C++ is kept: 'none', 'best' or 'all'.
    keep : bool
        True to keep existing files even if other code or another compiler made them.
    """

    top: int = 10
    compiler: str = "auto"
    sources: str = "best"
    keep: bool = False

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"'top' must be at least 1 (got {self.top})")
        if self.sources not in ("none", "best", "all"):
            raise ValueError(f"'sources' must be none, best or all (got {self.sources!r})")


def standing(path: Path, case: Case, made_by: str, options: Options) -> KitOperator | None:
    """Return a case's operator from its existing file if this code and compiler made it, else None.

    A damaged file counts as absent. With ``options.keep`` any readable file of the case is accepted.
    """
    if not path.is_file():
        return None
    try:
        found = read_operator(path)
    except RollerError:
        return None
    return found if found.case == case and (options.keep or found.made_by == made_by) else None


def build_case(kit: Path, case: Case, arch: str, options: Options) -> KitOperator:
    """Make the file of one operator for one architecture, unless an up-to-date one exists; return the operator.

    Raises
    ------
    RollerError
        The operator cannot be planned, or none of its plans could be compiled.
    """
    if case.operator == RTASKS:
        from roller_tvm.kit.graphs import build_graph

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
    for ranked in _ranked(reading, device, options.top):
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
    from roller_tvm.tir.cuda import cuda_target

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


@functools.lru_cache(maxsize=8)
def state(options: Options) -> str:
    """Return the compiler, the options and a digest of the code that makes kernels.

    If any of them changes, files are made again.
    """
    digest = hashlib.sha256()
    for path in _sources(_MAKES):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    compilers = [c for c in find_compilers() if options.compiler in ("auto", c.name)]
    name = f"{compilers[0].name} {compilers[0].version[0]}.{compilers[0].version[1]}" if compilers else "no compiler"
    return f"{name}, top {options.top}, sources {options.sources}, code {digest.hexdigest()[:12]}"


def _sources(of: tuple[str, ...]) -> list[Path]:
    found = []
    for name in of:
        path = PACKAGE / name
        if not path.exists():  # one that has moved would drop out of the digest in silence
            raise FileNotFoundError(path)
        inside = [path] if path.is_file() else path.rglob("*")
        found += [p for p in inside if p.is_file() and "__pycache__" not in p.parts]
    return sorted(found)


def build_support(kit: Path, arch: str, options: Options) -> Path:
    """Build the archive of references, comparisons and micro-benchmarks for one architecture; return its path."""
    path = kit / arch / ARCHIVE
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = own_sources()
    key = hashlib.sha256(repr((sorted(sources.items()), state(options))).encode()).hexdigest()
    with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else _Nothing() as old:
        if old is not None and old.comment.decode() == key:
            return path
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = key.encode()
        for name, source in sources.items():
            archive.writestr(f"{name}.cubin", compile_cuda(source, arch, options.compiler, f"the kit's {name}").data)
            archive.writestr(f"{name}.cu", source)
    os.replace(temporary, path)
    return path


class _Nothing:
    """A context in place of an archive that does not exist."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def copy_runner(kit: Path, script: Path) -> None:
    """Copy the script and the package's modules that run the kit into its folder; nothing else is needed."""
    shutil.rmtree(kit / PACKAGE.name, ignore_errors=True)
    for path in _sources(_RUNS):
        target = kit / PACKAGE.name / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(script, kit / script.name)
