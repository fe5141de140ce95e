"""A model in one library with several plans of each operator: lowered once a plan, put together call by call.

All operators take their n-th plan in the n-th module. Packing weights and lowering are as in any build; only the
schedules and the packed weights differ, so that the modules call the same kernels in the same order. A call of the
first module becomes the call of a site (`explore.dispatch`), which is also given the weights as other plans want them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import vm_build
from tvm.support import cc

from ..errors import MeasureError
from ..explore.dispatch import FFI, SITE, Site, Table, Variant, source
from ..tuning.explorable import Arguments, Linked
from ..tuning.remote_run import Sent, SentTable, Server
from ..tuning.supervise import last_line
from .compiling import Compiled, code_attrs, object_of, of_each
from .concat_in_place import PLACES
from .constants import array_of
from .kernels import pack_constants
from .marks import ORIGIN
from .modules import is_prim_func, with_functions
from .package import save_model
from .pipeline import for_llvm, lower, schedule, with_memory
from .schedule import named_as


@dataclass
class Plans:
    """The plans of a function: scheduled functions by label, the start first; None leaves it as it is."""

    by_label: dict[str, Any]


def with_variants(
    mod: Any, plans: Mapping[str, Plans], target: Any, device: Any, folder: Path, memory_bytes: int,
    server: Server | None = None,
) -> Linked:  # fmt: skip
    """Build a prepared module with all plans of its functions.

    Parameters
    ----------
    plans : mapping of function's name to Plans
    folder : Path
        Where the library is put.
    memory_bytes : int
        Most bytes of weights that are there in further layouts; plans behind that are left out.
    server : Server, optional
        Runs the model, instead of this process; it has the whole of it in one library then.
    """
    mod = with_functions(
        mod, {v: f.with_attr(ORIGIN, str(v.name_hint)) for v, f in mod.functions_items() if is_prim_func(f)}
    )
    if target.kind.name == "cuda":
        from .cuda_variants import cuda_library

        made = _sites(mod, plans, target, device, memory_bytes, with_memory(target))
        return cuda_library(made, target, folder)
    # Kernels run again and again on the same operands, whose values must stay.
    made = _sites(mod, plans, target, device, memory_bytes, lower(target, overwrites=False))
    lowered = made.lowered
    paths = _compiled(made.kernels, code_attrs(lowered.attrs), target, folder)
    made.without({name: why for name, (path, why) in paths.items() if path is None})
    code = folder / "sites.cc"
    code.write_text(source(made.sites, FFI), encoding="utf-8")
    library = folder / "variants.so"
    objects = [path for path, _ in paths.values() if path is not None]
    cc.create_shared(str(library), [*objects, str(code)], options=["-O2"])
    if server is None:
        kernels = [tvm.runtime.load_module(str(library))]
    else:
        kernels = [tvm.runtime.load_static_library(path, []) for path in objects]
    builder = relax.ExecBuilder()
    vm_build._vmcodegen(builder, made.module())
    told = dict(lowered.attrs) if lowered.attrs else {}
    others, constants = list(told.get("external_mods", [])), dict(told.get("const_name_to_constant", {}))
    run = vm_build._vmlink(builder, target, None, ext_libs=[*kernels, *others], params=constants).mod
    if server is not None:
        save_model(relax.VMExecutable(run), whole := folder / "model.so", [str(code)])
        sent = Sent(server, whole)
        return Linked(sent, library, made.sites, SentTable(sent, len(made.sites)), made.failed, made.arguments)
    table = Table(library, len(made.sites))
    return Linked(Compiled(run, run), library, made.sites, table, made.failed, made.arguments)


def _sites(
    mod: Any, plans: Mapping[str, Plans], target: Any, device: Any, memory_bytes: int, lowering: Any
) -> Sites:
    """Return the sites of a module, lowered by a pass once a plan."""
    count = max((len(own.by_label) for own in plans.values()), default=1)
    lowered = [_lowered(mod, plans, n, target, device, lowering) for n in range(count)]
    return Sites(plans, lowered, [_kernel_calls(one) for one in lowered], memory_bytes)


def _lowered(mod: Any, plans: Mapping[str, Plans], number: int, target: Any, device: Any, lowering: Any) -> Any:
    """Return the module lowered with the `number`-th plan of each function.

    Functions without one are as in any build in the first module; in the others nobody looks at them.
    """
    chosen = {}
    for var, func in mod.functions_items():
        own = plans.get(str(var.name_hint))
        if own is not None and is_prim_func(func) and number < len(own.by_label):
            scheduled = list(own.by_label.values())[number]
            if scheduled is not None:
                chosen[var] = named_as(scheduled, func)
    mod = with_functions(mod, chosen)
    if not number:
        mod, _ = schedule(mod, target, None, device)
    elif target.kind.name == "llvm":
        mod = for_llvm()(pack_constants(mod))
    with target:
        return lowering(mod)


def _kernel_calls(mod: Any) -> list[Any]:
    """Return the bindings of a module's main that call kernels, in order."""
    bindings = (b for block in mod["main"].body.blocks for b in block.bindings)
    return [b for b in bindings if _calls_kernel(mod, b)]


