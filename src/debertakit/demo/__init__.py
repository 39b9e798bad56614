"""``make demo``: what debertakit does, on this machine, in four minutes and without a network."""
