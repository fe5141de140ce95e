"""A library with several plans of each operator for an NVIDIA GPU: host code, sites, and the source of all kernels.

Each kernel is compiled on its own, on all cores, to a cubin that the library finds when it is loaded (`cubins`). One
that does not compile is left out and told. The model is in the library twice: as it is, and with its kernels
captured in CUDA graphs, where TVM can do so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.relax import vm_build

from ..explore.dispatch import FFI, source
from ..models.package import REPORT
from ..tuning.explorable import Arguments, Linked
from ..tuning.model_report import ModelReport
from ..tuning.supervise import last_line
from .carried import CUBINS, GRAPH, LIBRARY
from .compiling import on_all_cores
from .contexts import context_like
from .cubins import Cubins
from .modules import with_functions
from .package import save_model
from .pipeline import CAPTURE, to_machine

if TYPE_CHECKING:
    from .variants import Sites



def cuda_library(made: Sites, target: Any, folder: Path) -> Linked:
    """Return the linked library of sites; `opened` runs it."""
    cubins = Cubins(str(target.attrs["arch"]), folder / CUBINS)
    kernels = _compiled(made.kernels, made.lowered.attrs, target, cubins)
    made.without({name: why for name, (module, why) in kernels.items() if module is None})
    code = folder / "sites.cc"
    code.write_text(source(made.sites, FFI, events=True), encoding="utf-8")
    module, builder = made.module(), relax.ExecBuilder()
    with target:
        vm_build._vmcodegen(builder, to_machine(target)(module))
        vm_build._vmcodegen(builder, _captured(module, target))
    told = dict(module.attrs) if module.attrs else {}
    others, constants = list(told.get("external_mods", [])), dict(told.get("const_name_to_constant", {}))
    used = {v.kernel for site in made.sites for v in site.variants}
    libraries = [module for name, (module, _) in kernels.items() if module is not None and name in used]
    built = vm_build._vmlink(builder, target, None, ext_libs=[*libraries, *others], params=constants)
    setattr(built, REPORT, ModelReport(str(target)))
    library = save_model(built, folder / LIBRARY, [str(code)])
    plain = [{label: Arguments() for label in site.options} for site in made.sites]  # no weight is packed for a GPU
    return Linked(built, library, made.sites, None, made.failed, plain)


def _compiled(
    kernels: Mapping[str, Any], attrs: Any, target: Any, cubins: Cubins
) -> dict[str, tuple[Any, str]]:
    """Return each kernel's host code with its source, or None and the reason; its cubin is in the store then."""

    def made(var: Any, func: Any) -> tuple[Any, str]:
        try:
            built = tvm.tirx.build(tvm.IRModule({var: func}, attrs=attrs), target=target)
            for device in built.imports:
                cubins.compile(str(device.inspect_source()))
        except Exception as error:  # whatever TVM's passes or the compiler raise of one plan
            return None, last_line(error)
        return built, ""

    named = [(tvm.ir.GlobalVar(name), func.with_attr("global_symbol", name)) for name, func in kernels.items()]
    ahead = context_like(tvm.transform.PassContext.current(), (), **{"tirx.use_async_copy": True})
    with cubins.used(), ahead:  # where a card is, building compiles already
        return dict(zip(kernels, on_all_cores(made, named, lambda step: None), strict=True))


def _captured(module: Any, target: Any) -> Any:
    """Return the module's `main` under the name `GRAPH`, its kernels captured, with the functions that it calls."""
    with context_like(tvm.transform.PassContext.current(), (), **{CAPTURE: True}):
        lowered = to_machine(target)(module)
    functions = {var: func for var, func in lowered.functions_items() if isinstance(func, relax.Function)}
    main = next(var for var in functions if str(var.name_hint) == "main")
    known = {str(var.name_hint) for var, func in module.functions_items() if isinstance(func, relax.Function)}
    kept = {var: func for var, func in functions.items() if str(var.name_hint) not in known}
    kept[tvm.ir.GlobalVar(GRAPH)] = functions[main].with_attr("global_symbol", GRAPH)
    return with_functions(tvm.IRModule(attrs=lowered.attrs), kept)