def _calls_kernel(mod: Any, binding: Any) -> bool:
    value = getattr(binding, "value", None)
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar) and is_prim_func(mod[value.op])


class Sites:
    """The sites of a model under construction."""

    def __init__(self, plans: Mapping[str, Plans], lowered: Sequence[Any], calls: Sequence[Any], memory: int) -> None:
        self.lowered, self.calls, self.memory = lowered[0], calls[0], memory
        self.sites: list[Site] = []
        self.given: list[list[Any]] = []
        self.arguments: list[dict[str, Arguments]] = []
        self.failed: dict[tuple[str, str], str] = {}
        #: Symbol -> function.
        self.kernels: dict[str, Any] = {}
        origins = [str(lowered[0][b.value.op].attrs.get(ORIGIN, b.value.op.name_hint)) for b in calls[0]]
        #: Options are left out everywhere or nowhere, as what is learnt of one site holds for all.
        self.out = {
            (name, label): why
            for n in range(1, len(lowered))
            for name, label, why in self._differing(plans, origins, lowered, calls, n)
        }
        for at, origin in enumerate(origins):
            self._add(plans.get(origin), origin, lowered, [own[at] if at < len(own) else None for own in calls])
        self.failed.update(self.out)

    def _differing(
        self, plans: Mapping[str, Plans], origins: Sequence[str], lowered: Sequence[Any], calls: Sequence[Any], n: int
    ) -> list[tuple[str, str, str]]:
        """Return the n-th plans that cannot stand in: they call something else, or need too much memory."""
        found = []
        for at, origin in enumerate(origins):
            labels = list(plans[origin].by_label) if origin in plans else []
            if n >= len(labels):
                continue
            why = ""
            if len(calls[n]) != len(calls[0]):
                why = "its module calls other kernels"
            else:
                own, first = calls[n][at].value, calls[0][at].value
                same = str(lowered[n][own.op].attrs.get(ORIGIN, "")) == origin and len(own.args) == len(first.args)
                if not same:
                    why = "its module calls other kernels"
                else:
                    self.memory -= sum(_bytes(a) for a, b in zip(own.args, first.args, strict=True) if _differ(a, b))
                    why = "" if self.memory >= 0 else "its weights in another layout need more memory than is given"
            if why:
                found.append((origin, labels[n], why))
        return found

    def _add(self, plans: Plans | None, origin: str, lowered: Sequence[Any], bindings: Sequence[Any]) -> None:
        """Add the site of a call, which is `bindings[n]` in the n-th module."""
        labels = list(plans.by_label) if plans is not None else ["start"]
        given, options, variants = list(bindings[0].value.args), [], []
        arguments: dict[str, Arguments] = {}
        for n, label in enumerate(labels):
            if (origin, label) in self.out:
                continue
            call = bindings[n].value
            func, name = lowered[n][call.op], f"v{n}_{call.op.name_hint}"
            self.kernels[name] = func
            places = tuple(_place(given, at, argument) for at, argument in enumerate(call.args))
            options.append(label)
            variants.append(Variant(name, places))
            constants = {at: value for at, a in enumerate(call.args) if (value := array_of(a)) is not None}
            arguments[label] = Arguments(constants, _places(func))
        self.sites.append(Site(origin, tuple(options), tuple(variants)))
        self.given.append(given)
        self.arguments.append(arguments)

    def without(self, failed: Mapping[str, str]) -> None:
        """Leave out kernels that did not build; raise ``MeasureError`` if a start is among them."""
        bad = {(site.operator, label): failed[v.kernel] for site in self.sites
               for label, v in zip(site.options, site.variants, strict=True) if v.kernel in failed}  # fmt: skip
        self.failed.update(bad)
        for at, site in enumerate(self.sites):
            kept = [n for n, label in enumerate(site.options) if (site.operator, label) not in bad]
            if not kept or kept[0] != 0:
                why = bad[site.operator, site.options[0]]
                raise MeasureError(f"the plan to start from does not build: {why}", site.operator, "leave it to TVM")
            self.sites[at] = Site(site.operator, tuple(site.options[n] for n in kept),
                                  tuple(site.variants[n] for n in kept))  # fmt: skip

    def module(self) -> Any:
        """Return the first module, whose kernels are called through the sites."""
        main, number, blocks = self.lowered["main"], 0, []
        for block in main.body.blocks:
            bindings = []
            for binding in block.bindings:
                if _calls_kernel(self.lowered, binding):
                    call = relax.Call(relax.ExternFunc(f"{SITE}{number}"), self.given[number], None,
                                      [relax.TupleType([])])  # fmt: skip
                    binding = relax.VarBinding(binding.var, call)
                    number += 1
                bindings.append(binding)
            blocks.append(relax.BindingBlock(bindings))
        body = relax.SeqExpr(blocks, main.body.body)
        var = next(v for v, f in self.lowered.functions_items() if str(v.name_hint) == "main")
        changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return with_functions(self.lowered, {var: changed})


