"""Recipes: ways to schedule one kind of loop nest on one kind of device (no TVM)."""
