"""Three changes to TVM's own classes, so that a ``RollerPolicy`` works with them too.

``SearchTask.tune`` hands its policy to C++, which only knows policies written in C++; here a policy with a Python
method ``search`` is called instead. ``ProgramMeasurer`` and ``PreloadMeasuredStates`` are opaque, so the Python
objects remember their constructor's arguments. Everything else passes through unchanged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tvm.auto_scheduler import measure, search_policy, search_task

#: Attribute of the Python object that holds its constructor's arguments.
MADE_WITH = "_roller_made_with"


def made_with(thing: Any) -> tuple[Any, ...] | None:
    """Return the constructor's arguments of a patched TVM object, or None if it was made before ``install``."""
    found = vars(thing).get(MADE_WITH)
    return found if isinstance(found, tuple) else None


def install(policy: Callable[[Any], Any], options: type) -> None:
    """Patch TVM's classes, once per process.

    Parameters
    ----------
    policy : function of SearchTask
        Makes the policy of a task that is tuned with these options and without a policy.
    options : type
        Who makes such options means Roller.
    """
    if getattr(search_task.SearchTask.tune, MADE_WITH, None) is None:
        search_task.SearchTask.tune = _dispatching(search_task.SearchTask.tune, policy, options)
        measure.ProgramMeasurer.__init__ = _remembering(measure.ProgramMeasurer.__init__)
        search_policy.PreloadMeasuredStates.__init__ = _remembering(search_policy.PreloadMeasuredStates.__init__)


def _dispatching(original: Any, policy: Callable[[Any], Any], options: type) -> Any:
    @functools.wraps(original)
    def tune(self: Any, tuning_options: Any, search_policy: Any = None, *args: Any, **kwargs: Any) -> Any:
        if search_policy is None and isinstance(tuning_options, options):
            search_policy = policy(self)  # TVM's own task
        if callable(getattr(type(search_policy), "search", None)):
            search_policy.search(tuning_options)
            return None
        return original(self, tuning_options, search_policy, *args, **kwargs)

    setattr(tune, MADE_WITH, (original,))
    return tune


def _remembering(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        setattr(self, MADE_WITH, given.args[1:])

    return init
