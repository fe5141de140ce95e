"""Pictures of iteration spaces: the article's blur (Tiramisu, CGO'19) in its forms for a CPU and for a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from roller_tvm.errors import BadInput
from roller_tvm.schedules.levels import Levels
from roller_tvm.schedules.proofs.sets import library

#: Scripts of docs/blur.md.
SCRIPTS = {
    "cpu": """
by.split(y, [8], [y.o, y.i])
by.split(x, [8], [x.o, x.i])
by.reorder([y.o, x.o, y.i, x.i])
bx.compute_at(by, x.o)
by.parallel(y.o)
by.vectorize(x.i)
""",
    "gpu": """
by.split(y, [4], [y.b, y.t])
by.split(x, [8], [x.b, x.t])
by.reorder([y.b, x.b, y.t, x.t])
by.fuse([y.b, x.b], b)
by.bind(b, blockIdx.x)
by.fuse([y.t, x.t], t)
by.bind(t, threadIdx.x)
bx.compute_at(by, b)
bx.set_scope(shared)
bx.fuse([y, x], yx)
bx.split(yx, [32], [yx.o, yx.t])
bx.bind(yx.t, threadIdx.x)
image.cache_read(shared, [bx], image.shared)
image.shared.compute_at(by, b)
image.shared.fuse([d0, d1], d)
image.shared.split(d, [32], [d.o, d.t])
image.shared.bind(d.t, threadIdx.x)
""",
}
#: Height and width of the blurred picture.
SIDE = 16


def draw_blur(parser: argparse.ArgumentParser) -> None:
    """Draw which element of the blurred picture is computed where, and when; needs the Relax line and matplotlib.

    Writes blur_cpu.png and blur_gpu.png.
    """
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="folder; default %(default)s")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if not args.out.is_dir():
        raise BadInput("no such folder", str(args.out), f"mkdir -p {args.out}")
    for form in SCRIPTS:
        draw(levels_of_blur(form), "by", f"{form.upper()}: by[y, x]", args.out / f"blur_{form}.png")
        print(args.out / f"blur_{form}.png")
    return 0


def blur(height: int = SIDE, width: int = SIDE) -> list[Any]:
    """Return the input and the output of a blur by 3 x 3 elements, rows first."""
    from tvm import te

    image = te.placeholder((height + 2, width + 2), name="image")
    bx = te.compute((height + 2, width), lambda y, x: (image[y, x] + image[y, x + 1] + image[y, x + 2]) / 3.0, "bx")
    by = te.compute((height, width), lambda y, x: (bx[y, x] + bx[y + 1, x] + bx[y + 2, x]) / 3.0, "by")
    return [image, by]


def scheduled_blur(form: str, script: str = "") -> tuple[Any, Any, Any]:
    """Return the scheduled function, the one without a schedule, and the target."""
    import tvm
    from tvm import te

    from roller_tvm.codegen.apply_tensorir import apply_steps_tir
    from roller_tvm.schedules import Script
    from roller_tvm.tir import read_prim_func

    func = te.create_prim_func(blur())
    steps = Script.read(script or SCRIPTS[form]).steps
    words = {"kind": "llvm"} if form == "cpu" else {"kind": "cuda", "arch": "sm_80"}
    return apply_steps_tir(func, read_prim_func(func), steps).mod["main"], func, tvm.target.Target(words)


def levels_of_blur(form: str) -> Levels:
    """Return the four levels of one form."""
    from roller_tvm.relax.proving import levels

    scheduled, _, target = scheduled_blur(form)
    return levels(scheduled, target)


def points_of(levels: Levels, tensor: str) -> tuple[dict[tuple[int, ...], tuple[int, ...]], tuple[str, ...]]:
    """Return element -> time and place of the last statement that writes a tensor, and the names of these.

    Examples
    --------
    >>> same = Levels("{}", "{}", "{ S[i] -> A[i] : 0 <= i < 2 }", "{ S[i] -> [0, t = i] : 0 <= i < 2 }", "{}")
    >>> points_of(same, "A")
    ({(0,): (0, 0), (1,): (0, 1)}, ('', 't'))
    """
    isl = library()
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    names: tuple[str, ...] = ()
    writes: list[Any] = []
    isl.UnionMap(levels.writes).foreach_map(writes.append)
    for write in writes:
        if write.get_tuple_name(isl.dim_type.out) != tensor:
            continue
        times = isl.UnionMap.from_map(write).reverse().apply_range(isl.UnionMap(levels.schedule))
        several: list[Any] = []
        times.foreach_map(several.append)
        for one in several:
            rank, depth = one.dim(isl.dim_type.in_), one.dim(isl.dim_type.out)
            points: list[Any] = []
            one.wrap().foreach_point(points.append)
            for point in points:
                values = [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(rank + depth)]
                element, time = tuple(map(int, values[:rank])), tuple(map(int, values[rank:]))
                found[element] = max(time, found.get(element, time))
    own: list[Any] = []
    isl.UnionMap(levels.schedule).foreach_map(own.append)
    for one in own:
        if any(w.get_tuple_name(isl.dim_type.in_) == one.get_tuple_name(isl.dim_type.in_) for w in writes
               if w.get_tuple_name(isl.dim_type.out) == tensor):  # fmt: skip
            count = one.dim(isl.dim_type.out)
            names = tuple(str(one.get_dim_name(isl.dim_type.out, n) or "").rstrip("_") for n in range(count))
    return dict(sorted(found.items())), names


def draw(levels: Levels, tensor: str, title: str, path: Path) -> None:
    """Draw a matrix: a colour for each block or trip of a parallel loop, the number of a thread or the order in it."""
    import matplotlib
    from matplotlib import pyplot

    points, names = points_of(levels, tensor)
    outer = [n for n, name in enumerate(names) if name.startswith(("parallel", "blockIdx"))]
    threads = any(name.startswith("threadIdx") for name in names)
    places = sorted({tuple(time[n] for n in outer) for time in points.values()})
    order = {p: sorted({t for t in points.values() if tuple(t[n] for n in outer) == p}) for p in places}
    rows, columns = (max(element[n] for element in points) + 1 for n in (0, 1))
    matplotlib.rcParams["svg.hashsalt"] = matplotlib.rcParams["svg.fonttype"] = "none"
    figure, axes = pyplot.subplots(figsize=(5, 5 * rows / columns))
    colours = matplotlib.colormaps["tab10" if len(places) <= 10 else "tab20"]
    for (row, column), time in points.items():
        place = tuple(time[n] for n in outer)
        number = order[place].index(time)
        axes.add_patch(pyplot.Rectangle((column, row), 1, 1, facecolor=colours(places.index(place)), alpha=0.6))
        axes.text(column + 0.5, row + 0.5, str(number), ha="center", va="center", fontsize=6)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xlabel="x", ylabel="y", aspect="equal")
    where = " and ".join(dict.fromkeys(names[n].split("_")[0] for n in outer))
    axes.set_title(f"{title}; colours: {where}; numbers: {'threads' if threads else 'order'}", fontsize=9)
    figure.savefig(path, dpi=80, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
