"""Graphs of operators in the kit: kernels fused by rTasks, beside the same operators one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from math import ceil, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from roller_bench.kit.archive import KernelLaunch, KitOperator, KitPlan, Tensor, archive_path, triple, write_archive
from roller_bench.kit.cases import Case
from roller_bench.kit.inputs import STEPS, TYPES, allowed, seed_of, step_of
from roller_bench.kit.options import DEVICES, Options, standing, state
from roller_bench.kit.reference import UNFUSED, Reference, places
from roller_tvm.codegen import compile_cuda, kernel_resources
from roller_tvm.codegen.host_code import BufferSpec, HostCode
from roller_tvm.device import load_device
from roller_tvm.errors import MeasureError, RollerError
from roller_tvm.ir.operators import parse_params
from roller_tvm.rammer import Costs
from roller_tvm.rammer.makers import KernelMaker
from roller_tvm.rammer.wavefront import plain_kernel

FUSED = "fused"
#: Number of elements of a graph's result compared with a CPU's.
SPOTS = 256
#: How often a graph is computed with its tensors rounded once more.
TURNS = 4


def filled(count: int, seed: int) -> np.ndarray:
    """Return the first `count` values of ``kit.inputs.value``, as the card fills an input.

    Examples
    --------
    >>> from roller_bench.kit.inputs import value
    >>> filled(3, 1).tolist() == [value(i, 1) for i in range(3)]
    True
    """
    steps = step_of(np.arange(count, dtype=np.uint64), seed).astype(np.float32)
    return np.asarray((steps - np.float32(STEPS)) / np.float32(STEPS), np.float32)


def build_graph(kit: Path, case: Case, arch: str, options: Options) -> KitOperator:
    """Make the file of one graph for one architecture, unless an up-to-date one exists; return its operator.

    Raises
    ------
    RollerError
        A part of the graph cannot be planned, or a kernel is refused.
    """
    path, made_by = archive_path(kit, arch, case), state(options)
    if found := standing(path, case, made_by, options):
        return found
    made = _Graph(case, arch, options)
    plans = (made.fused(), made.apart())
    inputs, output = [t.shape for t in made.parameters[:-1]], made.parameters[-1].shape
    known = made.known()
    terms = max(made.terms(), made.terms_by_rounding(known))
    reference = Reference(UNFUSED, (), tuple(inputs), output, terms, made.flops, known)
    operator = KitOperator(case, arch, DEVICES[arch], reference, plans, (), made_by)
    write_archive(path, operator, made.files)
    return operator


def _rounded(values: np.ndarray, rounding: np.random.Generator | None) -> np.ndarray:
    if rounding is None:
        return values
    step = np.float32(TYPES["float32"][1])
    return values * (1 + step * rounding.integers(-1, 2, values.shape).astype(np.float32))


class _Graph:
    """A planned model and its kernels, compiled on demand."""

    def __init__(self, case: Case, arch: str, options: Options) -> None:
        from roller_bench.branchy import build
        from roller_tvm.relax.fuse_rtasks import rtask_graph

        self.case, self.arch, self.options = case, arch, options
        self.device = load_device(DEVICES[arch])
        params = parse_params(case.params)
        found = rtask_graph(build(params["model"], int(params.get("scale", 1)))[0], device=self.device)
        if len(found.regions) != 1 or found.outside:
            raise MeasureError(f"falls into {len(found.regions)} graphs, with {len(found.outside)} operators outside",
                               f"{case} for {arch}", "give the kit a model that can be planned whole")
        (self.region,) = found.regions
        self.graph = found.graph(self.region)
        (self.plan,) = found.plans()
        self.maker = KernelMaker(found.functions)
        self.calls = {call.name: call for call in self.region.calls}
        self.flops = sum(k.plan.expression.flops for o in self.graph.operators if (k := o.fastest).plan)
        self.files: dict[str, bytes] = {}
        self.resources: dict[str, tuple[dict[str, Any], ...]] = {}
        self.parameters: tuple[Tensor, ...] = ()

    def terms(self) -> int:
        """Return the length of one sum with the rounding error of the graph's longest chain of sums."""
        roots: dict[str, float] = {}
        for wave in self.graph.waves:
            for o in wave:
                stages = plan.expression.stages if (plan := o.fastest.plan) else ()
                own = sum(sqrt(prod(a.extent for a in s.reduce)) for s in stages if s.reduce)
                roots[o.name] = own + max((roots[e.producer] for e in o.inputs), default=0.0)
        return round(max(roots.values()) ** 2)

    def terms_by_rounding(self, known: Sequence[tuple[int, float]]) -> int:
        """Return the length of one sum that differs as much as the graph does if every tensor is rounded once more.

        Steps that follow one another enlarge an error: a recurrence of ten steps a thousand times.
        """
        largest = max((abs(value) for _, value in known), default=1.0)
        again = (self.known(np.random.default_rng(seed)) for seed in range(TURNS))
        apart = max(abs(a - b) for turn in again for (_, a), (_, b) in zip(turn, known, strict=True))
        return ceil((apart / allowed("float32", largest)) ** 2)

    def known(self, rounding: np.random.Generator | None = None) -> tuple[tuple[int, float], ...]:
        """Return (index, value) of SPOTS elements of the result, computed by TVM's own kernels on this CPU.

        Parameters
        ----------
        rounding : Generator, optional
            Source of errors: each element that a kernel writes moves by one step of its fraction at most.
        """
        import tvm

        from roller_tvm.tir.nodes import parameters, structural_hash

        *inputs, output = self.parameters
        values = {t.name: filled(t.elements, seed_of(n)) for n, t in enumerate(inputs)}
        built: dict[int, Any] = {}
        for call in self.region.calls:
            key = structural_hash(func := call.func.without_attr("global_symbol") if call.func.attrs else call.func)
            if key not in built:
                named = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
                built[key] = tvm.compile(named, tvm.target.Target("llvm"))["main"]
            buffers, written = parameters(call.func), call.tensors[len(call.tensors) - call.outputs :]
            tensors = []
            for name, buffer in zip(call.tensors, buffers, strict=True):
                shape = tuple(map(int, buffer.shape))
                array = np.zeros(shape, str(buffer.dtype)) if name in written else values[name].reshape(shape)
                tensors.append(tvm.runtime.tensor(array))
            built[key](*tensors)
            values |= {n: _rounded(t.numpy(), rounding) for n, t in zip(call.tensors, tensors, strict=True)
                       if n in written}
        result = values[output.name].ravel()
        return tuple((place, float(result[place])) for place in places(output.elements, SPOTS))

    def fused(self) -> KitPlan:
        """Return the graph as planned: fused parts as one kernel each, the other parts kernel by kernel."""
        kernels: list[tuple[str, HostCode, dict[str, str]]] = []
        for number, part in enumerate(self.plan.parts):
            if part.program:
                made = self.maker.fused(f"rtasks_{number}", part, self.region.calls, self.region.kept)
                kernels.append((made.source, made.host, {}))
            else:
                kernels += [self._alone(name, kernel) for name, kernel in part.kernels]
        return self._plan(0, FUSED, self.plan.seconds, kernels)

    def apart(self) -> KitPlan:
        """Return the plan that runs every operator by its fastest kernels, one after the other."""
        costs = Costs.of(self.device)
        order = [self.graph.by_name[call.name] for call in self.region.calls]
        kernels = [self._alone(o.name, plain_kernel(o, costs)) for o in order]
        return self._plan(1, UNFUSED, self.plan.sequential_seconds, kernels)

    def _alone(self, name: str, kernel: Any) -> tuple[str, HostCode, dict[str, str]]:
        code = self.maker.code(self.calls[name], kernel)
        return code.source, code.host, {own: spec.name for own, spec in code.named(name).items()}

    def _plan(
        self, rank: int, variant: str, seconds: float, kernels: Sequence[tuple[str, HostCode, dict[str, str]]]
    ) -> KitPlan:
        launches: list[KernelLaunch] = []
        buffers: dict[str, Tensor] = {}
        for source, host, names in kernels:
            image = self._image(source)
            for spec in (*host.parameters, *host.between):
                assert isinstance(spec, BufferSpec)
                name = names.get(spec.name, spec.name)
                buffers.setdefault(name, Tensor(name, tuple(map(int, spec.shape)), str(spec.dtype)))
            for launch in host.launches:
                arguments = tuple(names.get(str(a), str(a)) for a in launch.arguments)
                launches.append(KernelLaunch(launch.kernel, arguments, triple(launch.grid), triple(launch.block),
                                             int(launch.dynamic_shared), image))
        own = [self._shaped(t, buffers) for t in self._interface()]
        if self.parameters and [t.shape for t in self.parameters] != [t.shape for t in own]:
            raise RollerError("the fused plan and the plan of single operators take different tensors", str(self.case),
                              "report this")
        self.parameters = tuple(own)
        between = tuple(t for n, t in buffers.items() if n not in {p.name for p in own})
        told = {"launches": len(launches), "text": str(self.plan).splitlines()[0] if variant == FUSED else UNFUSED}
        images = dict.fromkeys(launch.image for launch in launches)
        resources = tuple(r for image in images for r in self.resources[image])
        return KitPlan(rank, (variant,), variant, seconds * 1e6, "", told, launches[0].image, "", self.parameters,
                       between, tuple(launches), resources)

    def _interface(self) -> Iterable[str]:
        """Return the names of the graph's inputs in order of first use, then its result."""
        written = {t for call in self.region.calls for t in call.tensors[len(call.tensors) - call.outputs :]}
        read = [t for call in self.region.calls for t in call.tensors[: len(call.tensors) - call.outputs]]
        inputs = [t for t in dict.fromkeys(read) if t not in written]
        results = sorted(self.region.kept & written) or sorted(written - set(read))
        if len(results) != 1:
            raise MeasureError(f"has {len(results)} results", str(self.case), "give the kit a model with one result")
        return (*inputs, *results)

    def _shaped(self, tensor: str, buffers: dict[str, Tensor]) -> Tensor:
        """Return a tensor of the graph with its own shape; kernels may have fused its dimensions."""
        found = buffers[tensor]
        known = next((t for t in self.parameters if t.name == tensor), None)
        if known and prod(known.shape) == found.elements:
            return known
        return found

    def _image(self, source: str) -> str:
        name = f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.cubin"
        if name not in self.files:
            cubin = compile_cuda(source, self.arch, self.options.compiler, f"{self.case} for {self.arch}")
            self.files[name] = cubin.data
            if self.options.sources == "all":
                self.files[name.replace(".cubin", ".cu")] = source.encode()
            self.resources[name] = tuple(r.to_json() for r in kernel_resources(cubin).values())
        return name
