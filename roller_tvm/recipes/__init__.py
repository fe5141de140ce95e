"""Recipes, one a file: every way to map a loop nest onto a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .cpu_axpy import CpuAxpy
from .cpu_dilated import CpuDilated
from .cpu_direct import CpuDirect
from .cpu_lanes import CpuLanes
from .cpu_rows import CpuRows
from .cpu_stages import CpuStages
from .cpu_tiled import CpuTiled
from .cpu_unrolled import CpuUnrolled
from .cpu_window import CpuWindow
from .gpu_direct import GpuDirect
from .gpu_reduce import GpuReduce
from .gpu_rows import GpuRows
from .gpu_tensor import GpuTensor
from .gpu_tiled import GpuTiled
from .gpu_transpose import GpuTranspose
from .gpu_unrolled import GpuUnrolled
from .recipe import Recipe

_IN_ORDER: tuple[Recipe, ...] = (
    CpuRows(), CpuStages(), CpuLanes(), CpuUnrolled(), CpuDilated(), CpuWindow(), CpuTiled(), CpuAxpy(), CpuDirect(),
    GpuRows(), GpuUnrolled(), GpuTensor(), GpuTiled(), GpuDirect(), GpuReduce(), GpuTranspose(),
)  # fmt: skip


def registered(recipes: Sequence[Recipe]) -> Mapping[str, Recipe]:
    """Return recipes by name, in order; raises ``ValueError`` if two of them share a name.

    Examples
    --------
    >>> registered((CpuRows(), CpuRows()))
    Traceback (most recent call last):
    ValueError: two recipes are called 'cpu.rows'
    """
    found: dict[str, Recipe] = {}
    for recipe in recipes:
        if recipe.name in found:
            raise ValueError(f"two recipes are called '{recipe.name}'")
        found[recipe.name] = recipe
    return found


#: Every recipe by name, in the order in which construction tries them.
RECIPES = registered(_IN_ORDER)
