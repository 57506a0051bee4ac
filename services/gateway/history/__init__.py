"""Sessions: histories of ids, taken turn by turn under a lease, over a store."""
