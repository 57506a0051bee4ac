"""pagemesh beside its peers on one machine: `make compare`."""
