"""The Relay line: tasks, records, tuning."""
