"""Construction: from a tensor expression and a device to the K best plans, without search or measuring.

Roller, section 3.3: aligned tiles are scaled up level by level by data reuse, scaled out over the execution
units, and relaxed (eps) until there are K; then, unlike the paper's released code, the K are the *best by the
micro-performance model* and not the first found.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from math import ceil

from ..device import DeviceSpec
from ..errors import UnsupportedOperator
from ..ir import TensorExpression
from ..ir.fuse import fuse_axes
from ..ir.parts import share_parts
from ..ir.pattern import is_product
from ..micro_perf.estimate import Estimate, ProgramEstimate
from ..micro_perf.geometry import Geometry
from ..recipes.cpu_axpy import construct_axpy
from ..recipes.cpu_dilated import TurnedNest, construct_dilated, dilated, divides, turned
from ..recipes.cpu_direct import construct_direct as construct_cpu_direct
from ..recipes.cpu_lanes import construct_lanes
from ..recipes.cpu_rows import construct_rows
from ..recipes.cpu_tiled import construct_stored, construct_turned
from ..recipes.cpu_tiled import construct_tiled as construct_cpu_tiled
from ..recipes.cpu_unrolled import construct_unrolled as construct_cpu_unrolled
from ..recipes.cpu_window import construct_window, slides_only
from ..recipes.gpu_direct import construct_direct, construct_reduce, streams
from ..recipes.gpu_rows import construct_rows as construct_gpu_rows
from ..recipes.gpu_tensor import construct_tensor
from ..recipes.gpu_tiled import construct_tiled, near_divisor
from ..recipes.gpu_transpose import construct_transpose, turns
from ..recipes.gpu_unrolled import construct_unrolled, multiplies_constants
from ..recipes.lane_nests import LaneNest, lane_nests, lane_splits, merge_splits
from ..recipes.row_nests import RowNest, row_nest
from ..recipes.search import Search
from ..roller.alignment import Rejection, summarise
from ..roller.features import NO_FEATURES, Features
from ..roller.partition import NestShape, partition, store_guarded, store_packed, store_rearranged
from ..roller.rprogram import Plan, RProgram, SplitReduction
from .construction import Construction, RankedPlan
from .portfolio import kernel_kind, portfolio

EPS = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2)
# Outputs of a register tile that keeps a thread busy.
REGISTER_OUTPUTS = 64
# Blocks of a split reduction on a unit: one is enough to use it, a few hide each other's latency.
BLOCKS_PER_UNIT = 4

Ranked = list[tuple[RProgram, ProgramEstimate]]


def construct(
    expression: TensorExpression, device: DeviceSpec, top: int = 10, features: Features = NO_FEATURES
) -> Construction:
    """Return the `top` best plans of an operator on a device.

    Parameters
    ----------
    expression : TensorExpression
    device : DeviceSpec
    top : int
        Number of plans wanted (K); fewer are returned if fewer are legal.
    features : Features
        Abilities of schedules beyond loops; without any, plans are the same on every line of TVM.

    Returns
    -------
    Construction
        Plans by predicted time, best first, and why the others were rejected.

    Raises
    ------
    UnsupportedOperator
        If no plan is legal; the message names the rules that stood in the way.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.ir.operators import matmul
    >>> c = construct(matmul(m=1024, n=1024, k=1024), load_device("v100"), top=3)
    >>> len(c.plans), c.best.plan.programs[0].recipe
    (3, 'gpu.tiled')
    """
    rejections: list[Rejection] = []
    considered, used_eps = 0, 0.0
    plans: list[RankedPlan] = []
    known: dict[tuple[int, NestShape], Ranked] = {}  # what is stored beside a nest does not change it
    for variant, splits, nests in variants(expression, device, features):
        per_nest: list[Ranked] = []
        for nest in nests:
            if (id(variant), nest) in known:
                per_nest.append(known[id(variant), nest])
                continue
            geometry = Geometry.of(variant, nest.anchor, nest.inlined, nest.output)
            ranked: Ranked = []
            for recipe in recipes(geometry, device, nest, features):
                if ranked and recipe.last_resort:
                    break
                for eps in EPS:
                    search = Search(geometry, device, nest, eps)
                    found = recipe.construct(search, top)
                    considered += search.considered
                    rejections += search.rejections
                    used_eps = max(used_eps, eps)
                    if len(found) >= top or not recipe.relaxes:
                        break
                ranked = sorted([*ranked, *found], key=lambda c: c[1].seconds)[: 2 * top]
            if not ranked:
                break
            known[id(variant), nest] = ranked
            per_nest.append(ranked)
        else:
            plans += _combine(variant, device, splits, per_nest, top)
    plans.sort(key=lambda p: p.seconds)
    if not plans:
        raise UnsupportedOperator(
            "no legal plan",
            where=f"{expression.name} on {device.name}",
            remedy="TVM's default schedule is used; rules that stood in the way:\n" + summarise(rejections),
        )
    chosen = portfolio(plans, top, lambda p: p.seconds, _kind)
    return Construction(tuple(chosen), tuple(rejections), used_eps, considered)


def _kind(ranked: RankedPlan) -> Hashable:
    """Return the kind of a plan's heaviest kernel."""
    plan, estimates = ranked.plan, ranked.estimate.programs
    heaviest = max(range(len(estimates)), key=lambda n: estimates[n].seconds)
    return kernel_kind(plan.expression, plan.programs[heaviest])


