"""The life of one request, without sockets or clocks: what happened comes in, commands come out."""
