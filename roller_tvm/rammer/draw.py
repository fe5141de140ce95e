"""A plan as a picture: vEUs over time, with the operators one by one above and fused below (SVG)."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

from ..device import DeviceSpec
from ..errors import BadInput
from ..svg import Scale, number
from .fusion_plan import FusionPlan, Part
from .roperator import Phase, RKernel
from .rtask import RTask
from .simulation import Interval, simulate
from .task_program import BarrierTask, TaskProgram
from .veu import VDevice

# Sizes of the picture, in its own units.
_WIDTH, _LEFT, _TOP, _HEIGHT, _GAP, _LEGEND = 1000.0, 70.0, 24.0, 220.0, 46.0, 18.0
#: Characters of a name in the legend, which has room for six in a row; pointing at it shows the whole name.
_NAME = 21


def draw(plan: FusionPlan, device: DeviceSpec) -> str:
    """Return the SVG of a plan before and after fusion, on one scale of time.

    Each row is a vEU (before: a place for a block of the kernel), each box rTasks of one operator; launches are grey.

    Examples
    --------
    >>> from roller_tvm.device import load_device
    >>> from roller_tvm.rammer import DataFlowGraph, Phase, ROperator, plan_graph
    >>> kernel = RKernel("k", (Phase(40, 5e-6, 5e-6),), 5e-6)
    >>> v100 = load_device("v100")
    >>> plan = plan_graph(DataFlowGraph((ROperator("a", (kernel,)), ROperator("b", (kernel,)))), v100)
    >>> picture = draw(plan, v100)
    >>> picture.startswith("<svg"), picture.count("a, 40 rTasks")
    (True, 2)
    """
    operators = [o for part in plan.parts for o, _ in part.kernels]
    colours = {o: _colour(n) for n, o in enumerate(operators)}
    before, fused = [], []
    for part in plan.parts:
        before += _one_by_one(part, device, plan.launch)
        fused += [(part.seconds, part.program)] if part.program else _one_by_one(part, device, plan.launch)
    whole = max(plan.sequential_seconds, plan.seconds, 1e-12)
    scale = (_WIDTH - _LEFT) / whole
    legend = -(-len(operators) // 6) * _LEGEND
    height = 2 * (_TOP + _HEIGHT) + _GAP + legend + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 10:g} {height:g}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{_WIDTH + 10:g}" height="{height:g}" fill="white"/>',
    ]
    for title, top, entries, launches in (
        ("one by one", _TOP, before, plan.sequential_launches),
        ("fused", 2 * _TOP + _HEIGHT + 16, fused, plan.launches),
    ):
        seconds = sum(s for s, _ in entries)
        lines.append(f'<text x="{_LEFT:g}" y="{top - 8:g}">{title}: {launches} kernels, {seconds * 1e6:.1f} us '
                     f"predicted on {escape(plan.device)}</text>")
        lines += _timeline(entries, top, scale, colours)
    lines += _axis(whole, 2 * (_TOP + _HEIGHT) + 16)
    for n, operator in enumerate(operators):
        x = _LEFT + n % 6 * (_WIDTH - _LEFT) / 6
        y = 2 * (_TOP + _HEIGHT) + _GAP + n // 6 * _LEGEND
        short = operator if len(operator) <= _NAME else f"{operator[: _NAME - 1]}\u2026"
        lines.append(f'<rect x="{x:g}" y="{y:g}" width="10" height="10" fill="{colours[operator]}"/>'
                     f'<text x="{x + 14:g}" y="{y + 9:g}">{escape(short)}<title>{escape(operator)}</title></text>')
    return "\n".join([*lines, "</svg>\n"])


def _one_by_one(part: Part, device: DeviceSpec, launch: str) -> list[tuple[float, TaskProgram]]:
    """Return (seconds, program) of each operator of a part on its own; the seconds add up to the plan's."""
    each = [_alone(o, k, device, launch) for o, k in part.plain]
    total = sum(seconds for seconds, _ in each)
    return [(seconds * part.sequential_seconds / total if total else 0.0, program) for seconds, program in each]


