"""`make demo`: an engine is killed while it answers, and the answer is the same."""
