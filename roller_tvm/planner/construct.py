"""Construction: from a tensor expression and a device to the K best plans, without search or measuring.

Roller, section 3.3: aligned tiles are scaled up level by level by data reuse, scaled out over the execution
units, and relaxed (eps) until there are K; then, unlike the paper's released code, the K are the *best by the
micro-performance model* and not the first found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import ceil

from ..device import DeviceSpec
from ..errors import RollerError, UnsupportedOperator
from ..internal import internal_error
from ..ir import Axis, Stage, TensorExpression
from ..ir.fuse import fuse_axes
from ..ir.parts import share_parts
from ..ir.pattern import is_product
from ..ir.slices import Slices, slices_of
from ..micro_perf.estimate import Estimate
from ..micro_perf.geometry import Geometry
from ..recipes import RECIPES
from ..recipes.dilated_nests import divides, turned
from ..recipes.gpu_tile_candidates import near_divisor
from ..recipes.gpu_transpose import turns
from ..recipes.lane_nests import chain_splits, lane_nests, lane_splits, merge_splits
from ..recipes.recipe import Candidate, Context, Fit, Recipe, Report
from ..recipes.row_nests import row_nest
from ..roller.alignment import summarise
from ..roller.features import NO_FEATURES, Features
from ..roller.partition import NestShape, Store, partition, store_guarded, store_packed, store_rearranged
from ..roller.rprogram import Plan, SplitReduction
from .construction import Construction, RankedPlan
from .portfolio import portfolio
from .stage_groups import stage_groups

EPS = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2)
# Outputs of a register tile that keeps a thread busy.
REGISTER_OUTPUTS = 64
# Blocks of a split reduction on a unit: one is enough to use it, a few hide each other's latency.
BLOCKS_PER_UNIT = 4

Splits = tuple[SplitReduction, ...]


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
    report, used_eps = Report(), 0.0
    plans: list[Choice] = []
    for form in forms(expression, device, features):
        known: dict[NestShape, list[Candidate]] = {}  # what is stored beside a nest does not change it
        planned, core = form.planned(device)
        for nests in form.cuts:
            for nest in nests:
                if nest in known:
                    continue
                geometry = Geometry.of(planned, nest.anchor, nest.inlined, nest.output)
                slices = form.slices.trips(form.expression.stage(nest.anchor)) if form.slices is not None else {}
                ranked, eps = nest_programs(Context(geometry, core, nest, 0.0, features, report, slices), top)
                used_eps = max(used_eps, eps)
                if not ranked:
                    break
                known[nest] = ranked
            else:
                plans += _combine(form, [known[nest] for nest in nests], top, device)
    plans.sort(key=lambda p: p.seconds)
    if not plans:
        raise UnsupportedOperator(
            "no legal plan",
            where=f"{expression.name} on {device.name}",
            remedy="TVM's default schedule is used; rules that stood in the way:\n" + summarise(report.rejections),
        )
    chosen = portfolio(plans, top, lambda p: p.seconds, lambda p: p.heaviest.kernel)
    found = tuple(choice.plan(device) for choice in chosen)
    return Construction(found, report.rejections, used_eps, report.considered)


@dataclass(frozen=True)
class Choice:
    """A candidate for each nest of a form: a plan that is not made yet. It takes some `rounds` of the candidates."""

    form: Form
    candidates: tuple[Candidate, ...]
    rounds: int = 1

    @cached_property
    def seconds(self) -> float:
        return self.rounds * sum(c.seconds for c in self.candidates)

    @property
    def heaviest(self) -> Candidate:
        """The candidate that takes longest."""
        return max(self.candidates, key=lambda c: c.seconds)

    def plan(self, device: DeviceSpec) -> RankedPlan:
        """Make the plan, and its estimate."""
        programs = tuple(c.pair[0] for c in self.candidates)
        plan = Plan(self.form.expression, device.name, programs, self.form.splits)
        estimates = (c.pair[1] for c in self.candidates)
        if (slices := self.form.slices) is not None:
            estimates = (e.repeated(slices.count, self.rounds) for e in estimates)
        return RankedPlan(plan, Estimate(tuple(estimates)))


def fitting(ctx: Context) -> tuple[list[Recipe], list[Recipe]]:
    """Return the recipes that suit a nest, and those to try if none of these finds a program."""
    fits: dict[Recipe, Fit] = {}
    for recipe in RECIPES.values():
        if ctx.slices and not recipe.takes_slices(ctx):
            continue
        with _others_go_on(recipe, ctx):
            fits[recipe] = recipe.applies(ctx)
    return [r for r, fit in fits.items() if fit is Fit.YES], [r for r, fit in fits.items() if fit is Fit.LAST_RESORT]


def nest_programs(ctx: Context, top: int) -> tuple[list[Candidate], float]:
    """Return the best candidates of a nest by all recipes that suit it, and the largest eps that was needed."""
    ranked: list[Candidate] = []
    used = 0.0
    for recipes in fitting(ctx):
        for recipe in recipes:
            found: list[Candidate] = []
            for eps in EPS if recipe.relaxes else EPS[:1]:
                with _others_go_on(recipe, ctx):
                    found = recipe.candidates(replace(ctx, eps=eps) if eps else ctx, top)
                used = max(used, eps)
                if len(found) >= top:
                    break
            ranked = sorted([*ranked, *found], key=lambda c: c.seconds)[: 2 * top]
        if ranked:
            break
    return ranked, used


@contextmanager
def _others_go_on(recipe: Recipe, ctx: Context) -> Iterator[None]:
    """Report a bug of a recipe, with the operator, and go on without its candidates."""
    try:
        yield
    except RollerError:
        raise
    except Exception as error:  # a bug of this recipe; the others are used
        internal_error(error, f"recipe {recipe.name}", ctx.geometry.expression)


@dataclass(frozen=True)
class Form:
    """An operator to plan: as written, with a reduction split, or with fused axes.

    Parameters
    ----------
    expression : TensorExpression
    splits : tuple of SplitReduction
        Splits that made it.
    cuts : tuple of tuple of NestShape
        Ways to cut it into nests: with some prologues stored, or all in place, or as rows through every stage.
    slices : Slices, optional
        Slices that cores take through all nests.
    """

    expression: TensorExpression
    splits: tuple[SplitReduction, ...]
    cuts: tuple[tuple[NestShape, ...], ...]
    slices: Slices | None = None

    def planned(self, device: DeviceSpec) -> tuple[TensorExpression, DeviceSpec]:
        """Return the expression that the nests are planned for, and its device: one slice is one core's."""
        return (self.expression, device) if self.slices is None else (self.slices.one, device.one_unit())


