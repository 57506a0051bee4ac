"""Who calls, what keeps callers apart, and what lets them go on elsewhere."""
