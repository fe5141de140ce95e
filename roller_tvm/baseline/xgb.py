"""A learned cost model (XGBoost on ``features``) as in Ansor's search, to compare the analytic model with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UsageError

#: Parameters of the booster: small, so that leaving out each operator in turn takes seconds.
PARAMETERS = {
    "objective": "reg:squarederror", "max_depth": 7, "eta": 0.1, "subsample": 0.8, "colsample_bytree": 0.8,
    "tree_method": "hist", "nthread": 1, "seed": 0, "verbosity": 0,
}  # fmt: skip
ROUNDS = 200


def available() -> bool:
    """Return True if xgboost can be imported."""
    try:
        import xgboost  # noqa: F401
    except ImportError:
        return False
    return True


class LearnedModel:
    """Predicts an operator's slowdown: its time over the time of its FLOPs at the device's peak."""

    def __init__(self, booster: Any):
        self._booster = booster

    @classmethod
    def train(cls, rows: np.ndarray, slowdowns: np.ndarray) -> LearnedModel:
        """Train on rows of features and their slowdowns.

        Raises
        ------
        UsageError
            xgboost is not installed.
        """
        try:
            import xgboost
        except ImportError as error:
            raise UsageError("xgboost is not installed", remedy="pip install xgboost") from error
        data = xgboost.DMatrix(rows, label=np.log(slowdowns))
        return cls(xgboost.train(PARAMETERS, data, num_boost_round=ROUNDS))

    def slowdowns(self, rows: np.ndarray) -> np.ndarray:
        """Return the predicted slowdown of each row."""
        import xgboost

        return np.exp(self._booster.predict(xgboost.DMatrix(rows)))


def left_out(groups: Sequence[str], rows: np.ndarray, slowdowns: np.ndarray) -> np.ndarray:
    """Predict every row's slowdown by a model trained on the other groups; NaN if there is no other group."""
    names = np.asarray(groups)
    result = np.full(len(rows), np.nan)
    for name in dict.fromkeys(groups):
        own = names == name
        if own.all():
            continue
        result[own] = LearnedModel.train(rows[~own], slowdowns[~own]).slowdowns(rows[own])
    return result