def forms(expression: TensorExpression, device: DeviceSpec, features: Features = NO_FEATURES) -> Iterator[Form]:
    """Yield the forms of an operator to plan for a device."""
    if (groups := stage_groups(expression, device)) is not None:
        yield Form(expression, (), (groups,))
        return
    expression = plain = share_parts(expression)
    if features.slices and any(is_product(s) for s in expression.stages):
        nests = partition(expression)
        between = [nest.output for nest in nests[:-1]]
        if between and (slices := slices_of(expression, between)) is not None:
            yield Form(expression, (), (nests,), slices)
    # Tiles of a product are staged: in such a region TVM infers too much of axes that were fused.
    if not any(is_product(s) for s in expression.stages):
        expression = fuse_axes(expression)
    split: list[tuple[TensorExpression, Splits]] = [(expression, ())]
    lanes = lane_splits(expression, device, features.uneven_lanes) if device.kind == "cpu" else ()
    merged = merge_splits(lanes)
    if lanes:
        split.append(_split_by(expression, lanes))
    else:
        parts = _core_splits if device.kind == "cpu" else _part_splits
        split += [_split_by(expression, (s,)) for s in parts(expression, device)]
    # Turning a tile asks for a box of the axes as they are, which fused ones are not.
    if device.kind == "gpu" and plain is not expression and any(turns(plain, nest) for nest in partition(plain)):
        split.append((plain, ()))
    stores: tuple[Store | None, ...] = (None,)
    if device.kind == "cpu":  # no rewrite tells tiles inside a picture of open sides from those at its edges
        stores = (store_rearranged, store_guarded, *([] if features.open_sides else [None]))
    if device.kind == "cpu" and divides(expression):
        stores = (*stores, store_packed)
    for form, splits in split:
        cuts: dict[tuple[NestShape, ...], None] = {}
        for store in stores:
            nests = partition(form, store)
            cuts[nests] = None
            if store is store_packed and (fused := turned(form, nests)) is not None:
                cuts[fused] = None
        yield Form(form, splits, tuple(cuts))
    in_rows = [split[0], _split_by(expression, chain_splits(expression, lanes))] if lanes else split
    for form, splits in in_rows if device.kind != "ipu" else ():
        if (rows := row_nest(form)) is not None:
            yield Form(form, splits, ((rows,),))
    if merged:
        form, _ = _split_by(expression, merged)
        cut = dict.fromkeys(partition(form, store) for store in stores)
        yield Form(form, merged, tuple(lane_nests(form, nests) for nests in cut))


