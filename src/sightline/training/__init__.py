"""One readable loop, and what keeps it exact: checkpoints, schedules, logs."""
