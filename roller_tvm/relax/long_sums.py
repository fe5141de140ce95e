"""CutLongSums: products by a constant whose rows outgrow a core's cache are summed up part by part.

A register tile of a product goes along the whole sum. If the left operand's rows are longer than a core's cache, either
they stream from a slower memory for every panel of the constant, or the constant does for every few rows. Cut in parts
that fit, the sum takes a partial result along instead: C1 = A1 B1, C2 = C1 + A2 B2, and so on. That is the rTile of the
private cache, with an extent along the sum too; each part is an operator of its own, planned as any other.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ..device import DeviceSpec
from ..micro_perf.cpu_constants import CACHE_SHARE
from ..micro_perf.matrix_unit import matrix_tiles
from .constants import array_of, is_constant
from .dataflow import static_tensor
from .devices import device_of, find_target

#: Share of a product's time at the FMA peak that cutting it must save.
SAVED = 0.05
#: Times that a partial result is moved: read before it is written, written, read.
PASSES = 3
#: Rows of a register tile, which read a panel together wherever it is.
TILE_ROWS = 8
#: Vectors of a panel of the constant, and the panels beside the rows: one is read, the next one is asked for.
PANEL, PANELS = 4, 2
#: TVM's kOutEWiseFusable: what follows the last part is computed with it.
_OUT_FUSIBLE = 4


def parts_of(rows: int, terms: int, columns: int, device: DeviceSpec) -> int:
    """Return in how many equal parts to sum up a product of float32; 1 to leave it whole.

    What streams from beyond a core's cache is priced at the rate of the memory behind it, and not hidden. Measured on
    two cores of a Granite Rapids, weights from memory: 128x3072x768 takes 2.30 ms whole, 2.05 in two parts, 1.94 in
    four; 384x3072x768 7.0, 6.2, 5.9; 128x4096x4096 15.7, 14.1, 13.8; 128x768x3072 1.92 whole, 1.96 in two.

    Examples
    --------
    >>> from roller_tvm.device import device_for_target
    >>> device = device_for_target("llvm -mcpu=haswell -num-cores=2")
    >>> parts_of(128, 64, 768, device)
    1
    """
    levels = [level for level in device.levels[:-1] if level.scope != "device"]
    shared = [level for level in device.levels[1:-1] if level.scope == "device"]
    if not levels:
        return 1
    behind = shared[-1] if shared else device.far
    private = max(levels, key=lambda level: level.capacity_bytes if level.name != "register" else 0)
    cache = private.capacity_bytes * CACHE_SHARE

    def moved(count: int) -> float:
        """Return the bytes from behind: the constant for each chunk of rows that stays, partial results."""
        kept = int(cache / (4 * terms / count)) - PANELS * PANEL * device.vector_width
        passes = PASSES * (count - 1) * rows * columns
        return 4.0 * (ceil(rows / max(TILE_ROWS, kept)) * terms * columns + passes)

    counts = [n for n in range(1, terms // device.vector_width + 1) if terms % n == 0]
    count = min(counts, key=moved, default=1)
    saved = (moved(1) - moved(count)) / behind.bandwidth_gbps
    return count if saved > SAVED * 2 * rows * terms * columns / device.peak("float32") else 1


@tvm.transform.module_pass(opt_level=0, name="CutLongSums")
class CutLongSums:
    """Cut the sums of products by constants that outgrow a core's cache; put it before ``LegalizeOps``.

    Parameters
    ----------
    target, device
        As of ``PlanLayout``.

    Examples
    --------
    >>> mod = CutLongSums({"kind": "llvm", "num-cores": 2})(mod)
    """

    def __init__(self, target: Any = None, device: DeviceSpec | str | None = None) -> None:
        self.target, self.device = target, device

    def transform_module(self, mod: Any, _context: Any) -> Any:
        """The module with its long sums cut."""
        cutter = _Cutter(mod, device_of(self.device, find_target(self.target)))
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                changed = cutter.visit_expr(func)
                if cutter.cut:
                    cutter.builder_.update_func(var, changed)
        return cutter.builder_.get() if cutter.cut else mod


@relax.expr_functor.mutator
class _Cutter(relax.PyExprMutator):
    def __init__(self, mod: Any, device: DeviceSpec) -> None:
        super().__init__(mod)
        self.device, self.cut = device, 0

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.matmul" or not static_tensor(call):
            return call
        left, right = call.args
        if not static_tensor(left) or not is_constant(right) or {str(a.ty.dtype) for a in (left, right, call)} != {
            "float32"
        }:  # fmt: skip
            return call
        weights = array_of(right)
        shape = [int(e) for e in left.ty.shape.values]
        if weights.ndim != 2 or len(shape) < 2:
            return call
        terms, columns = weights.shape
        rows = prod(shape[:-1])
        count = parts_of(rows, terms, columns, self.device)
        if count == 1 or matrix_tiles(rows, terms, columns, self.device) is not None:  # which cut sums themselves
            return call
        self.cut, made = self.cut + 1, None
        for number in range(count):
            part = self._part(left, weights, made, number, terms // count)
            if number == count - 1:
                return part  # bound to the product's own name: what follows is computed with it
            made = self.builder_.emit(part)

    def _part(self, left: Any, weights: np.ndarray, before: Any, number: int, length: int) -> Any:
        own = relax.const(np.ascontiguousarray(weights[number * length : (number + 1) * length]), "float32")

        def product(a: Any, b: Any, *sums: Any) -> Any:
            k = te.reduce_axis((0, length), name="k")
            out = te.compute(
                (*a.shape[:-1], b.shape[1]),
                lambda *at: te.sum(a[(*at[:-1], number * length + k)] * b[k, at[-1]], axis=[k]), name="part",
            )  # fmt: skip
            return te.compute(out.shape, lambda *at: sums[0][at] + out[at], name="sum") if sums else out

        given = [] if before is None else [before]
        return self.builder_.call_te(
            product, left, own, *given, primfunc_name_hint="matmul_part", primfunc_attrs={"op_pattern": _OUT_FUSIBLE}
        )