@dataclass(frozen=True)
class Recipe:
    """One way to construct a nest. All are tried in order; the model chooses among their candidates.

    ``relaxes``: its candidates depend on eps. ``last_resort``: only tried if the recipes before found nothing.
    """

    construct: Callable[[Search, int], Ranked]
    relaxes: bool = False
    last_resort: bool = False


def recipes(
    geometry: Geometry, device: DeviceSpec, nest: NestShape, features: Features = NO_FEATURES
) -> tuple[Recipe, ...]:
    """Return the recipes that fit a nest."""
    g = geometry
    if isinstance(nest, RowNest):
        return (Recipe(construct_rows if device.kind == "cpu" else construct_gpu_rows),)
    if isinstance(nest, LaneNest):
        return (Recipe(construct_lanes),)
    if g.stage.uneven:  # its loops stay as they are
        return (Recipe(construct_cpu_direct if device.kind == "cpu" else construct_direct),)
    if device.kind == "cpu":
        if g.reduce and g.stage.combiner != "other":
            if multiplies_constants(g):
                return (Recipe(construct_cpu_unrolled), Recipe(construct_cpu_tiled, last_resort=True))
            if isinstance(nest, TurnedNest):
                return (Recipe(construct_dilated),) if dilated(g, nest.inlined) else ()
            if dilated(g, nest.inlined):
                return (Recipe(construct_dilated), Recipe(construct_cpu_tiled, last_resort=True))
            if slides_only(g):
                tiled = Recipe(construct_cpu_tiled, last_resort=True)
                return (Recipe(construct_window), Recipe(construct_cpu_direct), tiled)
            turned = (Recipe(construct_turned),) if features.turned_copies else ()
            others = (Recipe(construct_stored), Recipe(construct_axpy), Recipe(construct_cpu_direct))
            return (Recipe(construct_cpu_tiled), *turned, *others)
        return (Recipe(construct_cpu_direct),)
    if multiplies_constants(g):
        return (Recipe(construct_unrolled), Recipe(construct_direct, last_resort=True))
    found = []
    if features.tensor_cores and g.reduce:
        found.append(Recipe(partial(construct_tensor, features=features)))
    distinct = len({op.name for op in g.operands}) == len(g.operands)  # a tensor read twice has one staged tile
    if distinct and len(g.operands) > 1 and g.stage.combiner == "sum" and any(g.reuse(i) for i in g.spatial):
        found.append(Recipe(partial(construct_tiled, features=features), relaxes=True))
    found.append(Recipe(construct_direct, last_resort=g.is_contraction()))
    if g.reduce and (len(g.operands) == 1 or g.stage.results > 1 or streams(g)):
        found.append(Recipe(construct_reduce))
    if device.kind == "gpu" and not g.reduce:
        found.append(Recipe(construct_transpose))
    return tuple(found)


Variant = tuple[TensorExpression, tuple[SplitReduction, ...], tuple[NestShape, ...]]


