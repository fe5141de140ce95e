"""rTile, rProgram, Plan, the alignment rules and schedule steps, as plain values (no TVM)."""
