"""Rose, optimizer: what may overlap, what should, and why the rest was refused."""
