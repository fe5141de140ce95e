"""Baselines that Roller is compared with: learned cost models. The planner imports nothing of this package."""
