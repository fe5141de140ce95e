"""The micro-performance model and its explanations."""
