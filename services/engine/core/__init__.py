"""The running set: admission, blocks, prefix cache and plans, without tensors, sockets or clocks."""
