"""Run the kit on a machine with a card, in phases; results are kept if time or a kernel ends it early."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roller_bench.kit.archive import REMEDY, KitOperator, archive_path, read_operator
from roller_bench.kit.cases import fair
from roller_bench.kit.reference import UNFUSED
from roller_bench.kit.support import ARCHIVE
from roller_bench.kit.watchdog import SILENCE_S, TimeIsUp, Worker, WorkerLost
from roller_tvm.device import load_device
from roller_tvm.device.arch import arch_number
from roller_tvm.device.cache import write_whole
from roller_tvm.errors import BadInput
from roller_tvm.version import __version__

#: Seconds reserved for the report.
REPORT_S = 5.0
#: Microseconds of samples for the plan predicted best, and for each other plan.
BEST_US, OTHER_US = 60e3, 30e3
#: Share of the time by which each phase must end; time left over goes to the next phase.
PROFILE, BEST, TORCH, OTHERS = 0.2, 0.45, 0.65, 0.95
#: Seconds that a worker may stay silent while it profiles.
PROFILE_SILENCE_S = 90.0
#: Number of workers lost in a row, before any has done work, after which the card is given up.
MOST_STARTS = 3
#: Number of workers lost by an operator's plans after which its other plans are skipped.
MOST_LOST = 2

NO_DEVICE, NO_ANSWER, DONE = "no device", "no answer from the driver", "done"


@dataclass(frozen=True)
class Settings:
    """Settings for running the kit."""

    seconds: float = 525.0  # time limit of the whole run in seconds, the report included
    top: int = 10  # most plans per operator
    card: int = 0  # number of the card in the driver's order
    driver: str = ""  # path of a library to load instead of the CUDA driver, for tests
    torch: bool = True  # True to time torch too
    silence_s: float = SILENCE_S  # seconds without a message after which a worker is killed

    def __post_init__(self) -> None:
        if self.seconds <= REPORT_S:
            raise ValueError(f"'seconds' must be more than the {REPORT_S:.0f} s of the report (got {self.seconds})")


QUICK = {"seconds": 100.0, "top": 3}


class Run:
    """One run of the kit; `results` can be written at any time.

    Parameters
    ----------
    out : Path
        Folder for the results, written as they come.
    say : function of str
        Called with lines of progress.
    """

    def __init__(self, kit: Path, out: Path, settings: Settings, say: Callable[[str], None] = print) -> None:
        self.kit, self.out, self.settings, self.say = kit, out, settings, say
        self.start = time.monotonic()
        self.end = self.start + settings.seconds - REPORT_S
        card = ["--card", str(settings.card), "--parent", str(os.getpid())]
        own = [*card, *(["--driver", settings.driver] if settings.driver else [])]
        self.card = Worker(_python("worker", *own), out / "worker.log", settings.silence_s)
        self.torch = Worker(_python("torch_side", *card), out / "torch.log", settings.silence_s)
        self.operators: dict[str, KitOperator] = {}
        self.lost = 0
        self.results: dict[str, Any] = {
            "version": 1, "made_by": f"roller-tvm {__version__}", "status": "started", "settings": asdict(settings),
            "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "python": sys.version.split()[0],
            "card": None, "profile": None, "torch": None, "operators": {}, "unread": [], "lost": [],
            "seconds": {}, "clocks": [],
        }  # fmt: skip

    def all(self) -> dict[str, Any]:
        """Run every phase as far as time allows, and return the results.

        Raises
        ------
        BadInput
            The folder is no kit, or has no kernels for this card.
        """
        archs = kit_archs(self.kit)
        try:
            self._phase("card", 1.0, self._card)
            if self.results["card"] is None:
                return self.results
            self._phase("kit", 1.0, lambda until: self._read_kit(archs))
            self._phase("profile", PROFILE, self._profile)
            ranks = list(range(self.settings.top))
            self._phase("best plans", BEST, lambda until: self._operators(until, ranks[:1], BEST_US))
            self._phase("torch", TORCH, self._through_torch)
            self._phase("other plans", OTHERS, lambda until: self._operators(until, ranks, OTHER_US))
            self._phase("torch, the rest", 1.0, self._through_torch)
            self.results["status"] = DONE
        except KeyboardInterrupt:
            self.results["status"] = "interrupted"
        except WorkerLost as error:
            self.results["status"] = f"the card no longer answers: {error.what} ({error.at})"
        except BadInput as error:
            self.results["status"] = error.what
            raise
        finally:
            self.card.close()
            self.torch.close()
            self._save()
        return self.results

    def _phase(self, name: str, share: float, do: Callable[[float], None]) -> None:
        began = time.monotonic()
        until = min(self.end, self.start + share * self.settings.seconds)
        if began < until:
            self.say(f"{began - self.start:6.1f} s  {name}")
            try:
                do(until)
            finally:
                self.results["seconds"][name] = round(time.monotonic() - began, 2)
            if self.results["card"]:
                self.results["clocks"].append([name, clocks(self.settings.card)])
        self._save()

    def _save(self) -> None:
        problem = write_whole(self.out / "results.json", json.dumps(self.results) + "\n")
        if problem:
            self.say(f"the results cannot be written: {problem}")

    # Phases --------------------------------------------------------------------------------------------

    def _card(self, until: float) -> None:
        try:
            self.card.start(until)
        except (WorkerLost, TimeIsUp) as error:
            # A driver that says so has no card; one that hangs may have one that is broken.
            self.results["status"] = NO_DEVICE if getattr(error, "said", False) else NO_ANSWER
            self.results["why"] = f"{error.what} ({error.where})"
            return
        self.results["card"] = self.card.facts

    def _read_kit(self, archs: Sequence[str]) -> None:
        self.results["arch"] = arch = arch_for(self.card.facts["arch"], archs)
        found = []
        for path in sorted((self.kit / arch).glob("*.zip")):
            try:
                found += [read_operator(path)] if path.name != ARCHIVE else []
            except BadInput as error:  # one that cannot be read is not worth a run of the others
                self.results["unread"].append({"file": path.name, "why": error.what})
                self.say(f"          {path.name}: {error.what}")
        if not found:
            raise BadInput(f"has no operators for {arch}", str(self.kit), REMEDY)
        by_case = {o.case: o for o in found}
        for case in fair(list(by_case)):
            self.operators[str(case)] = operator = by_case[case]
            self.results["operators"][str(case)] = {
                **asdict(case), "flops": operator.reference.flops, "planned_for": operator.device,
                "bytes": sum(t.nbytes for t in operator.plans[0].parameters), "dropped": list(operator.dropped),
                "plans": {
                    str(p.rank): {
                        "recipes": list(p.recipes), "variant": p.variant, "predicted_us": p.predicted_us,
                        "bound": p.bound, "kernels": len(p.launches),
                    } for p in operator.plans
                }, "torch": {},
            }  # fmt: skip

    def _profile(self, until: float) -> None:
        task = {"kit": str(self.kit), "arch": self.results["arch"]}
        try:
            self._floor(task, until)
            for result in self.card.ask({**task, "do": "profile"}, until, PROFILE_SILENCE_S):
                spec = result.pop("spec")
                self.results["profile"] = result
                (self.out / "device.toml").write_text(spec, encoding="utf-8")
                if result["refused"]:
                    self.say(f"          not believed: {result['refused']}")
        except WorkerLost as error:
            self._note("profile", error)
        except TimeIsUp:
            self.results["profile"] = {"refused": "time was up"}

    def _floor(self, task: dict[str, str], until: float) -> None:
        """Time an empty kernel; raise BadInput if the driver refuses it twice, as it then runs none of the kit's."""
        for attempt in range(2):
            try:
                for result in self.card.ask({**task, "do": "floor"}, until):
                    self.results["floor_us"] = result["floor_us"]
                return
            except WorkerLost as error:
                self._note("an empty kernel", error)
                # Not at the memory, which another process may hold.
                if attempt and error.said and error.at == "an empty kernel":
                    compiler = next(iter(self.operators.values())).made_by.split(",")[0]
                    told = f"this driver runs none of its kernels, made by {compiler}: {error.what}"
                    remedy = "take a driver of that CUDA release or a later one, or make the kit with an older compiler"
                    raise BadInput(told, str(self.kit), remedy) from None

    def _operators(self, until: float, ranks: Sequence[int], budget_us: float) -> None:
        """Measure the plans not measured yet, in an order whose every prefix is a fair sample."""
        for number, (name, operator) in enumerate(self.operators.items(), 1):
            own = [p.rank for p in operator.plans if p.rank in ranks]
            if time.monotonic() >= until:
                return
            if self._measure(name, own, budget_us, until):
                self._save()
            if number % 20 == 0:
                self.say(f"{time.monotonic() - self.start:6.1f} s    {number} of {len(self.operators)}")

    def _measure(self, name: str, ranks: Sequence[int], budget_us: float, until: float) -> bool:
        """Measure plans of one operator; return True if any was begun. A plan that loses the worker has failed."""
        plans = self.results["operators"][name]["plans"]
        operator = self.operators[name]
        path = archive_path(self.kit, self.results["arch"], operator.case)
        begun, lost = False, 0
        self._skip_what_waits(operator, plans)
        while todo := [r for r in ranks if "verdict" not in plans[str(r)]]:
            spot = not any(p.get("verdict") in ("right", "wrong") for p in plans.values())  # else seen to be right
            task = {"do": "operator", "kit": str(self.kit), "arch": self.results["arch"], "path": str(path),
                    "ranks": todo, "budget_us": budget_us, "until": until, "spot": spot}  # fmt: skip
            try:
                for result in self.card.ask(task, min(self.end, until + self.settings.silence_s)):
                    plans[str(result.pop("rank"))].update(result)
                    begun, self.lost = True, 0
                return begun  # what is not there now was not begun: time is up
            except TimeIsUp:
                return begun
            except WorkerLost as error:
                begun, lost = True, lost + 1
                failed = [r for r in todo if error.at == f"{name}#{r}"]
                # Before any plan: what the operator needs itself went wrong, not one of its plans.
                for rank in failed or [r for r in todo if "verdict" not in plans[str(r)]]:
                    plans[str(rank)].update({"verdict": "failed", "why": f"{error.what} (at {error.at})"})
                if lost >= MOST_LOST:
                    for rank in [r for r in ranks if "verdict" not in plans[str(r)]]:
                        plans[str(rank)].update({"verdict": "skipped", "why": f"{lost} plans before it lost the card"})
                self._note(name, error)
        return begun

    def _skip_what_waits(self, operator: KitOperator, plans: dict[str, Any]) -> None:
        """Skip fused plans on a card with fewer units than planned for: some blocks would wait for ever."""
        if operator.reference.kernel != UNFUSED:
            return
        units, planned = self.card.facts["units"], load_device(operator.device).units
        for plan in operator.plans:
            if plan.variant != UNFUSED and units < planned:
                why = f"its blocks wait for each other on {planned} units, this card has {units}: make a kit for it"
                plans[str(plan.rank)].update({"verdict": "skipped", "why": why})

    def _note(self, what: str, error: WorkerLost) -> None:
        """Record a lost worker; raise the error if too many were lost in a row before doing any work."""
        self.results["lost"].append({"task": what, "at": error.at, "why": error.what})
        self.say(f"{time.monotonic() - self.start:6.1f} s    {error.at}: {error.what}")
        self.lost += 1
        if self.lost >= MOST_STARTS and error.at in ("its start", "the driver", "the card", "the card's memory"):
            raise error

    def _through_torch(self, until: float) -> None:
        if not self.settings.torch or (self.results["torch"] or {}).get("why"):
            return
        try:
            self.torch.start(until)
        except TimeIsUp:
            return  # asked again when there is more
        except WorkerLost as error:
            self.results["torch"] = {"why": error.what}
            return
        self.results["torch"] = {**self.torch.facts}
        lost = 0
        for name, operator in self.operators.items():
            found = self.results["operators"][name]["torch"]
            if found or time.monotonic() >= until or operator.reference.kernel == UNFUSED:
                continue
            try:
                for result in self.torch.ask({"case": asdict(operator.case), "budget_us": BEST_US}, until):
                    found[result.pop("mode")] = result
                lost = 0
            except TimeIsUp:
                return
            except WorkerLost as error:
                found[operator.case.dtype], lost = {"why": f"{error.what} (at {error.at})"}, lost + 1
                if lost >= MOST_LOST:  # each takes an import of torch
                    self.results["torch"]["why"] = f"given up after {lost} operators in a row: {error.what}"
                    return


