"""Damaged inputs by rule, and what every reader of the product makes of them: `python -m roller_check faults`."""