def _split_by(expression: TensorExpression, splits: Splits) -> tuple[TensorExpression, Splits]:
    """Return an expression with its reductions split, and the splits."""
    return reduce(lambda e, split: split.apply(e), splits, expression), splits


def _core_splits(expression: TensorExpression, device: DeviceSpec) -> list[SplitReduction]:
    """Return a split of the longest reduction among a CPU's cores.

    Each sums up terms that lie together: pixels, for a mean of pixels with channels last. A core that sums up some
    channels reads the lines of all pixels instead, and other cores have written most of these.
    """
    anchor, parts = expression.anchor, device.units
    longest = _longest(anchor)
    if longest is None or parts == 1 or len(expression.reductions) > 1 or is_product(anchor):
        return []
    geometry = Geometry.of(expression, anchor.name)
    vector = geometry.vector_axis
    neighbours = vector is not None and all(op.stride_of(vector) == 1 for op in geometry.operands if vector in op.axes)
    few = anchor.output_elements <= REGISTER_OUTPUTS * device.vector_width
    if not (neighbours and few) or longest.extent % parts or longest.extent // parts < device.vector_width:
        return []
    return [_in_parts(anchor, longest, parts)]


def _part_splits(expression: TensorExpression, device: DeviceSpec) -> list[SplitReduction]:
    """Return splits of the longest reduction for small operators, whose outputs cannot fill the device."""
    anchor = expression.anchor
    longest = _longest(anchor)
    if longest is None:
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
        _in_parts(anchor, longest, parts)
        for parts in sorted(counts)
        # Worth it only while a register tile of outputs a thread leaves units idle.
        if parts > 1 and longest.extent % parts == 0
        and longest.extent // parts >= device.vector_width
        and anchor.output_elements * parts <= threads * REGISTER_OUTPUTS
    ]
    return splits[-2:]  # the finest that still fill the registers, and the one before it


def _longest(stage: Stage) -> Axis | None:
    """Return the longest axis of a reduction; None if it cannot be split."""
    if stage.combiner not in ("sum", "max", "min") or stage.indivisible:
        return None
    longest = max(stage.reduce, key=lambda a: a.extent)
    return None if longest.part_of else longest


def _in_parts(stage: Stage, axis: Axis, parts: int) -> SplitReduction:
    return SplitReduction(stage.name, axis.name, parts, loops=tuple(n for n, _ in axis.fused_of))


def _combine(form: Form, per_nest: list[list[Candidate]], top: int, device: DeviceSpec) -> list[Choice]:
    """Return plans of the whole operator: the heaviest nest varies, the others keep their best program."""
    heaviest = max(range(len(per_nest)), key=lambda n: per_nest[n][0].seconds)
    best = portfolio(per_nest[heaviest], top, lambda c: c.seconds, lambda c: c.kernel)
    firsts = tuple(ranked[0] for ranked in per_nest)
    rounds = ceil(form.slices.count / device.units) if form.slices is not None else 1
    return [Choice(form, (*firsts[:heaviest], choice, *firsts[heaviest + 1 :]), rounds) for choice in best]