def kit_archs(kit: Path) -> list[str]:
    """Return the architectures that a kit has kernels for.

    Raises
    ------
    BadInput
        The folder is no kit.
    """
    found = sorted((p.parent.name for p in kit.glob(f"sm_*/{ARCHIVE}")), key=arch_number)
    if not found:
        remedy = "make one on a machine with TVM: make gpu-kit"
        raise BadInput("is no GPU kit: it has no sm_*/support.zip", str(kit), remedy)
    return found


def arch_for(card: str, archs: Sequence[str]) -> str:
    """Return the kit's architecture whose cubins run on a card: the newest of the card's generation that is not newer.

    Examples
    --------
    >>> arch_for("sm_86", ["sm_80", "sm_90"])
    'sm_80'
    """
    number = arch_number(card)
    fit = [a for a in archs if arch_number(a) // 10 == number // 10 and arch_number(a) <= number]
    if not fit:
        remedy = f"make one for it: python -m roller_bench.kit --archs {card}"
        raise BadInput(f"the kit has kernels for {', '.join(archs)}, none of which run on {card}", "kit", remedy)
    return max(fit, key=arch_number)


def clocks(card: int) -> dict[str, str]:
    """Return clocks, power and temperature as nvidia-smi reports them; an empty dict if it is absent or fails."""
    fields = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu")
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--id={card}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (v.strip() for v in told.strip().split(",")), strict=False))


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"roller_bench.kit.{module}", *words]


__all__ = ["DONE", "NO_ANSWER", "NO_DEVICE", "QUICK", "Run", "Settings", "arch_for", "clocks", "kit_archs"]