def _differ(one: Any, other: Any) -> bool:
    """Return whether an argument is a constant of other values."""
    a, b = array_of(one), array_of(other)
    return a is not None and not (b is not None and _equal(a, b))


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=False))


def _bytes(argument: Any) -> int:
    return int(array_of(argument).nbytes)


def _place(given: list[Any], at: int, argument: Any) -> int:
    """Return where a site's arguments have one; a constant that they lack is added."""
    value = array_of(argument)
    if value is None:
        return at
    for place, other in enumerate(given):
        known = array_of(other)
        if known is not None and _equal(known, value):
            return place
    given.append(argument)
    return len(given) - 1


def _places(func: Any) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the parameters of a kernel that are larger tensors than those of the function it was made of."""
    told = json.loads(str(func.attrs[PLACES])) if func.attrs and PLACES in func.attrs else {}
    return {int(at): (tuple(shape), tuple(start)) for at, (shape, start) in told.items()}


def _compiled(
    kernels: Mapping[str, Any], attrs: Any, target: Any, folder: Path
) -> dict[str, tuple[str | None, str]]:
    """Return the object file of each kernel, or None and the reason."""

    def made(var: Any, func: Any) -> tuple[str | None, str]:
        path = str(folder / f"{var.name_hint}.o")
        try:
            write_object(var, func, attrs, target, path)
        except Exception as error:  # whatever TVM's passes raise of one plan
            return None, last_line(error)
        return path, ""

    named = [(tvm.ir.GlobalVar(name), func.with_attr("global_symbol", name)) for name, func in kernels.items()]
    return dict(zip(kernels, of_each(made, named, lambda step: None), strict=True))


def write_object(var: Any, func: Any, attrs: Any, target: Any, path: str) -> None:
    """Compile one kernel into an object file."""
    Path(path).write_bytes(object_of(attrs, target, var, func))