def _alone(operator: str, kernel: RKernel, device: DeviceSpec, launch: str) -> tuple[float, TaskProgram]:
    """Return (seconds, program) of an operator on its own: its blocks on the device, phase after phase."""
    try:
        vdevice = VDevice.of(device, [kernel], launch)
    except BadInput:  # it is too big for the device: its time is drawn, on as many vEUs as there are units
        kernel = replace(kernel, phases=tuple(Phase(p.tasks, p.alone_seconds, p.unit_seconds) for p in kernel.phases),
                         plan=None)
        vdevice = VDevice.of(device, [kernel], launch)
    lists: list[list[RTask | BarrierTask]] = [[] for _ in range(vdevice.veus)]
    for phase, one in enumerate(kernel.phases):
        for task in range(one.tasks):
            lists[task % vdevice.veus].append(RTask(operator, phase, task))
    program = TaskProgram(vdevice, ((operator, kernel),), tuple(map(tuple, lists)))
    return kernel.seconds + len(kernel.phases) * vdevice.costs.launch_seconds, program


def _timeline(
    entries: Sequence[tuple[float, TaskProgram]], top: float, scale: float, colours: dict[str, str]
) -> Iterable[str]:
    at = 0.0
    for seconds, program in entries:
        free = replace(program.device.costs, launch_seconds=0.0)
        launch = min(program.device.costs.launch_seconds * program.launches if not program.barriers
                     else program.device.costs.launch_seconds, seconds)
        line = simulate(replace(program, device=replace(program.device, costs=free)))
        stretch = (seconds - launch) / line.makespan if line.makespan else 0.0
        yield (f'<rect x="{_LEFT + at * scale:.2f}" y="{top:g}" width="{launch * scale:.2f}" height="{_HEIGHT:g}" '
               'fill="#dddddd"><title>launch</title></rect>')
        veus = max(1, min(program.device.veus, 1 + max((i.veu for i in line.intervals), default=0)))
        veus = max(veus, program.device.units)
        row = _HEIGHT / veus
        for interval in _merged(line.intervals):
            x = _LEFT + (at + launch + interval[1].start * stretch) * scale
            width = (interval[2] - interval[1].start) * stretch * scale
            task, count = interval[1].task, program.phase(interval[1].task).tasks
            yield (f'<rect x="{x:.2f}" y="{top + interval[0] * row:.2f}" width="{max(width, 0.05):.2f}" '
                   f'height="{row * interval[3]:.2f}" fill="{colours[task.operator]}">'
                   f"<title>{escape(task.operator)}, {count} rTasks</title></rect>")
        at += seconds
    yield (f'<text x="{_LEFT - 6:g}" y="{top + 10:g}" text-anchor="end">vEU 0</text>'
           f'<rect x="{_LEFT:g}" y="{top:g}" width="{_WIDTH - _LEFT:g}" height="{_HEIGHT:g}" fill="none" '
           'stroke="#888888"/>')


def _merged(intervals: Sequence[Interval]) -> list[tuple[int, Interval, float, int]]:
    """Return (first vEU, first interval, end, vEUs): intervals at the same time on neighbouring vEUs become one box."""
    found: list[tuple[int, Interval, float, int]] = []
    ordered = sorted(intervals, key=lambda i: (i.task.operator, i.task.phase, i.start, i.end, i.veu))
    for interval in ordered:
        if found:
            veu, first, end, count = found[-1]
            same = (first.task[:2], first.start, end) == (interval.task[:2], interval.start, interval.end)
            if same and interval.veu == veu + count:
                found[-1] = (veu, first, end, count + 1)
                continue
        found.append((interval.veu, interval, interval.end, 1))
    return found


def _axis(whole: float, top: float) -> Iterable[str]:
    place = Scale(0.0, whole * 1e6, _LEFT, _WIDTH)
    for at in place.ticks:
        yield f'<text x="{place(at):.1f}" y="{top + 14:g}" text-anchor="middle">{number(at)} us</text>'


def _colour(number: int) -> str:
    """Return an operator's colour; neighbours differ, by the golden ratio around the circle of hues."""
    red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1.0, 0.55 if number % 2 else 0.65, 0.6)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"
