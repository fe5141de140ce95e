"""What Roller is compared with: learned cost models. Nothing of the planner imports this."""
