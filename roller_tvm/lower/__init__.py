"""From an rProgram to a printable list of schedule steps."""
