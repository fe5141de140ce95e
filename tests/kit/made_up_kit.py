"""A kit by hand, for the made-up driver: small operators whose kernels behave as their images say."""

from __future__ import annotations

import zipfile
from dataclasses import replace

from roller_bench.kit.archive import KernelLaunch, KitOperator, KitPlan, Tensor, archive_path, write_archive
from roller_bench.kit.cases import RTASKS, Case
from roller_bench.kit.reference import UNFUSED, Reference, reference_of
from roller_bench.kit.support import ARCHIVE, own_sources

COUNT = 8


def make_kit(folder, operators, archs=("sm_90",)):
    """`operators`: id -> what each of its plans does, best first."""
    for arch in archs:
        (folder / arch).mkdir(parents=True)
        with zipfile.ZipFile(folder / arch / ARCHIVE, "w") as support:
            for name in own_sources():
                support.writestr(f"{name}.cubin", b"\x7fELF " + name.encode())
        for name, plans in operators.items():
            case = Case(name, "relu", f"shape={COUNT}", "float32")
            files = {f"{n}.cubin": b"\x7fELF " + f"{what} count={COUNT}".encode() for n, what in enumerate(plans)}
            made = tuple(plan(n) for n in range(len(plans)))
            reference = reference_of("relu", {"shape": str(COUNT)})
            operator = KitOperator(case, arch, "h200", reference, made, ("one",), "by hand")
            write_archive(archive_path(folder, arch, case), operator, files)
    return folder


def add_graph(folder, name, plans, arch="sm_90", off=0.0):
    """A graph of operators: what its fused kernel does, and what those of the operators one by one do.

    `off` is how far from right what a CPU computed of it is.
    """
    case = Case(name, RTASKS, "model=made_up", "float32")
    files = {f"{n}.cubin": b"\x7fELF " + f"{what} count={COUNT}".encode() for n, what in enumerate(plans)}
    fused, apart = replace(plan(0), variant="fused"), plan(1)
    launch = replace(apart.launches[0], dynamic_shared=0)  # the last of two kernels makes the result
    apart = replace(apart, variant=UNFUSED, image="1.cubin", launches=(replace(launch, image="2.cubin"), launch))
    alone = reference_of("relu", {"shape": str(COUNT)})
    known = tuple((i, alone.element(i) + off) for i in (0, COUNT - 1))
    reference = Reference(UNFUSED, (), ((COUNT,),), (COUNT,), 10_000, 8, known)
    write_archive(archive_path(folder, arch, case),
                  KitOperator(case, arch, "h200", reference, (fused, apart), (), "by hand"), files)


def plan(rank):
    tensors = (Tensor("x", (COUNT,), "float32"), Tensor("y", (COUNT,), "float32"))
    launch = KernelLaunch("main_kernel", ("x", "y"), (1, 1, 1), (32, 1, 1), 65536 if rank == 1 else 0)
    said = 10.0 * (rank + 1)
    return KitPlan(rank, ("gpu.direct",), "", said, "dram", {}, f"{rank}.cubin", "", tensors, (), (launch,))
