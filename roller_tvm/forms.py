"""Forms of a whole model, tried once its operators have settled: built with one choice turned, and run beside it.

A form is no choice of one operator: Winograd's algorithm or direct convolutions, how activations are arranged, kernels
side by side, the number of threads, CUDA graphs. One is tried after the other; what is faster is kept for the next.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .errors import RollerError, last_line
from .explore.rule import Rule
from .explore.running import SPENT, faster
from .micro_perf.known_error import may_win
from .models.choices import Form, prepares, remakes
from .tuning.interrupt import deferred_interrupt, stop_if_interrupted
from .tuning.numerics import difference
from .tuning.remote import LOST_SERVER
from .tvm_env import wanted_threads

if TYPE_CHECKING:
    from .exploring import ModelExploration
    from .session import Session


class Forms:
    """The trial of a model's forms.

    Parameters
    ----------
    whole : ModelExploration
        Its winners are recorded.
    end : float, optional
        Time of ``time.monotonic`` at which it ends.
    online : bool
        Requests are served meanwhile.
    """

    def __init__(self, whole: ModelExploration, end: float | None, online: bool) -> None:
        self.whole, self.end, self.online, self.session = whole, end, online, whole.session
        self.kept = self.session.line.choices(whole.place, self.session.aim)
        self._lost = False

    def run(self) -> list[str]:
        """Try them, have the session take what is faster, and return what became of each."""
        told, seen = list[str](), set(self.kept.tried)
        while (form := next((one for one in self._all() if one.name not in seen), None)) is not None:
            seen.add(form.name)
            why, took = self._refusal(form), ""
            if not why:
                try:
                    with warnings.catch_warnings(), deferred_interrupt():  # TVM calls Python, where Ctrl-C is lost
                        warnings.simplefilter("ignore")  # of kernels without records or plans: it is a trial
                        why, took = self._tried(form)
                except RollerError as error:
                    why = error.what
                    self._lost = self._lost or getattr(error, "kind", "") == LOST_SERVER
                except Exception as error:  # whatever TVM raises of a model in this form
                    why = last_line(error)
            told.append(f"{form.name}: {took or f'not tried, {why}'}")
        return told

    def _all(self) -> Sequence[Form]:
        """Return the forms of the model as it is now."""
        session = self.session
        return session.line.forms(session.job, session.use_threads())

    def _refusal(self, form: Form) -> str:
        if form.why:
            return form.why
        if not form.cheap and self.online:
            return "requests are being served: explore offline"
        if not form.cheap and not self.whole.running.done:
            return "the operators have not settled"
        if self._late:
            return SPENT
        if self._lost:
            return "the server is lost"
        count = form.values.get("threads")
        here = self.session.server is None
        cut = here and count is not None and wanted_threads(count) != count
        given = self.session.request.threads is not None or cut
        return "their number was given" if count is not None and given else ""

    @property
    def _late(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

    def _tried(self, form: Form) -> tuple[str, str]:
        """Return why a form was not tried after all, or what became of it."""
        session = self.session
        made = session.formed(form.values)
        if made is None:
            return "the model cannot be imported again", ""
        changed = session.line.changes(session, made, form)
        if changed:
            return changed, ""
        if slow := self._slow(made, form):
            return slow, ""
        plain, other = self._ways(made, form)
        if wrong := self._wrong(plain, other):
            return f"its results differ: {wrong}", ""

        def ready(number: int) -> None:
            stop_if_interrupted()
            (session, made)[number].use_threads()
            if session.threads != made.threads:  # those that join are asleep
                (plain, other)[number]()

        found = faster(plain, other, Rule(), self.end, ready, here=session.server is None)
        ready(int(found.worth))
        told = f"{found.after_s * 1e6:.1f} us a run, {found.before_s * 1e6:.1f} us without"
        if found.why == SPENT:
            return SPENT, ""
        if found.why:
            return "", f"{told}; undecided, {found.why}; explore again when it is quiet"
        self._keep(form, found.worth)
        if found.worth:
            session.become(made)
        more = ": explore again, for its operators" if remakes(form.values) else ""
        return "", f"{told}; {f'taken (kept beside the records){more}' if found.worth else 'not taken'}"

    def _slow(self, made: Session, form: Form) -> str:
        """Return why a form is not built: it is predicted to be slower by more than the model errs; or ''."""
        if not prepares(form.values):
            return ""
        before, after = (self.session.line.predicted(one.job) for one in (self.session, made))
        # Kernels that both have take as long in both.
        changed = [sum(n * seconds for (seconds, _), n in part.items()) for part in (before - after, after - before)]
        if not all(changed) or may_win(changed[1], changed[0]):
            return ""
        return f"its other kernels are predicted to take {changed[1] / changed[0]:.2f} times as long"

    def _ways(self, made: Session, form: Form) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return functions that run the model as it is, and in a form; requests wait meanwhile."""
        whole, running = self.whole, self.whole.running
        if "cuda_graph" in form.values and (captured := whole.captured) is not None:
            arguments, calls = whole.arguments(whole.inputs), (running.call, captured())
            plain, other = (partial(running.alone, call, *arguments) for call in calls)
            return plain, other
        loaded = [self.session.load(), made.load()]
        plain, other = (partial(running.alone, one.call, *one.arguments(whole.inputs)) for one in loaded)
        return plain, other

    def _wrong(self, plain: Callable[[], Any], other: Callable[[], Any]) -> str:
        """Return how the results of two ways differ, or ''."""
        loaded, terms = self.whole.loaded, self.session.line.terms(self.session.job)
        pairs = zip(loaded.outputs(other()), loaded.outputs(plain()), strict=True)
        return next((why for got, right in pairs if (why := difference(got, right, terms))), "")

    def _keep(self, form: Form, worth: bool) -> None:
        """Write what became of a form beside the records."""
        taken = {**self.kept.forms, **(form.values if worth else {})}
        known = self.session.line.choices(self.whole.place, self.session.aim)  # the records' connected calls too
        self.kept = replace(known, forms=taken, tried=(*self.kept.tried, form.name))
        self.session.line.choose(self.whole.place, self.session.aim, self.kept)