def variants(
    expression: TensorExpression, device: DeviceSpec, features: Features = NO_FEATURES
) -> Iterator[Variant]:
    """Yield forms of the operator to plan: as written, with a split reduction, with prologues stored or in place."""
    expression = plain = share_parts(expression)
    # Tiles of a product are staged: in such a region TVM infers too much of axes that were fused.
    if not any(is_product(s) for s in expression.stages):
        expression = fuse_axes(expression)
    forms: list[tuple[TensorExpression, tuple[SplitReduction, ...]]] = [(expression, ())]
    merged: tuple[SplitReduction, ...] = ()
    if device.kind == "cpu":
        if lanes := lane_splits(expression, device, features.uneven_lanes):
            merged = merge_splits(lanes)
            forms.append((reduce(lambda e, s: s.apply(e), lanes, expression), lanes))
    else:
        forms += [(s.apply(expression), (s,)) for s in _part_splits(expression, device)]
    # Turning a tile asks for a box of the axes as they are, which fused ones are not.
    if device.kind == "gpu" and plain is not expression and any(turns(plain, nest) for nest in partition(plain)):
        forms.append((plain, ()))
    stores = (store_rearranged, store_guarded, None) if device.kind == "cpu" else (None,)
    if device.kind == "cpu" and divides(expression):
        stores = (*stores, store_packed)
    for form, splits in forms:
        seen = set()
        for store in stores:
            nests = partition(form, store)
            if nests not in seen:
                seen.add(nests)
                yield form, splits, nests
            if store is store_packed and (fused := turned(form, nests)) is not None:
                yield form, splits, fused
        if device.kind != "ipu" and (rows := row_nest(form)) is not None:
            yield form, splits, (rows,)
    if merged:
        form = reduce(lambda e, s: s.apply(e), merged, expression)
        for nests in dict.fromkeys(partition(form, store) for store in stores):
            yield form, merged, lane_nests(form, nests)


def _part_splits(expression: TensorExpression, device: DeviceSpec) -> list[SplitReduction]:
    """Return splits of the longest reduction for small operators, whose outputs cannot fill the device."""
    anchor = expression.anchor
    if anchor.combiner not in ("sum", "max", "min") or anchor.indivisible:
        return []
    longest = max(anchor.reduce, key=lambda a: a.extent)
    if longest.part_of:
        return []
    threads = device.units * device.vector_width * (device.limits.schedulers_per_unit or 1)
    counts = {2, 4, 8, 16, 32}
    if device.kind == "gpu" and not is_product(anchor):
        # At most a block computes an output (a thread, if neighbouring terms lie apart): enough for every unit.
        geometry = Geometry.of(expression, anchor.name)
        apart = any(op.stride_of(geometry.reduce[-1]) > 1 for op in geometry.operands)
        fill = threads if apart else device.units
        counts = {near_divisor(longest.extent, ceil(n * fill / anchor.output_elements)) for n in (1, BLOCKS_PER_UNIT)}
    splits = [
        SplitReduction(anchor.name, longest.name, parts, loops=tuple(n for n, _ in longest.fused_of))
        for parts in sorted(counts)
        # Worth it only while a register tile of outputs a thread leaves units idle.
        if parts > 1 and longest.extent % parts == 0
        and longest.extent // parts >= device.vector_width
        and anchor.output_elements * parts <= threads * REGISTER_OUTPUTS
    ]
    return splits[-2:]  # the finest that still fill the registers, and the one before it


def _combine(
    expression: TensorExpression,
    device: DeviceSpec,
    splits: tuple[SplitReduction, ...],
    per_nest: list[Ranked],
    top: int,
) -> list[RankedPlan]:
    """Return plans of the whole operator: the heaviest nest varies, the others keep their best program."""
    heaviest = max(range(len(per_nest)), key=lambda n: per_nest[n][0][1].seconds)
    plans = []
    best = portfolio(per_nest[heaviest], top, lambda c: c[1].seconds, lambda c: kernel_kind(expression, c[0]))
    for choice in best:
        chosen = [ranked[0] if n != heaviest else choice for n, ranked in enumerate(per_nest)]
        plan = Plan(expression, device.name, tuple(p for p, _ in chosen), splits)
        plans.append(RankedPlan(plan, Estimate(tuple(e for _, e in chosen))))
    return plans

