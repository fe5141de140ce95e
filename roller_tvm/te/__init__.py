"""Reading TVM tensor expressions into ours."""
